"""Prepared corpora: annotated.corpora.prepare, from page E8."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from annotated.cli import obey
from annotated.corpora import prepare as preparation
from annotated.corpora.cleaning import Cleaning, Division
from annotated.corpora.data import open_data
from annotated.corpora.prepare import (
    Preparation,
    Prepared,
    encode_pairs,
    of_files,
    of_folder,
    prepare,
    registered,
    usual_folder,
)
from annotated.corpora.reading import Part, Text
from annotated.engine.errors import DataError, RunError
from annotated.engine.recipes import RECIPES
from annotated.engine.runner import train_recipe
from annotated.engine.runs import Run
from annotated.engine.start import begin_run
from annotated.tokens import Tokenizer

SMALL = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 16,
    "d_ff": 32,
    "num_heads": 2,
    "batch_tokens": 200,
    "max_steps": 3,
    "save_every": 2,
    "keep": 1,
}


def put(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), "utf-8")
    return path


def sentences(count: int) -> tuple[list[str], list[str]]:
    """Pairs that can be told from each other."""
    draw = np.random.default_rng(0)
    rows = [draw.integers(0, 99, draw.integers(1, 9)) for _ in range(count)]
    src = [
        f"{i} " + " ".join(f"wort{n}" for n in row)
        for i, row in enumerate(rows)
    ]
    return src, [line.replace("wort", "word") for line in src]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    src, tgt = sentences(300)
    return put(tmp_path / "x.de", src), put(tmp_path / "x.en", tgt)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "CHUNK", 64)


def of(files: tuple[Path, Path], **changes) -> Preparation:
    return of_files(*files, **{"vocab": 400, "hold_out": 10} | changes)


def texts(ready: Prepared, split: str) -> list[tuple[str, str]]:
    corpus, tokenizers = ready.corpus(split), ready.tokenizers()
    sides = [
        t.decode([side[i].tolist() for i in range(len(side))])
        for t, side in zip(
            tokenizers, (corpus.src, corpus.tgt), strict=True
        )
    ]
    return list(zip(*sides, strict=True))


# --- what is to be prepared ---


def lines_of(*names: str) -> list[Part]:
    src, tgt = (Text(Path(name)) for name in names)
    return [Part(src, tgt, "lines")]


SPARE = Path("v.de"), Path("v.en")


@pytest.mark.parametrize(
    ("given", "split"),
    [
        ({}, {"valid": 0, "test": 1}),
        ({"valid": SPARE}, {"test": 0}),
        ({"test": SPARE}, {"valid": 0}),
        ({"valid": SPARE, "test": SPARE}, {}),
    ],
)
def test_two_files_are_divided_where_none_are_given(given, split):
    made = of_files(Path("a.de.gz"), Path("b.en"), **given)
    assert made == Preparation(
        name="pair",
        source="de",
        target="en",
        parts={"train": lines_of("a.de.gz", "b.en")}
        | {name: lines_of(*map(str, SPARE)) for name in given},
        division=Division("source", 100, **split),
    )
    # of two splits and one source in two nothing would be left
    few = len(split) + 1
    of_files(Path("a.de"), Path("b.en"), hold_out=few, **given)
    with pytest.raises(
        ValueError, match=f"hold_out must be above {few - 1}"
    ):
        of_files(Path("a.de"), Path("b.en"), hold_out=few - 1, **given)


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (("a.de.sgm", "b.en.sgm"), "segments"),
        (("a.de.xml", "b.en.xml"), "segments"),
        (("a.de.txt", "b.en.txt"), "lines"),
        (("a.tsv", None), "tsv"),
    ],
)
def test_a_file_is_read_as_its_name_says(names, form):
    src, tgt = (name and Path(name) for name in names)
    made = of_files(src, tgt, vocab=7)
    languages = ("source", "target") if tgt is None else ("de", "en")
    assert (made.source, made.target) == languages
    part = Part(Text(src), Text(tgt or src), form)
    assert made.parts == {"train": [part]} and made.vocab == 7


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("train.de", "de"),
        ("my.train.de.gz", "de"),
        ("train.de.txt.xz", "de"),
        ("train.de.bz2", "de"),
        ("train.de.sgm.gz", "de"),
        ("train.de.xml", "de"),
        ("train.de.txt", "de"),
        ("2024.01", None),
        ("german", None),
        ("german.txt", None),
    ],
)
def test_a_language_is_the_end_of_a_name(name, language):
    made = of_files(Path(name), Path("other.zz"))
    assert made.source == (language or "source")
    made = of_files(Path("other.zz"), Path(name))
    assert made.target == (language or "target")


def test_a_folder_has_a_test_or_not(tmp_path):
    own = tmp_path / "mine"
    own.mkdir()
    for split in ("train", "valid"):
        for language in ("de", "en"):
            put(own / f"{split}.{language}", ["x"])

    def expected(*splits):
        return Preparation(
            name="mine",
            source="de",
            target="en",
            parts={
                split: [
                    Part(
                        Text(own / f"{split}.de"), Text(own / f"{split}.en")
                    )
                ]
                for split in splits
            },
            vocab=9,
        )

    assert of_folder(own, "de", "en", vocab=9) == expected("train", "valid")
    put(own / "test.de", ["x"])
    with pytest.raises(DataError, match="has none of test.en"):
        of_folder(own, "de", "en")
    put(own / "test.en", ["x"])
    found = of_folder(own, "de", "en", vocab=9)
    assert found == expected("train", "valid", "test")


def test_a_registered_set_is_prepared_as_the_registry_says(monkeypatch):
    monkeypatch.setattr(preparation, "parts_of", lambda *about: [about])
    found = registered("iwslt14", vocab=500)
    assert found == Preparation(
        name="iwslt14",
        source="de",
        target="en",
        parts={
            split: [("iwslt14", split, "de", "en")]
            for split in preparation.registry()["iwslt14"]["splits"]
        },
        cleaning=Cleaning(**preparation.registry()["iwslt14"]["clean"]),
        division=Division(**preparation.registry()["iwslt14"]["divide"]),
        vocab=500,
        tokenizer="bpe",
    )
    other = registered("multi30k", "fr", "en")
    assert (other.source, other.target) == ("fr", "en")
    assert other.parts["test"] == [("multi30k", "test", "fr", "en")]
    assert (other.cleaning, other.vocab) == (Cleaning(), 4000)
    assert registered("multi30k", target="fr").source == "en"
    entry = preparation.registry()["multi30k"] | {"tokenizer": "word"}
    monkeypatch.setattr(preparation, "registry", lambda: {"x": entry})
    assert registered("x").tokenizer == "word"


def test_a_prepared_set_has_its_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path))
    found = usual_folder("iwslt14", "de", "en")
    assert found == tmp_path / "prepared" / "iwslt14.de-en"


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("name", ["../de", "", ".de", "d e"])
def test_a_language_is_a_part_of_a_files_name(files, side, name):
    with pytest.raises(ValueError, match=f"{side} must be the name of a"):
        of(files, **{side: name})
    assert of(files, **{side: "zh-Hant_1.x"})


def test_the_settings_are_all_that_decides_the_result(files):
    made = of(files, valid=files)
    found = made.settings()
    assert json.loads(json.dumps(found)) == found
    assert found["files"] == {
        str(path): preparation.file_hash(path) for path in files
    }
    assert found["parts"]["train"][0]["src"]["path"] == str(files[0])
    assert found["division"]["test"] == 0 and found["vocab"] == 400
    files[1].unlink()  # what reads it will say so
    assert set(made.settings()["files"]) == {str(files[0])}


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, ["b"]),
        ({"b": 1}, {"a": 1}, ["a", "b"]),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 2, "y": 2}}, ["x"]),
        ({"a": 1, "b": {"x": 1}}, {"a": 2, "b": {}}, ["a", "x"]),
        ({"a": {"x": 1}}, {"a": None}, ["a"]),
        ({"a": None}, {"a": {"x": 1}}, ["a"]),
        ({"a": {"x": 1}, "b": 0}, {"a": {}, "b": 1}, ["x", "b"]),
        ({"a": {"x": 1}}, {"a": {"x": 1}}, []),
    ],
)
def test_settings_that_differ_are_named(one, other, names):
    assert preparation._unlike(one, other) == names


# --- what comes of it ---


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
    monkeypatch.setattr(preparation, "CHUNK", 7)
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
        DataError, match="pair, train: 3 of 200 pairs: not UTF-8"
    ):
        prepare(of(files), tmp_path / "out")


def test_a_corpus_of_which_no_pair_is_held_out_is_refused(tmp_path):
    files = put(tmp_path / "x.de", ["a"]), put(tmp_path / "x.en", ["b"])
    with pytest.raises(
        DataError, match="pair: no pairs left for (valid|t)"
    ):
        prepare(of(files), tmp_path / "out")


def test_every_number_of_the_manifest_is_that_of_the_files(tmp_path):
    lines = ["a b", "c", "d e f"]
    names = [f"{s}.{side}" for s in ("train", "valid") for side in "xy"]
    paths = [put(tmp_path / name, lines) for name in names]
    put(paths[1], ["g", "h i", "\u200b"])
    put(paths[3], ["a", "b", "c"])
    made = of_folder(tmp_path, "x", "y", tokenizer="word", shared=False)
    ready = prepare(made, tmp_path / "out")
    manifest, folder = ready.manifest, ready.folder
    sizes = [len(t) for t in ready.tokenizers()]
    assert [manifest[f"{s}_vocab"] for s in ("source", "target")] == sizes
    assert manifest["format"] == 2 and manifest["remarks"] == []
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
    assert said[-1] == "valid: 3 pairs, 6 + 3 tokens"
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
    monkeypatch.setattr(preparation, "CHUNK", 1000)
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
        preparation._vocabularies(made, work, tmp_path, pairs)
        assert learnt == [
            ((src,), step, 400, "word"), ((tgt,), step, 400, "word")
        ]  # fmt: skip
    learnt.clear()
    preparation._vocabularies(of(files), work, tmp_path, 9)
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
    made = of_folder(own, "en", "de", vocab=400)
    ready = prepare(made, tmp_path / "out")
    assert texts(ready, "train") == list(zip(tgt, src, strict=True))
    assert set(ready.manifest["splits"]) == {"train", "valid"}


# --- the tokens of another ---


@pytest.mark.parametrize("shared", [True, False])
def test_the_tokens_of_another_folder_may_be_taken(files, tmp_path, shared):
    """With them its kind, and as many as the larger side has."""
    kind = "word" if shared else "bpe"
    lines, words = [f"a{i}" for i in range(50)], ["b"] * 50
    other = put(tmp_path / "y.de", lines), put(tmp_path / "y.en", words)
    begun = prepare(
        of(other, shared=shared, tokenizer=kind), tmp_path / "begun"
    )
    made = of(files, vocab=7).with_tokens(begun.folder)
    sizes = [len(t) for t in begun.tokenizers()]
    assert (made.shared, made.tokenizer) == (shared, kind)
    assert made.vocab == max(sizes) and (min(sizes) < max(sizes)) != shared
    assert made.tokens == begun.folder and made.name == "pair"
    ready = prepare(made, tmp_path / "out")
    taken = [begun.folder / f"{side}.json" for side in ("source", "target")]
    for path in taken:
        assert (ready.folder / path.name).read_bytes() == path.read_bytes()
    assert ready.settings["files"] == {
        str(path): preparation.file_hash(path) for path in (*files, *taken)
    }
    assert ready.settings["tokens"] == str(begun.folder)


def test_a_folder_without_whole_tokens_is_named(files, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError, match="empty has no vocabulary: no source.json"
    ):
        of(files).with_tokens(tmp_path / "empty")
    begun = prepare(of(files), tmp_path / "begun")
    (begun.folder / "target.json").write_text("{")
    with pytest.raises(DataError, match="target.json"):
        of(files).with_tokens(begun.folder)
    (begun.folder / "target.json").unlink()
    with pytest.raises(DataError, match="no vocabulary: no target.json"):
        begun.tokenizers()


# --- stopping ---


@pytest.mark.parametrize("stage", ["_clean", "_vocabularies", "_encode"])
def test_what_was_stopped_leaves_nothing_behind(
    files, tmp_path, monkeypatch, stage
):
    def breaks(*_):
        raise KeyboardInterrupt

    before = set(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(preparation, stage, breaks)
        with pytest.raises(KeyboardInterrupt):
            prepare(of(files), tmp_path / "out")
    assert set(tmp_path.iterdir()) == before
    prepare(of(files), tmp_path / "out").check()


def test_what_is_prepared_is_not_prepared_again(files, tmp_path, capsys):
    one = prepare(of(files), tmp_path / "out")
    before = (tmp_path / "out" / "corpus.json").stat().st_mtime_ns
    again = prepare(of(files), tmp_path / "out")
    assert again == one
    assert (tmp_path / "out" / "corpus.json").stat().st_mtime_ns == before
    with pytest.raises(RunError, match="with another vocab: delete it, or"):
        prepare(of(files, vocab=399), tmp_path / "out")
    changed = of(files, vocab=399, tokenizer="word")
    with pytest.raises(RunError, match="with another tokenizer, vocab:"):
        prepare(changed, tmp_path / "out")


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_has_changed_is_noticed_whatever_it_looks_like(
    files, tmp_path, which
):
    """Of the same size, and with the time of the old one."""
    prepare(of(files), tmp_path / "out")
    path, times = files[which], files[which].stat()
    path.write_bytes(path.read_bytes().replace(b"wor", b"WOR"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_mtime_ns == times.st_mtime_ns
    assert path.stat().st_size == times.st_size
    with pytest.raises(RunError, match=f"another {path}: delete it"):
        prepare(of(files), tmp_path / "out")


def test_a_file_that_was_copied_has_not_changed(files, tmp_path, capsys):
    prepare(of(files), tmp_path / "out")
    os.utime(files[0], (0, 0))
    prepare(of(files), tmp_path / "out")
    assert "already prepared" in capsys.readouterr().err


def test_a_folder_is_of_the_files_that_it_was_made_of(
    files, tmp_path, monkeypatch, capsys
):
    """Wherever the command is given: the same names may mean others."""
    for place, text in (("here", "a b"), ("there", "c d")):
        (tmp_path / place).mkdir()
        for name in ("x.de", "x.en"):
            lines = [f"{text} {i}" for i in range(200)]
            put(tmp_path / place / name, lines)
    names = Path("x.de"), Path("x.en")
    monkeypatch.chdir(tmp_path / "here")
    prepare(of(names), tmp_path / "out")
    monkeypatch.chdir(tmp_path / "there")
    with pytest.raises(RunError, match="another"):
        prepare(of(names), tmp_path / "out")
    here = [tmp_path / "here" / name for name in names]
    prepare(of(tuple(here)), tmp_path / "out")
    assert "already prepared" in capsys.readouterr().err


def test_of_two_that_prepare_at_once_the_second_is_refused(
    files, tmp_path, monkeypatch
):
    real = preparation._clean

    def meanwhile(*args):
        monkeypatch.setattr(preparation, "_clean", real)
        prepare(of(files, vocab=399), tmp_path / "out")
        return real(*args)

    monkeypatch.setattr(preparation, "_clean", meanwhile)
    with pytest.raises(RunError, match="not empty: choose another --out"):
        prepare(of(files), tmp_path / "out")
    ready = Prepared.open(tmp_path / "out")
    ready.check()
    assert ready.settings["vocab"] == 399


# --- one line is one line ---


BREAKS = "&#10;", "&NewLine;", "&#13;", "&#x2028;", "&#133;", "a&#10;b"


@pytest.mark.parametrize("end", BREAKS)
def test_an_entity_that_is_a_line_break_keeps_every_pair_together(
    tmp_path, end
):
    """One on each side, in different lines: as many lines as before."""
    src, tgt = sentences(400)
    src[6] += f" {end} x"
    tgt[389] += f" {end} y"
    files = put(tmp_path / "x.de", src), put(tmp_path / "x.en", tgt)
    ready = prepare(
        of(files, cleaning=Cleaning(unescape=True)), tmp_path / "o"
    )
    found = sum((texts(ready, s) for s in ("train", "valid", "test")), [])
    assert len(found) == 400
    for one, other in found:
        assert one.split()[0] == other.split()[0]
    for card in ready.manifest["splits"].values():
        assert min(card["dropped"].values(), default=0) >= 0
    for split in ("valid", "test"):
        for language in ("de", "en"):
            text = (ready.folder / f"{split}.{language}").read_text("utf-8")
            lines = text.split("\n")[:-1]
            assert len(lines) == ready.manifest["splits"][split]["pairs"]


def test_a_line_that_would_become_two_is_refused_with_its_place(
    files, tmp_path, monkeypatch
):
    """Whatever cleaning there will be: the user's file, and its line."""
    broken = files[0].read_text("utf-8").split("\n")[41]

    def line(self, text):
        return text.replace(" ", "\n") if text == broken else text

    monkeypatch.setattr(Cleaning, "line", line)
    with pytest.raises(DataError, match=f"{files[0]}, line 42: cleaning"):
        prepare(of(files), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pairs_that_get_lost_are_no_corpus(files, tmp_path, monkeypatch):
    real = preparation._encode

    def shorter(work, *args):
        for side in ("source", "target"):
            path = work / f"train.{side}"
            path.write_bytes(path.read_bytes() + b"more\n")
        real(work, *args)

    monkeypatch.setattr(preparation, "_encode", shorter)
    with pytest.raises(DataError, match="read back.*misaligned"):
        prepare(of(files), tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("&nbsp;", "a blank side"),
        ("&#10;", "a blank side"),
        ("a &amp; b c", "more than 3 words"),
        ("a &amp; b", None),
    ],
)
def test_a_pair_is_judged_as_it_will_be_written(tmp_path, text, why):
    src, tgt = (["a b"] * 100 for _ in range(2))
    src[30] = text
    files = put(tmp_path / "x.de", src), put(tmp_path / "x.en", tgt)
    rules = Cleaning(unescape=True, max_words=3)
    made = of(files, cleaning=rules, valid=files, test=files)
    card = prepare(made, tmp_path / "out").manifest["splits"]["train"]
    assert card["dropped"] == ({why: 1} if why else {})


