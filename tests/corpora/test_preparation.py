"""What is to be prepared: corpora.prepare, from page E8."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from annotated.corpora import prepare as preparation
from annotated.corpora.cleaning import Cleaning, Division
from annotated.corpora.pairs import TextPair
from annotated.corpora.prepare import Preparation, prepare, usual_folder
from annotated.corpora.reading import Text
from annotated.engine.errors import DataError
from tests.corpora.corpus import of, put

pytestmark = pytest.mark.usefixtures("small_chunks")


def lines_of(*names: str) -> list[TextPair]:
    src, tgt = (Text(Path(name)) for name in names)
    return [TextPair(src, tgt, "lines")]


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
    made = Preparation.of_files(Path("a.de.gz"), Path("b.en"), **given)
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
    Preparation.of_files(Path("a.de"), Path("b.en"), hold_out=few, **given)
    with pytest.raises(
        ValueError, match=f"hold_out must be above {few - 1}"
    ):
        Preparation.of_files(
            Path("a.de"), Path("b.en"), hold_out=few - 1, **given
        )


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (("a.de.sgm", "b.en.sgm"), "segments"),
        (("a.de.xml", "b.en.xml"), "segments"),
        (("a.de.txt", "b.en.txt"), "lines"),
        (("a.de.SGM.gz", "b.en.sgm.xz"), "segments"),
        (("a.de.sgm.gz", "b.en"), "segments+lines"),
        (("a.de", "b.en.XML"), "lines+segments"),
        (("a.tsv", None), "tsv"),
        (("a.tsv", "a.tsv"), "tsv"),
        (("a.TAB.gz", "a.TAB.gz"), "tsv"),
    ],
)
def test_a_file_is_read_as_its_name_says(names, form):
    src, tgt = (name and Path(name) for name in names)
    made = Preparation.of_files(src, tgt, vocab=7)
    one = tgt is None or tgt == src
    languages = ("source", "target") if one else ("de", "en")
    assert (made.source, made.target) == languages
    part = TextPair(Text(src), Text(tgt or src), form)
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
    made = Preparation.of_files(Path(name), Path("other.zz"))
    assert made.source == (language or "source")
    made = Preparation.of_files(Path("other.zz"), Path(name))
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
                    TextPair(
                        Text(own / f"{split}.de"), Text(own / f"{split}.en")
                    )
                ]
                for split in splits
            },
            vocab=9,
        )

    assert Preparation.of_folder(own, "de", "en", vocab=9) == expected(
        "train", "valid"
    )
    put(own / "test.de", ["x"])
    with pytest.raises(DataError, match="has none of test.en"):
        Preparation.of_folder(own, "de", "en")
    put(own / "test.en", ["x"])
    found = Preparation.of_folder(own, "de", "en", vocab=9)
    assert found == expected("train", "valid", "test")


def test_a_registered_set_is_prepared_as_the_registry_says(monkeypatch):
    def parts_of(*about: str) -> list[TextPair]:
        return lines_of("-".join(about), "b")

    monkeypatch.setattr(TextPair, "registered", parts_of)
    found = Preparation.registered("iwslt14", vocab=500)
    assert found == Preparation(
        name="iwslt14",
        source="de",
        target="en",
        parts={
            split: parts_of("iwslt14", split, "de", "en")
            for split in preparation.registry()["iwslt14"]["splits"]
        },
        cleaning=Cleaning(**preparation.registry()["iwslt14"]["clean"]),
        division=Division(**preparation.registry()["iwslt14"]["divide"]),
        vocab=500,
        tokenizer="bpe",
    )
    other = Preparation.registered("multi30k", "fr", "en")
    assert (other.source, other.target) == ("fr", "en")
    assert other.parts["test"] == parts_of("multi30k", "test", "fr", "en")
    assert (other.cleaning, other.vocab) == (Cleaning(), 8000)
    assert Preparation.registered("multi30k", target="fr").source == "en"
    entry = preparation.registry()["multi30k"] | {"tokenizer": "word"}
    monkeypatch.setattr(preparation, "registry", lambda: {"x": entry})
    assert Preparation.registered("x").tokenizer == "word"


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


def test_the_end_of_a_file_is_the_end_of_a_document(tmp_path):
    """And no pair that is read, or dropped."""
    names = [f"{letter}.{side}" for letter in "abcd" for side in ("x", "y")]
    files = [
        put(tmp_path / name, [f"{name[0]} {i}" for i in range(40)])
        for name in names
    ]
    made = Preparation.of_corpora(
        files[::2], files[1::2], divide_by="document", hold_out=4, vocab=99,
        tokenizer="word",
    )  # fmt: skip
    ready = prepare(made, tmp_path / "out")
    for split, letter in (("valid", "a"), ("test", "b")):
        lines = (ready.folder / f"{split}.x").read_text().splitlines()
        assert lines == [f"{letter} {i}" for i in range(40)]
    card = ready.manifest["splits"]["train"]
    assert (card["read"], card["pairs"], card["dropped"]) == (160, 80, {})
