"""Text in the target language alone, once it has been translated: what of
it is used for training, and what is left out.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from annotated.corpora.cleaning import Cleaning
from annotated.corpora.prepare import (
    Preparation,
    Prepared,
    count_lines,
    prepare,
)
from annotated.engine.errors import DataError

WORDS = ["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op", "qr", "st"]


def sentence(number: int) -> str:
    """A sentence of its own for each number."""
    return " ".join(WORDS[int(digit)] for digit in f"{number:04}") + " ."


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(f"{x}\n" for x in lines).encode())
    return path


@pytest.fixture
def real(tmp_path: Path) -> tuple[Path, Path]:
    """300 pairs; a source is its target in capitals."""
    lines = [sentence(i) for i in range(300)]
    capitals = [line.upper() for line in lines]
    return write(tmp_path / "r.en", capitals), write(
        tmp_path / "r.de", lines
    )


def made(real, translations, originals, tag="<bt>", weights=(), **more):
    """A corpus with translations, of word tokens."""
    folder = real[0].parent
    texts = [
        (
            write(folder / f"more{i}.de.en", some),
            write(folder / f"more{i}.de", others),
        )
        for i, (some, others) in enumerate(zip(translations, originals))
    ]
    options = {"hold_out": 10, "tokenizer": "word", "vocab": 100} | more
    plan = Preparation.of_files(*real, **options).with_back(
        texts, tag, weights
    )
    return prepare(plan, folder / "out")


def text(corpus: Prepared, split: str) -> list[tuple[str, str]]:
    rows = corpus.corpus(split)
    sides = zip(corpus.tokenizers(), (rows.src, rows.tgt), strict=True)
    return [
        *zip(*(one.decode([*side]) for one, side in sides), strict=True)
    ]


def test_translations_are_for_training_alone(real) -> None:
    lines = [sentence(i) for i in range(1000, 1100)]
    capitals = [line.upper() for line in lines]
    plain = prepare(
        Preparation.of_files(
            *real, hold_out=10, tokenizer="word", vocab=100
        ),
        real[0].parent / "plain",
    )
    corpus = made(real, [capitals], [lines])
    for split in ("valid", "test"):
        assert text(corpus, split) == text(plain, split)
    train = text(corpus, "train")
    own = len(text(plain, "train"))
    assert train[:own] == text(plain, "train")
    wanted = [(f"<bt> {x}", y) for x, y in zip(capitals, lines)]
    assert [
        (re.sub("<bt> *", "<bt> ", x), y) for x, y in train[own:]
    ] == wanted
    card = corpus.manifest["splits"]["train"]
    assert card["read"] == 400 and card["dropped"] == {}


def test_weights_count_the_real_text_and_then_the_others(real) -> None:
    lines = [
        [sentence(i) for i in some] for some in ((1000,), (2000, 2001))
    ]
    same = [[x.upper() for x in some] for some in lines]
    corpus = made(real, same, lines, weights=(3, 2))
    parts = corpus.manifest["splits"]["train"]["parts"]
    assert [(p["tag"], p["weight"]) for p in parts] == [
        ("", 1), ("<bt>", 3), ("<bt>", 2),
    ]  # fmt: skip
    said = [tgt for _, tgt in text(corpus, "train")[-7:]]
    assert said == lines[0] * 3 + lines[1] * 2


def test_what_is_held_out_does_not_come_back(real) -> None:
    """On either side, whatever its case and punctuation."""
    plain = prepare(
        Preparation.of_files(
            *real, hold_out=10, tokenizer="word", vocab=100
        ),
        real[0].parent / "plain",
    )
    held = [*text(plain, "valid"), *text(plain, "test")]
    targets = [tgt for _, tgt in held]
    changed = [x.upper().replace(" .", " !") for x in targets]
    others = [sentence(3000 + i) for i in range(len(held))]
    new = [x.upper() for x in others]
    originals = [*targets, *changed, *others, *others]
    sources = [src for src, _ in held]
    translations = [*new, *new, *sources, *new]
    corpus = made(real, [translations], [originals])
    card = corpus.manifest["splits"]["train"]
    assert card["dropped"] == {"it is in the held-out text": 3 * len(held)}
    train = text(corpus, "train")
    assert not {y for _, y in train} & set(targets)
    assert [y for _, y in train[-len(held) :]] == others


def test_what_no_translation_is_is_left_out_and_counted(real) -> None:
    good = [sentence(i) for i in range(1000, 1400)]
    pairs = [(x.upper(), x) for x in good]
    pairs[3] = "", good[3]
    pairs[5] = "AB " * 90, good[5]  # no end
    pairs[7] = "AB", " ".join(good[:5])  # hardly a beginning
    pairs[9] = "", ""
    pairs[11] = "", "\0"
    translations, originals = map(list, zip(*pairs))
    corpus = made(real, [translations], [originals])
    card = corpus.manifest["splits"]["train"]
    assert card["dropped"] == {
        "an empty translation": 1,
        "a translation of quite another length": 2,
        "a blank side": 1,
        "a NUL byte": 1,
    }
    assert card["read"] == 300 + 400
    report = corpus.report()
    assert "dropped, an empty translation: 1" in report
    assert "more0.de.en, <bt>: 395" in report


def test_rules_of_cleaning_hold_for_translations_too(real) -> None:
    lines = [sentence(1000), sentence(1000), sentence(1001)]
    said = [sentence(1000).upper(), sentence(1000).upper(), sentence(1001)]

    rules = Cleaning(dedup=True, drop_copies=True)
    corpus = made(real, [said], [lines], cleaning=rules)
    assert corpus.manifest["splits"]["train"]["dropped"] == {
        "the same pair again": 1,
        "both sides the same": 1,
    }


def test_translations_of_which_none_is_of_use_are_refused(real) -> None:
    lines = [sentence(1000), sentence(1001)]
    with pytest.raises(DataError, match="2 read, 2 dropped, an empty tr"):
        made(real, [["", " "]], [lines])
    assert not (real[0].parent / "out").exists()


def test_a_vocabulary_without_the_tag_is_refused(real) -> None:
    folder = real[0].parent
    plan = Preparation.of_files(
        *real, hold_out=10, tokenizer="word", vocab=100
    )
    prepare(plan, folder / "plain")
    plan = plan.with_tokens(folder / "plain")
    texts = [(real[0], real[1])]
    with pytest.raises(ValueError, match="no tag '<bt>': .*--back-tag ''"):
        plan.with_back(texts)
    assert plan.with_back(texts, tag="").parts["back"][0].tag == ""


def test_lines_are_counted_and_must_be_text(tmp_path: Path) -> None:
    path = tmp_path / "more.de"
    path.write_bytes(b"a\n" * 198 + b"\xff\n" + b"a")
    assert count_lines(path) == 200
    path.write_bytes(b"a\n" * 9 + b"\xff\n")
    with pytest.raises(DataError, match="1 of 10 pairs: .*line 10, byte 1"):
        count_lines(path)
    with pytest.raises(DataError, match="cannot be read"):
        count_lines(tmp_path / "none")
