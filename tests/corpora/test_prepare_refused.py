"""What stops, is changed or cannot be used: corpora.prepare, page E8."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from annotated.corpora import prepare as preparation
from annotated.corpora.cleaning import Cleaning
from annotated.corpora.prepare import Prepared, prepare
from annotated.engine.errors import DataError, RunError
from tests.corpora.corpus import of, put, sentences, texts

pytestmark = pytest.mark.usefixtures("small_chunks")


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


@pytest.mark.parametrize(
    ("sides", "why"), [(1, "line i of one"), (2, "misaligned")]
)
def test_a_line_that_would_become_two_is_refused(
    files, tmp_path, monkeypatch, sides, why
):
    """Whatever cleaning there will be, and on both sides at once."""
    broken = {f.read_text("utf-8").split("\n")[41] for f in files[:sides]}

    def line(self, text):
        return text.replace(" ", "\n", 1) if text in broken else text

    monkeypatch.setattr(Cleaning, "line", line)
    with pytest.raises(DataError, match=why):
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


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("byte", [b"\xe4", b"\0"])
def test_bytes_that_are_no_text_are_nowhere(files, tmp_path, split, byte):
    """They were held out as U+FFFD, and as NULs."""
    given = tmp_path / "held.de", files[1]
    src = files[0].read_bytes()
    given[0].write_bytes(src.replace(b"wort", b"w" + byte + b"rt", 1))
    ready = prepare(of(files, **{split: given}), tmp_path / "out")
    text = (ready.folder / f"{split}.de").read_text("utf-8")
    assert "\ufffd" not in text and "\0" not in text
    card = ready.manifest["splits"][split]
    assert (card["read"], card["pairs"]) == (300, 299)
    assert sum(card["dropped"].values()) == 1
    given[0].write_bytes(src.replace(b"wort", byte))
    with pytest.raises(DataError, match=f"pair, {split}: .* of 300 pairs"):
        prepare(of(files, **{split: given}), tmp_path / "other")


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
        DataError,
        match=r"^pair: no pairs left for train \(9 read, 9 dropped, a blank "
        r"side\): it needs more text, or rules that drop less$",
    ):
        prepare(of(files), tmp_path / "out")


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_split_of_blank_lines_is_refused_before_it_is_trained_on(
    files, tmp_path, split
):
    blank = (
        put(tmp_path / "v.de", ["", " "]),
        put(tmp_path / "v.en", [""] * 2),
    )
    with pytest.raises(
        DataError,
        match=rf"no pairs left for {split} \(2 read, 2 dropped, a side "
        r"without tokens\): it needs more text",
    ):
        prepare(of(files, **{split: blank}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_held_out_lines_without_tokens_are_no_split(
    files, tmp_path, monkeypatch
):
    """What is cut from train has been read as a part of it."""
    real = preparation.encode_pairs

    def none_of_few(tokenizers, sides, kind):
        few = len(sides[0]) < 64
        return real(tokenizers, ([], []) if few else sides, kind)

    monkeypatch.setattr(preparation, "encode_pairs", none_of_few)
    with pytest.raises(DataError, match="for test .* a side without tok"):
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
    with pytest.raises(DataError, match="format 9, .* reads format 3"):
        Prepared.open(ready.folder)
