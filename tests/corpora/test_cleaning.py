"""What is kept, and in which split: corpora.cleaning, page E7."""

from __future__ import annotations

import dataclasses
import zlib
from collections import Counter
from typing import Any

import pytest

from annotated.corpora.cleaning import Cleaning, Division, divide, remarks


def test_words_and_punctuation_are_counted() -> None:
    seven, eight = (Cleaning(max_words=n) for n in (6, 7))
    pair = "Ja, das ist's!", "Ja"
    assert seven.objection(*pair) == "more than 6 words"
    assert eight.objection(*pair) is None


@pytest.mark.parametrize(
    ("rules", "pair", "why"),
    [
        ({}, ("a b", "c"), None),
        ({}, ("a", " \t"), "a blank side"),
        ({}, ("a", "b\0"), "a NUL byte"),
        ({}, ("a", "\udcff"), "not UTF-8 text"),
        ({}, ("ä", "日本"), None),
        ({"max_words": 2}, ("a b", "c, d"), "more than 2 words"),
        ({"max_words": 2}, ("a" * 99, "b"), None),
        ({"min_words": 2}, ("a b", "c"), "fewer than 2 words"),
        ({"drop_copies": True}, ("a b", "a b "), "both sides the same"),
        ({}, ("a b", "a b"), None),
        ({"ratio": 1.5}, ("a b c", "d e"), None),
        ({"ratio": 1.5}, ("a b c d", "e f"), "lengths differ by more than 1.5 times"),
    ],
)  # fmt: skip
def test_a_pair_is_left_out_for_a_reason(
    rules: dict[str, Any], pair: tuple[str, str], why: str | None
) -> None:
    assert Cleaning(**rules).objection(*pair) == why
    assert Cleaning(**rules).objection(*pair[::-1]) == why


@pytest.mark.parametrize(
    "rules", [{"ratio": 0.5}, {"min_words": 5, "max_words": 4}]
)
def test_rules_that_no_pair_can_meet_are_refused(
    rules: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match=next(iter(rules))):
        Cleaning(**rules)


def test_lines_are_written_as_the_rules_say() -> None:
    rules = Cleaning(lower=True, unescape=True)
    assert rules.line("Don&apos;t &lt;STOP&gt;") == "don't <stop>"


@pytest.mark.parametrize(
    ("tokens", "written"),
    [
        ("We shouldn 't go , he said .", "We shouldn't go, he said."),
        ("She did n't ( at all ) .", "She didn't (at all)."),
        ('Peter \'s " plan " : wait ...', 'Peter\'s "plan": wait...'),
        ('He said " yes " . " No " , I said .', None),
        ("¿ Vamos ? ¡ Sí , vamos !", "¿Vamos? ¡Sí, vamos!"),
        ("L' arte dell' Unione e' qui .", "L'arte dell'Unione e'qui."),
        ("qu' il s' en aille « vite »", "qu'il s'en aille «vite»"),
        ("a well @-@ known [ 5 % ]", "a well-known [5%]"),
    ],
)
def test_punctuation_goes_back_to_its_word(
    tokens: str, written: str | None
) -> None:
    written = written or 'He said "yes". "No", I said.'
    assert Cleaning(detokenize=True).line(tokens) == written
    assert Cleaning(detokenize=True).line(written) == written


def test_text_as_people_write_it_is_left_alone() -> None:
    for line in (
        'The dogs\' bones, "they" said, and "we" (all) know: it\'s 5.5%.',
        "Rock 'n' roll - the 1990's best; \"so what?\"",
        "Children's toys (and one dog's) cost 3,000 - or 4.5% more.",
    ):
        assert Cleaning(detokenize=True).line(line) == line


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Don't panic, she said. It's late.", []),
        ("Ça va ? Non ! C'est « bien », merci.", []),  # French spaces
        ("Don &apos;t panic , she said .", ["escaped", "tokenised"]),
        ("&quot;Salt &amp; pepper.&quot;", ["escaped"]),
        ("Salt , pepper , 1.5 litres .", ["tokenised"]),
        ("R&D; AT&T.", []),
    ],
)
def test_text_that_went_through_tools_is_recognised(
    line: str, said: list[str]
) -> None:
    found = remarks([line] * 100)
    assert [r.split(" is ")[1].split()[0].strip("(") for r in found] == said


def test_a_few_such_lines_are_nothing_to_remark() -> None:
    lines = ["Salt, pepper."] * 995 + ["Salt &amp; pepper ."] * 5
    assert remarks(lines) == []


def test_every_23rd_clean_pair_is_for_validation() -> None:
    pairs = [(f"s{i}", f"t{i}") for i in range(1, 101)] + [("", "x")] * 9
    pairs[3] = ("", "blank")
    dropped: Counter[str] = Counter()
    rows = list(
        divide(
            "train",
            pairs,
            Cleaning(),
            Division("line", 23, valid=0),
            dropped,
        )
    )
    clean = [p for p in pairs if p[0]]
    held = [(s, t) for split, s, t in rows if split == "valid"]
    assert held == clean[22::23]
    assert len(rows) == 99
    assert dropped == {"a blank side": 10}


