"""What looks dirty in a text, and its nearest neighbours: page E34."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from annotated.batches import Sentences
from annotated.corpora import audit as module
from annotated.corpora import neighbours
from annotated.corpora.audit import Finding, audit, near_duplicates
from annotated.corpora.neighbours import nearest
from annotated.corpora.pairs import TextPair
from annotated.corpora.prepare import Preparation, Prepared, prepare
from annotated.corpora.reading import Text
from annotated.pocket import pocket_pairs
from tests.corpora.corpus import put

Pairs = list[tuple[str, str]]
CLEAN = [(p.source, p.target) for p in pocket_pairs(1000, "train")]


def text_of(folder: Path, name: str, pairs: Pairs) -> TextPair:
    sides = zip(*pairs, strict=True)
    files = (
        Text(put(folder / f"{name}.{side}", [*lines]))
        for side, lines in zip(("de", "en"), sides, strict=True)
    )
    return TextPair(*files)


def found(folder: Path, spoilt: Pairs, **splits: Pairs) -> list[Finding]:
    """What is found beyond what clean text has."""
    train = [*CLEAN, *spoilt]
    texts = {"train": text_of(folder, "train", train)} | {
        split: text_of(folder, split, some)
        for split, some in splits.items()
    }
    return audit(texts)


# each with a pair that differs from it in what makes it dirty
DIRTY = {
    "both sides are the same": (
        [("Der Hund .", "Der Hund ."), ("OK", "OK")], ("42 %", "42 %"),
    ),
    "a side is in another script": (
        [("Wer ist das ?", "Кто это ?"), ("你好世界", "Hello , Anna .")],
        ("Die Kraft μ ist groß .", "The force μ is big ."),
    ),
    "a side is in the other side's language": (
        [
            ("Anna sieht den Hund nicht .", "Anna sieht diesen Hund nicht ."),
            ("The dog is not here .", "The dog is here ."),
        ],
        ("Der Hund ist nicht hier .", "The dog is not here ."),
    ),
    "numbers disagree": (
        [("120 Hunde .", "210 dogs ."), ("Im Jahr 1999 .", "That year .")],
        ("3 von 1.250.000 , 1 999", "Three of 1,250,000 , 1999"),
    ),
    "placeholders disagree": (
        [("%s ist da", "%d is here"), ("{name}, %(n)d", "{nom}, %(n)d")],
        ("%1$s und %2$d, 50 %, {x}", "{x}: %2$d and %1$s, 50%"),
    ),
    "markup is broken or disagrees": (
        [("<b>Der</b> Hund", "<b>The dog"), ("ein <i>Hund</i>", "a dog")],
        ("<b>Der</b><br> Hund, 2 < 3", "<b>The</b><br> dog, 2 < 3"),
    ),
    "one side is unusually long": (
        [("Ja , ja .", "Yes " * 30), ("Nein , " * 30, "No , no .")],
        ("Ja .", "Yes , certainly ."),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DIRTY)
def test_dirt_is_found_counted_and_shown(tmp_path: Path, what: str) -> None:
    dirty, clean = DIRTY[what]
    same = [
        f
        for f in found(tmp_path, [*dirty, clean])
        if f.what.startswith(what)
    ]
    [finding] = same
    assert finding.count == len(dirty)
    assert finding.of == len(CLEAN) + len(dirty) + 1
    assert finding.examples == [[*pair] for pair in dirty]
    assert str(finding).startswith(f"{finding.what}: {len(dirty)} of 1,0")


def test_clean_text_has_no_findings_but_what_comes_again(tmp_path) -> None:
    whats = {f.what.partition(",")[0] for f in found(tmp_path, [])}
    assert whats <= {"pairs that come again"}


def test_pairs_that_come_again_are_told_from_those_that_nearly_do(tmp_path):
    before = {f.what: f.count for f in found(tmp_path, [])}
    odd = [("Qualle", "jellyfish")] * 3 + [
        ("_Qualle 7!", "<b>Jellyfish</b>")
    ]
    after = {f.what: f.count for f in found(tmp_path, odd)}
    for what, more in (("letter for letter", 2), ("but for case", 1)):
        [name] = [n for n in after if what in n]
        assert after[name] - before.get(name, 0) == more


def test_what_is_held_out_and_in_the_training_set_is_found(
    tmp_path,
) -> None:
    test = [
        ("Qualle", "a"),
        ("QUALLE!", "b"),
        ("Rochen", "ray"),
        ("q", "jelly"),
    ]
    train = [("Qualle", "jelly"), ("Wal", "whale")]
    told = {
        f.what: (f.count, f.of, f.examples)
        for f in found(tmp_path, train, test=test)
        if "test" in f.what
    }
    near = (
        "sources of test are in train, but for case, numbers, punctuation"
    )
    assert told == {
        "sources of test are in train": (1, 4, [["Qualle"]]),
        near: (1, 4, [["QUALLE!"]]),
        "targets of test are in train": (1, 4, [["jelly"]]),
    }


def test_two_texts_of_one_language_are_not_taken_for_each_other(tmp_path):
    pairs = [(src, src.replace("Hund", "Pudel")) for src, _ in CLEAN[:300]]
    told = audit({"train": text_of(tmp_path, "train", pairs)})
    assert not [f for f in told if "language" in f.what]


def test_a_text_in_a_script_that_is_not_known_is_left_alone(
    tmp_path,
) -> None:
    pairs = [("አማርኛ ነው", "this is it"), ("ሰላም ለዓለም", "hello , world")] * 9
    told = audit({"train": text_of(tmp_path, "train", pairs)})
    assert not [f for f in told if "script" in f.what]


def similarity(
    one: list[int], other: list[int], rare: dict[int, float]
) -> float:
    shared = sum(rare[i] ** 2 for i in {*one} & {*other})
    return shared / (sum(rare[i] ** 2 for i in other) ** 0.5 + 1e-6)


def test_the_nearest_sentence_is_that_of_the_definition(
    monkeypatch,
) -> None:
    """However the corpus is cut."""
    monkeypatch.setattr(neighbours, "_FEW", 0)
    draw = np.random.default_rng(0)
    rows = [
        draw.integers(0, 60, draw.integers(1, 9)).tolist()
        for _ in range(80)
    ]
    queries = [draw.integers(0, 70, 5).tolist() for _ in range(20)]
    often = {i: sum(i in row for row in rows) for i in range(70)}
    rare = {
        i: 0.0 if n > 80 / 3 else float(np.log(80 / max(n, 1)))
        for i, n in often.items()
    }
    for part in (7, 1000):
        monkeypatch.setattr(neighbours, "_PART", part)
        best = nearest(queries, Sentences.of(rows, np.uint16))
        for query, i in zip(queries, best, strict=True):
            most = max(similarity(query, row, rare) for row in rows)
            assert similarity(query, rows[i], rare) == pytest.approx(
                most, 1e-5
            )


def test_a_query_that_shares_nothing_gets_the_first_sentence() -> None:
    corpus = Sentences.of([[5, 6], [7, 8]])
    assert nearest([[1], [], [8]], corpus).tolist() == [0, 0, 1]


def test_nearly_equal_sentences_are_found_where_rapidfuzz_is() -> None:
    pytest.importorskip("rapidfuzz")
    line = "the big dog sees a small cat near the old house of Anna"
    words = line.split()
    train = Sentences.of([[*range(13)], [1, 2], [3, 9, 4]])
    held = Sentences.of([[*range(12)], [1, 2], [5, 4]])

    def text(rows) -> list[str]:
        return [" ".join(words[i] for i in row) for row in rows]

    finding = near_duplicates("test", held, train, text)
    assert (finding.count, finding.of) == (1, 3)  # the second is the same
    assert finding.examples == [text([range(12), range(13)])]
    assert (
        near_duplicates("test", Sentences.of([[5, 4]]), train, text) is None
    )


def test_without_rapidfuzz_nothing_is_compared(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "rapidfuzz.fuzz", None)
    assert (
        near_duplicates(
            "test", Sentences.of([[1]]), Sentences.of([[1]]), str
        )
        is None
    )


def test_the_report_of_a_preparation_says_what_looks_dirty(
    tmp_path,
) -> None:
    odd = [("Der Hund ist da .", "Der Hund ist da .")] * 2
    sides = zip(*CLEAN[:300], *odd, strict=True)
    files = [
        put(tmp_path / f"x.{i}", [*side]) for i, side in enumerate(sides)
    ]
    named = {"source": "de", "target": "en", "vocab": 400, "hold_out": 10}
    ready = prepare(Preparation.of_files(*files, **named), tmp_path / "out")
    said = Prepared.open(tmp_path / "out").report()
    assert "both sides are the same (--drop-copies): 2 of 302" in said
    assert "    Der Hund ist da .  |  Der Hund ist da ." in said
    whole = "\n".join(map(str, ready.findings))
    assert said.endswith(f"with three examples each:\n{whole}")
    assert module._shown("x" * 61) == "x" * 59 + "…"


@pytest.mark.parametrize(
    "line", ["<" + 100_000 * "a", "%" + 100_000 * "0", 50_000 * "< a"]
)
def test_a_long_odd_line_is_looked_at_in_passing(line: str) -> None:
    """Not once from each of its characters: that was an hour's work."""
    assert module._places(line) == []
    assert not module._markup(line, line)
    assert module._markup("<b>" + line, line)


def test_a_tag_may_be_long() -> None:
    link = f'<a href="{2000 * "x"}">Wort</a>'
    assert not module._markup(link, link)
    assert module._markup(link.removesuffix("</a>"), link)
