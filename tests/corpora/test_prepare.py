"""A prepared corpus, as it comes out: corpora.prepare, from page E8."""

from __future__ import annotations

import hashlib
import io
import sys
from pathlib import Path

import numpy as np
import pytest

from annotated.batches import Sentences
from annotated.corpora import prepare as preparation
from annotated.corpora.cleaning import Cleaning
from annotated.corpora.prepare import (
    Preparation,
    Prepared,
    _id_type,
    encode_pairs,
    prepare,
)
from annotated.engine.data import open_data
from annotated.engine.errors import DataError
from annotated.engine.recipes import RECIPES
from annotated.tokens import Tokenizer
from tests.corpora.corpus import of, put, sentences, texts

pytestmark = pytest.mark.usefixtures("small_chunks")


def test_every_pair_is_in_one_split_and_in_order(files, tmp_path):
    ready = prepare(of(files), tmp_path / "out")
    found = {s: texts(ready, s) for s in ("train", "valid", "test")}
    pairs = list(zip(*sentences(300), strict=True))
    assert sorted(sum(found.values(), [])) == sorted(pairs)
    places = [pairs.index(pair) for pair in found["train"]]
    assert places == sorted(places)
    assert len(found["train"]) > 64  # more than one chunk
    assert 10 < len(found["valid"]) < 60


def test_the_folder_is_all_there_is(files, tmp_path):
    ready = prepare(of(files), tmp_path / "out")
    assert {p.name for p in tmp_path.iterdir()} == {"x.de", "x.en", "out"}
    ready.check()
    texts_there = {p.name for p in ready.folder.glob("*.de")}
    assert texts_there == {"valid.de", "test.de"}  # train has ids alone
    assert ready.settings["source"] == "de"
    recipe = RECIPES["pair"].changed(
        data=str(ready.folder), source="de", target="en"
    )
    src, tgt = open_data(recipe).text("valid")
    assert list(zip(src, tgt, strict=True)) == texts(ready, "valid")


def test_it_is_the_same_however_it_is_cut(files, tmp_path, monkeypatch):
    one = prepare(of(files), tmp_path / "one")
    monkeypatch.setattr(preparation, "_CHUNK", 7)
    two = prepare(of(files), tmp_path / "two")
    assert one.fingerprint == two.fingerprint
    other = prepare(of(files, vocab=380), tmp_path / "other")
    assert other.fingerprint != one.fingerprint


def test_what_is_left_out_is_counted(tmp_path):
    src, tgt = sentences(100)
    src += ["", "Ja.", "wort " * 40, "gut"]
    tgt += [
        "word",
        "This is very much longer than yes is.",
        "word " * 40,
        "\t ",
    ]
    files = put(tmp_path / "x.de", src), put(tmp_path / "x.en", tgt)
    rules = Cleaning(max_words=30, ratio=4)
    ready = prepare(of(files, cleaning=rules), tmp_path / "out")
    card = ready.manifest["splits"]["train"]
    assert card["read"] == 104
    assert card["dropped"] == {
        "a blank side": 2,
        "more than 30 words": 1,
        "lengths differ by more than 4 times": 1,
    }
    kept = sum(c["pairs"] for c in ready.manifest["splits"].values())
    assert kept + sum(card["dropped"].values()) == card["read"]
    assert "dropped, a blank side: 2" in ready.report()


def test_a_bad_line_is_left_out_and_a_bad_file_refused(tmp_path):
    src, tgt = sentences(300)
    files = put(tmp_path / "x.de", src), put(tmp_path / "x.en", tgt)
    lines = files[0].read_bytes().split(b"\n")
    lines[7] += b"\xe4"
    files[0].write_bytes(b"\n".join(lines))
    ready = prepare(of(files), tmp_path / "out")
    dropped = ready.manifest["splits"]["train"]["dropped"]
    assert dropped == {"not UTF-8 text": 1}
    for byte, why in ((b"\xe4", "not UTF-8 text"), (b"\0", "a NUL byte")):
        files[0].write_bytes((byte + b" \n") * 300)
        with pytest.raises(DataError, match=f"300 of 300 pairs: {why}; "):
            prepare(of(files), tmp_path / "other")


