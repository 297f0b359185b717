"""Tags and placeholders: corpora.marks, from page E16, and several corpora
that become one, from page E8.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from annotated.batches import Sentences
from annotated.corpora.marks import (
    _SLOTS,
    MarkedTokenizer,
    add_tokens,
    check_tags,
    missing,
    protecting,
    untagged,
    without_marks,
)
from annotated.corpora.prepare import Preparation, encode_pairs, prepare
from annotated.corpora.segmentation import Segmenter
from annotated.corpora.sentencepieces import (
    in_parts,
    kind_of,
    load_tokenizer,
    same_tokens,
    tag_before,
    tagged,
    tags_of,
)
from annotated.engine import translate as translating
from annotated.engine.errors import UsageError
from annotated.search import Hypothesis, SearchConfig
from annotated.tokens import EOS, Tokenizer
from tests.corpora.corpus import put, sentences, texts

TEXT = ["the word (of) a file is here", "wort, das hier steht"] * 20
PROTECT = [r"%\w", r"\{\w*\}", r"</?\w+>"]
KINDS = "bpe", "word", "wordpiece"


def marked(kind: str = "bpe", protect=PROTECT) -> Tokenizer:
    tokenizer = Tokenizer.train(TEXT, 320, kind)
    return add_tokens(tokenizer, ["<2de>", "<b>"], protect)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tag_is_one_token_wherever_it_stands(kind):
    tokenizer = marked(kind, [])
    plain = Tokenizer.train(TEXT, 320, kind)
    number = {tag: len(plain) + i for i, tag in enumerate(("<2de>", "<b>"))}
    line = "the word"
    [rest] = plain.encode([line])
    for text in (f"<2de> {line}", f"<2de>{line}", f"<2de>   {line}"):
        assert tokenizer.encode([text]) == [[number["<2de>"], *rest]]
    [ids] = tokenizer.encode(["the <2de><b> word"])
    tags = [i for i in ids if i >= len(plain)]
    assert tags == [*number.values()]
    assert kind_of(tokenizer) == kind
    assert len(tokenizer) == len(plain) + 2


@pytest.mark.parametrize("end", ["", " the"])
def test_a_word_that_is_long_is_not_spelt_over_a_tag(end):
    """The library does not spell long words: we do."""
    tokenizer = marked("wordpiece", [])
    long = "w" * 150
    [ids] = tokenizer.encode([f"<2de>{long}<b>{end}"])
    tags = [tokenizer.inner.token_to_id(tag) for tag in ("<2de>", "<b>")]
    [middle], last = tokenizer.encode([long]), tokenizer.encode([end])[0]
    assert ids == [tags[0], *middle, tags[1], *last]


ODD = [
    "<2de> Copy {file} to %s ({file})",
    "%s",
    "%s%d %s",
    "%s  two, spaces ",
    "(%s)",
    "<em>bold</em> <i>%s</i>",
    "\ue003 a character of its own, and {x}\ue000",
]


@pytest.mark.parametrize("line", ODD)
def test_a_line_comes_back_with_all_its_placeholders(line):
    tokenizer = marked()
    assert isinstance(tokenizer, MarkedTokenizer)
    [ids] = tokenizer.encode([line])
    [back] = tokenizer.decode([ids])
    assert tokenizer.restored(back, line) == line
    found = tokenizer.placeholders(line)
    assert tokenizer.slots(ids) == sorted(_SLOTS[: len(found)])
    assert tokenizer.missing(line, line) == []
    assert sorted(tokenizer.missing(line, "")) == sorted(found)


def test_a_tag_that_looks_like_markup_is_a_tag():
    tokenizer = marked()
    assert isinstance(tokenizer, MarkedTokenizer)
    assert tokenizer.placeholders("<b>x</b>") == ["</b>"]
    assert tokenizer.masked("<b>x</b>") == f"<b>x{_SLOTS[0]}"


def test_a_target_has_the_slots_of_its_source():
    tokenizer = marked()
    assert isinstance(tokenizer, MarkedTokenizer)
    source = "%s of {n}: %s"
    for target, wanted in (
        ("{n}: %s, %s", "102"),
        ("%d, %s", "0"),  # what the source lacks is text
        ("%s %s %s", "02"),
    ):
        masked = tokenizer.masked(target, source)
        assert [_SLOTS.index(c) for c in masked if c in _SLOTS] == [
            int(n) for n in wanted
        ]
        assert tokenizer.restored(masked, source) == target
    # more than there are slots
    many = " ".join(f"{{x{i}}}" for i in range(len(_SLOTS) + 5))
    masked = tokenizer.masked(many)
    assert masked.endswith("{x23} {x24}") and _SLOTS[-1] in masked
    assert tokenizer.restored(masked, many) == many
    # a slot that stands for nothing is left out
    assert tokenizer.restored(f"a{_SLOTS[3]}b", source) == "ab"


def test_pairs_are_encoded_with_the_slots_of_the_source():
    tokenizer = marked()
    source, target = "%s of {n}", "{n} %s"
    corpus = encode_pairs((tokenizer, tokenizer), ([source], [target]))
    texts = tokenizer.decode([corpus.src[0], corpus.tgt[0]])
    assert texts == [
        f"{_SLOTS[0]} of {_SLOTS[1]}",
        f"{_SLOTS[1]} {_SLOTS[0]}",
    ]


def test_marks_survive_the_file(tmp_path):
    for tokenizer in (marked(), marked("word"), marked("bpe", [])):
        tokenizer.save(tmp_path / "source.json")
        again = load_tokenizer(tmp_path / "source.json")
        assert same_tokens(tokenizer, again)
        assert type(again) is type(tokenizer)
        assert tags_of(again) == ["<2de>", "<b>"]
        assert again.encode(ODD) == tokenizer.encode(ODD)
    assert not same_tokens(marked(), marked("bpe", PROTECT[:1]))
    (tmp_path / "source.json").write_text('{"protect": ["x"]}')
    with pytest.raises(ValueError, match="no tokenizer"):
        load_tokenizer(tmp_path / "source.json")


def test_a_tag_of_the_command_is_put_before_lines_without_one():
    for protect in ([], PROTECT):
        plain = marked("bpe", protect)
        tokenizer = tagged(plain, "<2de>")
        lines = ["the %s", "<2de> the", "<b>the", " "]
        there = ["<2de> the %s", "<2de> the", "<b>the", " "]
        assert tokenizer.encode(lines) == plain.encode(there)
        assert same_tokens(tokenizer, plain)  # as it is saved
        assert [tag_before(plain, line) for line in lines] == [
            "",
            "<2de>",
            "<b>",
            "",
        ]
    with pytest.raises(UsageError, match="no tag '<2fr>': <2de>, <b>"):
        tagged(plain, "<2fr>")
    with pytest.raises(UsageError, match="no tag '<2fr>': it has none"):
        tagged(Tokenizer.train(TEXT, 320), "<2fr>")
    tags = ["<2de>", "<b>"]
    assert untagged("<b> <2de>the <b>", tags) == "the <b>"


def test_every_part_of_a_long_line_has_its_tags():
    tokenizer = marked("bpe", [])
    [head] = tokenizer.encode(["<2de><b>"])
    [rest] = tokenizer.encode(["the word " * 9])
    parts = in_parts(tokenizer, [*head, *rest], 7)
    assert [part[:2] for part in parts] == [head] * len(parts)
    assert [i for part in parts for i in part[2:]] == rest
    assert max(map(len, parts)) == 7
    assert in_parts(tokenizer, [*head, *rest], 99) == [[*head, *rest]]
    assert in_parts(tokenizer, head * 4, 3)  # tags alone come to an end


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_dropout_does_not_cut_what_is_marked(p):
    tokenizer = marked()
    rows = Sentences.of(tokenizer.encode([*ODD, *TEXT[:4]]))
    draw = np.random.default_rng(0)
    other = Segmenter(tokenizer).redrawn(rows, p, draw)
    first = tokenizer.inner.token_to_id("<2de>")
    for i in range(len(rows)):
        ours, theirs = rows[i].tolist(), other[i].tolist()
        assert tokenizer.decode([ours]) == tokenizer.decode([theirs])
        assert [n for n in ours if n >= first] == [
            n for n in theirs if n >= first
        ]
        assert p or ours == theirs


@pytest.mark.parametrize(
    ("tags", "complaint"),
    [
        (["2de"], "a word between two marks.*'2de'"),
        (["<2 de>"], "'<2 de>'"),
        (["<ß>"], "'<ß>'"),
        (["<s>"], "'<s>'"),
        (["<"], "'<'"),
        (["<" + "x" * 50 + ">"], "between two marks"),
        (["<a>", "<b>", "<a>"], "<a> is given twice"),
    ],
)
def test_what_can_be_no_tag_is_refused(tags, complaint):
    with pytest.raises(ValueError, match=complaint):
        check_tags(tags)


@pytest.mark.parametrize(
    ("protect", "complaint"),
    [
        (["("], r"protect '\('"),
        (["x*"], "must match a piece of text"),
        ([r"\b"], "must match a piece of text"),
        (["(?=ab)"], "must match a piece of text"),
        (["x" * 501], "at most 500"),
        (["(?P<a>x)", "(?P<a>y)"], "protect: redefinition"),
    ],
)
def test_what_protects_nothing_is_refused(protect, complaint):
    with pytest.raises(ValueError, match=complaint):
        protecting(protect)


def test_a_vocabulary_is_learned_without_marks():
    pieces = without_marks("<2de> a %s b", ["<2de>"], protecting(PROTECT))
    assert [*pieces] == ["", " a ", " b"]
    assert missing(Tokenizer.train(TEXT, 320), ["%s"], [""]) == []


@pytest.mark.parametrize("nbest", [1, 2])
def test_a_hypothesis_with_all_placeholders_comes_first(monkeypatch, nbest):
    """And whatever the search finds gets what the slots stand for."""
    tokenizer = marked()
    assert isinstance(tokenizer, MarkedTokenizer)
    line = "copy {a} to %s"
    # "%d" is no placeholder of the line, and stays text
    said = ["the {a}", "%s the {a} %d", "%s the {a}"]
    found = [
        Hypothesis([*ids, EOS], -1.0 - i, -1.0 - i)
        for i, ids in enumerate(tokenizer.encode_beside(said, [line] * 3))
    ]
    seen: list[int] = []
    model: Any = SimpleNamespace(config=None)

    def search(models, pieces, config, *_, **__):
        seen.append(config.nbest)
        return [found[:] for _ in pieces]

    monkeypatch.setattr(translating, "search_in_order", search)
    monkeypatch.setattr(translating, "_most_source", lambda *_: 50)
    answers = translating.translated(
        [model], (tokenizer, tokenizer), [line, ""],
        SearchConfig(beam=3, nbest=nbest),
    )  # fmt: skip
    assert seen == [3]
    assert [one.text for one in answers[0]] == said[1:][:nbest]
    assert [one.text for one in answers[1]] == [""]


@pytest.fixture
def two(tmp_path) -> list[tuple[Path, Path]]:
    """The same sources, into two languages."""
    src, tgt = sentences(200)
    other = [line[::-1] for line in tgt]
    files = [
        (put(tmp_path / "a.en", src), put(tmp_path / "a.de", tgt)),
        (put(tmp_path / "b.en", src), put(tmp_path / "b.fr", other)),
    ]
    return [*zip(*files, strict=True)]


def test_a_file_that_is_given_twice_is_two_pieces(tmp_path):
    a, b = (
        [put(tmp_path / f"{word}.{side}", [f"{word} {i}" for i in range(60)])
         for side in ("en", "de")]
        for word in ("one", "two")
    )  # fmt: skip
    made = Preparation.of_corpora(
        *zip(a, b, a), weights=[3, 1, 2], vocab=350, hold_out=10,
    )  # fmt: skip
    card = prepare(made, tmp_path / "out").manifest["splits"]["train"]
    first, other, again = (part["pairs"] for part in card["parts"])
    assert first == again
    assert card["pairs"] == 3 * first + other + 2 * again


def test_several_corpora_become_one(two, tmp_path):
    made = Preparation.of_corpora(
        *two, src_tags=["<2de>", "<2fr>"], weights=[3, 1], tags=("<x>",),
        vocab=350, hold_out=10,
    )  # fmt: skip
    assert (made.source, made.target) == ("en", "de-fr")
    assert made.tags == ("<x>", "<2de>", "<2fr>")
    ready = prepare(made, tmp_path / "out")
    card = ready.manifest["splits"]["train"]
    one, other = card["parts"]
    assert one == {
        "file": "a.en", "tag": "<2de>", "pairs": other["pairs"], "weight": 3,
    }  # fmt: skip
    assert card["pairs"] == len(ready.corpus("train")) == 4 * one["pairs"]
    assert "a.en, <2de>: " in ready.report() and "3 times" in ready.report()
    source, target = ready.tokenizers()
    assert tags_of(source) == [*made.tags]
    assert len(source) == len(target)
    for split in ("train", "valid", "test"):
        for line, answer in texts(ready, split):
            tag, text = line.split(maxsplit=1)
            straight = text.replace("wort", "word")
            assert answer == (
                straight if tag == "<2de>" else straight[::-1]
            )
    held = {
        (ready.folder / f"{s}.en").read_text() for s in ("valid", "test")
    }
    kept = {
        untagged(line, made.tags) for s in held for line in s.splitlines()
    }
    there = {line.split(maxsplit=1)[1] for line, _ in texts(ready, "train")}
    assert kept and not kept & there
    assert not [f for f in ready.findings if f.what.endswith("in train")]


def test_one_corpus_may_have_a_tag_and_files_of_its_own(two, tmp_path):
    (src, spare), (tgt, _) = two
    made = Preparation.of_corpora(
        [src], [tgt], src_tags=["<2de>"], valid=(spare, tgt), vocab=350,
        hold_out=10,
    )  # fmt: skip
    ready = prepare(made, tmp_path / "out")
    first = (ready.folder / "valid.en").read_text().splitlines()[0]
    assert first.startswith("<2de> ")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"src_tags": ["<a>"]}, "src_tags must be 2, one for each src"),
        ({"weights": [1, 2, 3]}, "weights must be 2.*not 3"),
        ({"weights": [1, 0]}, "weights must be at least 1, not 0"),
        ({"valid": ("v.de", "v.en")}, "valid goes with one src"),
        ({"tags": ("a",)}, "a tag is a word between two marks"),
        ({"protect": ("a*",)}, "protect 'a\\*' must match"),
    ],
)
def test_corpora_that_do_not_fit_are_refused(two, changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        Preparation.of_corpora(*two, **changes)


def test_a_tag_that_the_vocabulary_lacks_is_refused(two, tmp_path):
    (src, _), (tgt, _) = two
    begun = prepare(
        Preparation.of_corpora([src], [tgt], src_tags=["<a>"], vocab=350),
        tmp_path / "o",
    )
    again = Preparation.of_corpora([src], [tgt], src_tags=["<a>"])
    assert again.with_tokens(begun.folder).tags == ("<a>",)
    other = Preparation.of_corpora([src], [tgt], src_tags=["<b>"])
    with pytest.raises(ValueError, match="has no tag '<b>'"):
        other.with_tokens(begun.folder)


def test_placeholders_that_disagree_are_found(tmp_path):
    src = [f"open wort{i} [[{i}]]" for i in range(60)]
    tgt = [f"word{i} [[{i + (i == 7)}]] open" for i in range(60)]
    files = put(tmp_path / "x.de", src), put(tmp_path / "x.en", tgt)
    made = Preparation.of_corpora(
        *([file] for file in files), protect=(r"\[\[\d+\]\]",), vocab=300,
        hold_out=9,
    )  # fmt: skip
    ready = prepare(made, tmp_path / "out")
    [found] = [f for f in ready.findings if "--protect" in f.what]
    assert (found.count, found.examples) == (1, [[src[7], tgt[7]]])
    source, _ = ready.tokenizers()
    assert isinstance(source, MarkedTokenizer)
    assert source.protect == made.protect
    masked = {line.split()[-1] for line, _ in texts(ready, "train")}
    assert masked == {_SLOTS[0]}