def test_bytes_that_are_no_text_are_written_as_the_tokenizer_reads_them(
    files, tmp_path
):
    src = files[0].read_bytes()
    test = tmp_path / "test.de", files[1]
    test[0].write_bytes(src.replace(b"wort", b"w\xe4rt\0", 1))
    ready = prepare(of(files, test=test), tmp_path / "out")
    text = (ready.folder / "test.de").read_text("utf-8")
    assert text.count("w\ufffdrt\0") == 1 and "?" not in text
    assert [t for t, _ in texts(ready, "test")] == text.split("\n")[:-1]


# --- what cannot be used ---


def test_lines_without_a_partner_are_refused(files, tmp_path):
    put(files[1], ["one"])
    with pytest.raises(
        DataError, match="x.de has 300 lines but .*x.en has 1"
    ):
        prepare(of(files), tmp_path / "out")


def test_a_corpus_of_which_nothing_is_left_is_refused(tmp_path):
    files = (
        put(tmp_path / "x.de", [""] * 9),
        put(tmp_path / "x.en", ["a"] * 9),
    )
    with pytest.raises(
        DataError, match="no pairs left for train.*blank side': 9"
    ):
        prepare(of(files), tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"vocab": 0}, "vocab"), ({"vocab_pairs": 0}, "vocab_pairs"),
     ({"target": "de"}, "are both"), ({"hold_out": 2}, "hold_out")],
)  # fmt: skip
def test_wrong_settings_are_named(files, changes, field):
    with pytest.raises(ValueError, match=field):
        of(files, **changes)