@pytest.mark.parametrize("bad", [2, 3])
def test_one_line_in_a_hundred_may_be_no_text(tmp_path, bad):
    src, tgt = sentences(200)
    files = put(tmp_path / "x.de", src), put(tmp_path / "x.en", tgt)
    lines = files[1].read_bytes().split(b"\n")
    lines[:bad] = [b"\xe4"] * bad
    files[1].write_bytes(b"\n".join(lines))
    if bad == 2:
        prepare(of(files), tmp_path / "out")
        return
    with pytest.raises(
        DataError,
        match="pair, train: 3 of 200 pairs: not UTF-8 text; the first: "
        ".*x.en, line 1, byte 1: not UTF-8 text; save it",
    ):
        prepare(of(files), tmp_path / "out")


def test_a_corpus_of_which_no_pair_is_held_out_is_refused(tmp_path):
    files = put(tmp_path / "x.de", ["a"]), put(tmp_path / "x.en", ["b"])
    with pytest.raises(DataError) as told:
        prepare(of(files), tmp_path / "out")
    assert str(told.value) == (
        "pair: no pairs left for valid (1 read, none dropped): one source in "
        "10 is held out for it; give more text, a smaller --hold-out, or two "
        "files for --valid, or --divide-by block, if it was divided before"
    )


def test_every_number_of_the_manifest_is_that_of_the_files(tmp_path):
    lines = ["a b", "c", "d e f"]
    names = [f"{s}.{side}" for s in ("train", "valid") for side in "xy"]
    paths = [put(tmp_path / name, lines) for name in names]
    put(paths[1], ["g", "h i", "\u200b"])
    put(paths[3], ["a", "b", "c"])
    made = Preparation.of_folder(
        tmp_path, "x", "y", tokenizer="word", shared=False
    )
    ready = prepare(made, tmp_path / "out")
    manifest, folder = ready.manifest, ready.folder
    sizes = [len(t) for t in ready.tokenizers()]
    assert [manifest[f"{s}_vocab"] for s in ("source", "target")] == sizes
    assert manifest["format"] == 3 and manifest["remarks"] == []
    assert list(manifest["files"]) == sorted(manifest["files"])
    assert manifest["files"] == {
        path.name: {
            "bytes": path.stat().st_size,
            "sha256": preparation.file_hash(path),
        }
        for path in folder.iterdir()
        if path.name != "corpus.json"
    }
    for split, card in manifest["splits"].items():
        corpus = ready.corpus(split)
        assert card["pairs"] == len(corpus)
        assert card["source_tokens"] == corpus.src.lengths.sum()
        assert card["target_tokens"] == corpus.tgt.lengths.sum()
        assert card["read"] == 3
    assert (folder / "valid.x").read_text("utf-8").split("\n")[:3] == lines
    said = ready.report().split("\n")
    assert "valid: 3 pairs, 6 + 3 tokens" in said
    assert said[0].startswith("train: ")


def test_a_report_names_reasons_in_order():
    cards = {
        "train": {"pairs": 1234, "source_tokens": 5678,
                  "target_tokens": 91011, "dropped": {"b": 1, "a": 2000}},
        "valid": {"pairs": 1, "source_tokens": 2, "target_tokens": 3,
                  "dropped": {}},
    }  # fmt: skip
    assert Prepared(Path(), {"splits": cards}).report() == (
        "train: 1,234 pairs, 5,678 + 91,011 tokens\n"
        "  dropped, a: 2,000\n"
        "  dropped, b: 1\n"
        "valid: 1 pairs, 2 + 3 tokens"
    )


def test_a_report_of_many_files_names_the_ten_largest():
    parts = [
        {"file": f"{i}.po", "tag": "", "pairs": i, "weight": 1}
        for i in range(1, 13)
    ]
    card = {
        "pairs": 78, "source_tokens": 1, "target_tokens": 1,
        "parts": parts, "dropped": {},
    }  # fmt: skip
    lines = Prepared(Path(), {"splits": {"train": card}}).report()
    assert lines.splitlines()[1:] == [
        *(f"  {i}.po: {i}" for i in range(12, 2, -1)),
        "  2 other files: 3",
    ]


