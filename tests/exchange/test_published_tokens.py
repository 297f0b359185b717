"""Page E16: the tokens of a published model, and its languages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated.corpora.sentencepieces import SentencePieces, load_tokenizer
from annotated.engine.errors import RunError
from annotated.exchange.marian import Published, import_marian
from annotated.search import Hypothesis
from annotated.tokens import BOS, EOS, PAD, SPECIALS, UNK
from tests.exchange.published import (
    ENGLISH,
    GERMAN,
    KINDS,
    pieces,
    theirs,
    there,
)

ODD = [
    "", " ", "  Der   Hund ", "Ünïcödé 漢字 😀", "der\tHund", "a" * 300,
    "ein </s", ">>deu Hund", "▁der▁Hund", "\u00a0x\u200b", "ﬁnden",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["as most", "two vocabularies", "codes"])
def test_tokens_are_those_of_their_tokenizer(
    kind: str, published: Any
) -> None:
    place, _ = published(kind)
    coded = "codes" in KINDS[kind]
    found = Published.read(place, "deu" if coded else None)
    tokens, start = theirs(place), ">>deu<<" if coded else ""
    lines = [*GERMAN[:50], *ODD]
    given = tokens([start + line for line in lines]).input_ids
    for mine, other in zip(found.source.encode(lines), given):
        assert [*there(mine, found.rows[0]).tolist(), 0] == other
    lines = [*ENGLISH[:50], *ODD]
    given = tokens(text_target=lines).input_ids
    ids = found.target.encode(lines)
    for mine, other in zip(ids, given):
        assert [*there(mine, found.rows[1]).tolist(), 0] == other
    back = tokens.batch_decode(
        given, skip_special_tokens=True, use_source_tokenizer=False
    )
    assert found.target.decode(ids) == back
    assert found.target.decode(ids)[:50] == ENGLISH[:50]


def test_a_special_in_a_text_is_text(folder: Path) -> None:
    tokens = Published.read(folder).source
    [ids] = tokens.encode(["der </s> Hund <pad>"])
    assert not {PAD, BOS, EOS} & set(ids)
    tokens.encode(["\ud800"])  # half of a character, which has no UTF-8


@given(st.text(max_size=30))
@settings(deadline=None, max_examples=60)
def test_any_text_has_ids(models: tuple[bytes, bytes], text: str) -> None:
    tokens = SentencePieces(models[0], [*SPECIALS, *pieces(models[0])])
    [ids] = tokens.encode([text])
    assert all(UNK <= i < len(tokens) for i in ids)
    assert isinstance(tokens.decode([ids])[0], str)


def test_a_tokenizer_survives_being_written(
    folder: Path, tmp_path: Path
) -> None:
    tokens = Published.read(folder).source
    tokens.save(tmp_path / "source.json")
    again = load_tokenizer(tmp_path / "source.json")
    assert isinstance(again, SentencePieces)
    assert isinstance(tokens, SentencePieces)
    assert again.text() == tokens.text()
    assert again.encode(GERMAN) == tokens.encode(GERMAN)
    text = (tmp_path / "source.json").read_text()
    for damaged in (text[:-40], text.replace('"code"', '"cod"')):
        (tmp_path / "source.json").write_text(damaged)
        with pytest.raises(
            ValueError, match=r"source\.json is no tokenizer"
        ):
            load_tokenizer(tmp_path / "source.json")


def test_each_line_says_its_language(published: Any) -> None:
    tokens = Published.read(published("codes")[0], "fra").source
    assert isinstance(tokens, SentencePieces)
    code, other = (tokens.pieces.index(c) for c in (">>fra<<", ">>deu<<"))
    plain, own, text = tokens.encode(
        ["Hund", ">>deu<< Hund", ">>xyz<< Hund"]
    )
    assert plain[0] == code and own[0] == other and plain[1:] == own[1:]
    assert text[0] == code and len(text) > 3  # of no language that it has


def test_each_part_of_a_long_line_says_its_language(
    tmp_path: Path, published: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from annotated.engine import translate

    run = import_marian(published("codes")[0], tmp_path / "run", "fra")
    monkeypatch.setattr(translate, "_MAX_SOURCE", 5)
    seen: list[list[int]] = []

    def search(
        models: Any, sentences: Any, *others: Any, **more: Any
    ) -> Any:
        seen.extend(sentences)
        return [[Hypothesis([4], -1.0, -1.0)] for _ in sentences]

    monkeypatch.setattr(translate, "search_in_order", search)
    [ids] = run.source.encode([GERMAN[0]])
    run.translate([GERMAN[0], "", " "])
    assert len(seen) > 1 and all(len(part) <= 5 for part in seen)
    assert [part[0] for part in seen] == [ids[0]] * len(seen)
    assert [i for part in seen for i in part[1:]] == ids[1:]


@pytest.mark.parametrize(
    ("kind", "language", "reason"),
    [
        (
            "codes",
            None,
            "several languages: give --language; it has deu, fra",
        ),
        ("codes", "eng", "no such language; it has deu, fra"),
        ("as most", "deu", "translates into one language: omit --language"),
    ],
)
def test_a_language_is_checked(
    kind: str,
    language: str | None,
    reason: str,
    tmp_path: Path,
    published: Any,
) -> None:
    with pytest.raises(RunError, match=reason):
        import_marian(published(kind)[0], tmp_path / "run", language)
    assert not (tmp_path / "run").exists()