def test_a_damaged_folder_is_named(files, tmp_path):
    ready = prepare(of(files), tmp_path / "out")
    path = ready.folder / "train.src.ids.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-2])
    with pytest.raises(
        DataError, match=r"train.src.ids.npy should have .* has \d"
    ):
        Prepared.open(ready.folder)
    path.write_bytes(content[:-2] + b"xx")
    with pytest.raises(DataError, match="has changed since it was made"):
        Prepared.open(ready.folder).check()
    path.unlink()
    with pytest.raises(DataError, match="is missing: prepare the corpus"):
        Prepared.open(ready.folder)
    (ready.folder / "corpus.json").write_text("{")
    with pytest.raises(DataError, match="corpus.json is damaged"):
        Prepared.open(ready.folder)
    with pytest.raises(DataError, match="is not a prepared corpus"):
        Prepared.open(tmp_path)


def test_another_form_of_folder_is_refused(files, tmp_path):
    ready = prepare(of(files), tmp_path / "out")
    path = ready.folder / "corpus.json"
    path.write_text(json.dumps(ready.manifest | {"format": 9}))
    with pytest.raises(DataError, match="format 9, .* reads format 2"):
        Prepared.open(ready.folder)


# --- training from it ---


@pytest.fixture
def ready(files, tmp_path):
    return prepare(of(files), tmp_path / "out")


