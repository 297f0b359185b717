"""Prepared corpora: annotated.engine.prepare, from page E8."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from annotated.cli import obey
from annotated.engine import prepare as preparation
from annotated.engine.cleaning import Cleaning
from annotated.engine.data import open_data
from annotated.engine.errors import DataError, RunError
from annotated.engine.prepare import (
    Preparation,
    Prepared,
    of_files,
    of_folder,
    prepare,
)
from annotated.engine.recipes import RECIPES
from annotated.engine.runner import train_recipe
from annotated.engine.runs import Run, begin_run
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
    files[0].write_bytes(b"\xe4 \n" * 300)
    with pytest.raises(DataError, match="300 of 300 pairs are not UTF-8"):
        prepare(of(files), tmp_path / "other")


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
    test[0].write_bytes(src.replace(b"wort", b"w\xe4rt", 1))
    ready = prepare(of(files, test=test), tmp_path / "out")
    text = (ready.folder / "test.de").read_text("utf-8")
    assert text.count("w\ufffdrt") == 1 and "?" not in text
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
    with pytest.raises(DataError, match=r"train.src.ids.npy should have"):
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