def test_a_split_that_is_not_there_is_named(files, tmp_path):
    ready = prepare(of(files, valid=files), tmp_path / "out")
    with pytest.raises(DataError, match="no split 'dev'; it has train, "):
        ready.corpus("dev")
    path = ready.folder / "valid.src.starts.npy"
    path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(
        DataError, match="valid.*: prepare the corpus again"
    ):
        ready.corpus("valid")


class Nothing:
    """A tokenizer of one token a letter; a point is none."""

    def encode(self, lines):
        return [[ord(c) for c in line if c != "."] for line in lines]


def test_pairs_with_a_side_without_tokens_are_left_out():
    sides = ["a", ".", "bc", "d"], ["x", "y", ".", "zz"]
    corpus = encode_pairs((Nothing(), Nothing()), sides, np.uint16)
    assert [corpus.src[i].tolist() for i in range(2)] == [[97], [100]]
    assert [corpus.tgt[i].tolist() for i in range(2)] == [[120], [122] * 2]
    assert len(corpus) == 2 and corpus.src.ids.dtype == np.uint16
    assert corpus.tgt.ids.dtype == np.uint16
    usual = encode_pairs((Nothing(), Nothing()), sides)
    assert usual.src.ids.dtype == usual.tgt.ids.dtype == np.int32
    with pytest.raises(ValueError, match="argument 2 is longer"):
        encode_pairs((Nothing(), Nothing()), (["a"], ["a", "b"]))


def test_lost_pairs_are_counted(files, tmp_path, monkeypatch):
    real = preparation.encode_pairs

    def some(tokenizers, sides, kind):
        return real(tokenizers, [side[3:] for side in sides], kind)

    monkeypatch.setattr(preparation, "encode_pairs", some)
    monkeypatch.setattr(preparation, "_CHUNK", 1000)
    ready = prepare(of(files, valid=files, test=files), tmp_path / "out")
    for card in ready.manifest["splits"].values():
        assert card["dropped"] == {"a side without tokens": 3}
        assert card["pairs"] == len(ready.corpus("test")) == 297


def test_every_nth_line_of_each_file_teaches_the_vocabulary(tmp_path):
    paths = [
        put(tmp_path / name, [f"{name}{i}" for i in range(count)])
        for name, count in (("a", 5), ("b", 4))
    ]
    lines = preparation._Lines(paths, 2)
    assert list(lines) == ["a0", "a2", "a4", "b0", "b2"] == list(lines)


def test_vocabularies_are_learnt_from_as_many_pairs_as_allowed(
    files, tmp_path, monkeypatch
):
    """The least n of which every nth pair is few enough."""
    learnt = []

    def train(texts, vocab, kind):
        learnt.append((texts.files, texts.step, vocab, kind))
        return Tokenizer.load(tmp_path / "t.json")

    prepare(of(files), tmp_path / "o").tokenizers()[0].save(
        tmp_path / "t.json"
    )
    monkeypatch.setattr(Tokenizer, "train", train)
    work = tmp_path / "work"
    src, tgt = work / "train.source", work / "train.target"
    for most, pairs, step in ((50, 100, 2), (50, 101, 3), (100, 99, 1)):
        learnt.clear()
        made = of(files, vocab_pairs=most, tokenizer="word", shared=False)
        preparation._vocabularies(made, work, pairs)
        assert learnt == [
            ((src,), step, 400, "word"), ((tgt,), step, 400, "word")
        ]  # fmt: skip
    learnt.clear()
    preparation._vocabularies(of(files), work, 9)
    assert learnt == [((src, tgt), 1, 400, "bpe")]


def test_only_the_beginning_is_looked_at_for_remarks(
    files, tmp_path, monkeypatch
):
    seen = []
    monkeypatch.setattr(
        preparation, "remarks", lambda lines: seen.append(lines) or ["so"]
    )
    ready = prepare(of(files), tmp_path / "out")
    assert ready.manifest["remarks"] == ["so"]
    src, tgt = sentences(32)
    assert seen == [[line for pair in zip(src, tgt) for line in pair]]