def recipe_of(ready, **changes):
    values = {**SMALL, "data": str(ready.folder), "fit": ()} | changes
    return RECIPES["pair"].changed(**values)


def test_a_run_takes_its_words_and_languages_from_the_folder(
    ready, tmp_path, capsys
):
    train_recipe(recipe_of(ready), tmp_path / "run", device="cpu")
    run = Run.open(tmp_path / "run")
    assert (run.recipe.source, run.recipe.target) == ("de", "en")
    assert run.recipe.vocab == 400
    tokenizer = Tokenizer.load(ready.folder / "source.json")
    assert run.source.inner.get_vocab() == tokenizer.inner.get_vocab()
    said = capsys.readouterr().err
    assert "prepared with vocab 400: the recipe's 8000 is ignored" in said
    assert "source" not in said
    more = recipe_of(ready, max_steps=4)
    assert train_recipe(more, tmp_path / "run", resume=True)["steps"] == 4


def test_a_run_may_go_the_other_way(ready):
    backwards = recipe_of(ready, source="en", target="de")
    run, corpus, _ = begin_run(backwards, ready.folder.with_name("run"))
    assert (run.recipe.source, run.recipe.target) == ("en", "de")
    there = ready.corpus("train").tgt
    assert corpus.src[3].tolist() == there[3].tolist()