def test_a_source_is_in_one_split_with_all_its_translations() -> None:
    pairs = [(f"s{i % 50}", f"t{i}") for i in range(200)]
    division = Division("source", 5, valid=0, test=1)
    places: dict[str, set[str]] = {}
    for split, src, _ in divide(
        "train", pairs, Cleaning(), division, Counter()
    ):
        places.setdefault(split, set()).add(src)
    assert set(places) == {"train", "valid", "test"}
    assert sum(map(len, places.values())) == 50


def splits_of(pairs, division: Division, **rules: Any) -> list[str]:
    rows = divide("train", pairs, Cleaning(**rules), division, Counter())
    return [split for split, _, _ in rows]


def test_a_block_is_in_one_split() -> None:
    division = Division("block", of=4, valid=0, test=1)
    pairs = [(f"s{i}", "t") for i in range(250)]
    names = ["valid", "test", "train", "train", "valid"]
    wanted = [name for name in names for _ in range(50)]
    assert splits_of(pairs, division) == wanted


def test_a_document_ends_where_both_sides_are_blank() -> None:
    division = Division("document", of=3, valid=0, test=1)
    end = ("", " ")
    pairs = [
        end,
        ("a", "b"),
        ("", "c"),
        ("d", "e"),
        end,
        end,
        ("a", "b"),
        end,
    ]
    pairs += [("x", "y"), ("z", "z"), end, ("a", "b")]
    dropped: Counter[str] = Counter()
    rows = [*divide("train", pairs, Cleaning(), division, dropped)]
    assert [(split, src) for split, src, _ in rows] == [
        ("valid", "a"), ("valid", "d"), ("test", "a"),
        ("train", "x"), ("train", "z"), ("valid", "a"),
    ]  # fmt: skip
    assert dropped == {"a blank side": 1}  # the ends are no pairs


def test_the_first_of_equal_pairs_is_kept() -> None:
    pairs = [("a", "b"), ("a", "c"), ("a", "b"), ("b", "a"), ("a", "b")]
    dropped: Counter[str] = Counter()
    rules = Cleaning(dedup=True)
    rows = divide("train", pairs, rules, Division(), dropped)
    assert [pair for _, *pair in rows] == [
        ["a", "b"],
        ["a", "c"],
        ["b", "a"],
    ]
    assert dropped == {"the same pair again": 2}
    kept = divide("test", pairs, rules, Division(), Counter())
    assert len([*kept]) == 5  # a test set is as it is


@pytest.mark.parametrize("same", ["ein Hund ", " ein  Hund", "ein\tHund\r"])
def test_stray_spaces_make_no_other_source_and_no_other_pair(
    same: str,
) -> None:
    division = Division("source", 97, valid=0, test=1)
    pairs = [("ein Hund", "a dog"), (same, "a dog"), ("ein", "a")]
    dropped: Counter[str] = Counter()
    rules = Cleaning(dedup=True)
    [one, other] = divide("train", pairs, rules, Division(), dropped)
    assert (one[1], other[1]) == ("ein Hund", "ein")
    assert dropped == {"the same pair again": 1}
    for number in range(500):  # wherever its checksum leads
        clean, stray = f"{number} ein Hund", f"{number} {same}"
        assert division.split(0, clean) == division.split(0, stray)


def test_a_french_space_is_no_stray_one() -> None:
    """Nor do sets move that have been divided with it."""
    division = Division("source", 1000)
    for text in ("Courez\u202f!", "Courez\u00a0!"):
        number = zlib.crc32(text.encode()) % 1000
        held = dataclasses.replace(division, valid=number)
        assert held.split(0, text) == "valid"


def test_a_pair_with_another_tag_is_another() -> None:
    tags = iter(["<a>", "<b>", "<a>"])
    dropped: Counter[str] = Counter()
    pairs = [("x", "y")] * 3
    rules = Cleaning(dedup=True), Division()
    rows = divide("train", pairs, *rules, dropped, lambda: next(tags))
    assert len([*rows]) == 2
    assert dropped == {"the same pair again": 1}


@pytest.mark.parametrize("bad", ["b\0", "\udce4"])
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_what_is_no_text_is_in_no_split(split: str, bad: str) -> None:
    dropped: Counter[str] = Counter()
    pairs = [("a", "b"), ("", "c"), ("a", bad), (bad, "a")]
    rows = [*divide(split, pairs, Cleaning(), Division(), dropped)]
    assert bad not in "".join(map(str, rows))
    assert sum(dropped.values()) == 2 + (split == "train")