def test_so_many_pairs_are_in_memory_at_a_time(
    files, tmp_path, monkeypatch
):
    real, counts = preparation.encode_pairs, []

    def counted(tokenizers, sides, kind):
        counts.append(len(sides[0]))
        return real(tokenizers, sides, kind)

    monkeypatch.setattr(preparation, "encode_pairs", counted)
    prepare(of(files, valid=files, test=files), tmp_path / "out")
    assert counts == [64, 64, 64, 64, 44] * 3


def test_two_vocabularies_are_two(files, tmp_path):
    ready = prepare(of(files, shared=False), tmp_path / "out")
    src, tgt = ready.tokenizers()
    assert src.inner.get_vocab() != tgt.inner.get_vocab()
    back = ready.tokenizers("en")
    assert back[0].inner.get_vocab() == tgt.inner.get_vocab()
    assert (
        ready.corpus("train", "en").src[5].tolist()
        == ready.corpus("train").tgt[5].tolist()
    )


def test_sixteen_bits_are_enough_for_most_vocabularies(files, tmp_path):
    ready = prepare(of(files), tmp_path / "out")
    corpus = ready.corpus("train")
    assert corpus.src.ids.dtype == np.uint16
    assert isinstance(corpus.src.ids, np.memmap)


def test_the_arrays_are_those_that_numpy_would_save(files, tmp_path):
    """Although they are written bit by bit, their heads last."""
    ready = prepare(of(files), tmp_path / "out")
    corpus = ready.corpus("train")
    for name, side in (("src", corpus.src), ("tgt", corpus.tgt)):
        for kind in ("ids", "starts"):
            saved = io.BytesIO()
            np.save(saved, np.array(getattr(side, kind)))
            path = ready.folder / f"train.{name}.{kind}.npy"
            assert path.read_bytes() == saved.getvalue()


def test_a_fingerprint_is_that_of_the_files_in_order():
    made = Prepared(
        Path(), {"files": {"b": {"sha256": "34"}, "a": {"sha256": "12"}}}
    )
    digest = hashlib.sha256(b"1234").hexdigest()
    assert made.fingerprint == digest[:16]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_what_is_read_and_a_file_does_not(
    files, tmp_path, monkeypatch, capsys
):
    prepare(of(files, valid=files), tmp_path / "one")
    assert capsys.readouterr() == ("", "")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Terminal())
        prepare(of(files, valid=files), tmp_path / "two")
        said = sys.stderr.getvalue()
    assert "reading train: 300 pairs [" in said
    assert "reading valid: 300 pairs [" in said


def test_a_vocabulary_may_be_learnt_from_every_nth_pair(files, tmp_path):
    few = prepare(of(files, vocab_pairs=50), tmp_path / "few")
    all_ = prepare(of(files), tmp_path / "all")
    vocabs = [r.tokenizers()[0].inner.get_vocab() for r in (few, all_)]
    assert vocabs[0] != vocabs[1]


def test_files_for_validation_are_taken_as_they_are(files, tmp_path):
    valid = (
        put(tmp_path / "v.de", ["hallo"]),
        put(tmp_path / "v.en", ["hello"]),
    )
    ready = prepare(of(files, valid=valid), tmp_path / "out")
    assert texts(ready, "valid") == [("hallo", "hello")]
    assert ready.manifest["splits"]["valid"]["read"] == 1
    assert ready.manifest["splits"]["test"]["pairs"] > 10


def test_a_folder_of_files_can_be_prepared(tmp_path):
    src, tgt = sentences(100)
    own = tmp_path / "own"
    own.mkdir()
    for split in ("train", "valid"):
        put(own / f"{split}.de", src)
        put(own / f"{split}.en", tgt)
    made = Preparation.of_folder(own, "en", "de", vocab=400)
    ready = prepare(made, tmp_path / "out")
    assert texts(ready, "train") == list(zip(tgt, src, strict=True))
    assert set(ready.manifest["splits"]) == {"train", "valid"}


def test_ids_are_as_narrow_as_the_vocabulary_allows():
    assert _id_type(37_000) == _id_type(2**16) == np.uint16
    assert _id_type(2**16 + 1) == np.int32
    last = [[2**16 - 1]]
    assert Sentences.of(last, _id_type(2**16)).ids[0] == 2**16 - 1