def test_a_run_may_take_the_first_pairs(ready, tmp_path):
    recipe = recipe_of(ready, train_pairs=17)
    _, corpus, _ = begin_run(recipe, tmp_path / "run")
    assert len(corpus) == 17
    assert corpus.tgt[16].tolist() == ready.corpus("train").tgt[16].tolist()


def test_one_matrix_wants_one_vocabulary(files, tmp_path):
    two = prepare(of(files, shared=False), tmp_path / "two")
    with pytest.raises(DataError, match="tie must be decoder or none"):
        open_data(recipe_of(two))
    open_data(recipe_of(two, tie="decoder"))


def test_the_recipe_pair_says_that_it_wants_data(tmp_path):
    with pytest.raises(DataError, match="data prepare pair --src"):
        train_recipe(RECIPES["pair"], tmp_path / "run")


# --- the command line ---


def test_the_command_line_prepares_and_shows(files, tmp_path, capsys):
    obey(
        [
            "data",
            "prepare",
            "pair",
            "--src",
            str(files[0]),
            "--tgt",
            str(files[1]),
        ]
        + ["--vocab", "400", "--hold-out", "10"]
        + ["--max-words", "7", "--out", str(tmp_path / "out")]
    )
    said = capsys.readouterr().out
    assert "dropped, more than 7 words" in said
    obey(["data", "show", str(tmp_path / "out")])
    assert "intact" in capsys.readouterr().out
    obey(["data", "list"])
    assert "wmt14-en-fr" in capsys.readouterr().out
    obey(["data", "show", "wmt14-en-de"])
    assert "about 4.5 million pairs" in capsys.readouterr().out


def test_a_data_set_is_prepared_where_training_looks_for_it(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path))
    src, tgt = sentences(100)
    folder = tmp_path / "tatoeba"
    folder.mkdir()
    put(
        folder / "deu.txt",
        [f"{e}\t{d}" for e, d in zip(tgt, src, strict=True)],
    )
    obey(["data", "prepare", "tatoeba", "--vocab", "400"])
    assert (
        tmp_path / "prepared" / "tatoeba.en-de" / "corpus.json"
    ).exists()
    recipe = RECIPES["pair"].changed(
        data="tatoeba", source="en", target="de"
    )
    assert open_data(recipe).recipe.vocab == 400
    assert "prepared" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("data prepare pair --tgt b --out x", "give --src and --tgt"),
        ("data prepare pair --src a --tgt b", "give --out"),
        ("data prepare nothing --out x", "unknown data set 'nothing'"),
        ("data prepare . --out x", "a folder needs --source"),
        ("data show nothing", "unknown data set 'nothing'"),
        ("data prepare tatoeba --source xx", "no language 'xx'"),
    ],
)
def test_what_cannot_be_prepared_is_told_in_a_line(line, complaint):
    with pytest.raises(ValueError, match=complaint):
        obey(line.split())


def test_columns_without_languages_are_source_and_target(tmp_path):
    rows = [f"{s}\t{t}" for s, t in zip(*sentences(200), strict=True)]
    ready = prepare(
        of_files(put(tmp_path / "x.tsv", rows), vocab=400, hold_out=20),
        tmp_path / "out",
    )
    languages = [ready.settings[side] for side in ("source", "target")]
    assert languages == ["source", "target"]
    found = sum((texts(ready, s) for s in ("train", "valid", "test")), [])
    assert sorted(f"{s}\t{t}" for s, t in found) == sorted(rows)


def test_one_file_as_both_sides_is_read_as_lines(tmp_path):
    """Not as columns: it has no tabs, and need not have any."""
    lines, _ = sentences(200)
    file = put(tmp_path / "x.de", lines)
    made = of_files(file, file, target="copy", vocab=400, hold_out=20)
    ready = prepare(made, tmp_path / "out")
    found = sum((texts(ready, s) for s in ("train", "valid", "test")), [])
    assert sorted(found) == sorted(zip(lines, lines, strict=True))


def test_text_that_is_escaped_and_tokenised_is_told(tmp_path, capsys):
    src = [f"Es ist {i} , &quot; ja &quot; ." for i in range(100)]
    tgt = [f"It is {i} , &quot; yes &quot; ." for i in range(100)]
    files = put(tmp_path / "x.de", src), put(tmp_path / "x.en", tgt)
    ready = prepare(of(files), tmp_path / "one")
    said = capsys.readouterr().err
    assert "the text is escaped" in said and "--unescape" in said
    assert "the text is tokenised" in said
    recipe = recipe_of(ready)
    assert any("tokenised" in note for note in open_data(recipe).notes)
    prepare(of(files, cleaning=Cleaning(unescape=True)), tmp_path / "two")
    said = capsys.readouterr().err
    assert "escaped" not in said and "tokenised" in said
