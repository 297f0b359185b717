"""The story on paper: the EPUB's pages as one, printed by Chromium."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from press import pdf as on_paper
from press.chapters import PressError
from press.epub import XHTML, epub
from press.pdf import chromium, joined, pdf

from .conftest import Book


@pytest.fixture(scope="module")
def whole(
    built: Book, tmp_path_factory: pytest.TempPathFactory
) -> ET.Element:
    folder = tmp_path_factory.mktemp("epub")
    epub(built.root, folder / "book.epub")
    with zipfile.ZipFile(folder / "book.epub") as book:
        book.extractall(folder)
    return joined(folder)


def test_every_link_leads_to_a_place_of_the_one_page(
    whole: ET.Element,
) -> None:
    marks = [e.get("id") for e in whole.iter() if e.get("id")]
    links = [a.get("href", "") for a in whole.iter(f"{XHTML}a")]
    assert len(marks) == len(set(marks))
    inside = [link[1:] for link in links if link.startswith("#")]
    assert len(inside) > 5 and set(inside) <= set(marks)
    assert not [x for x in links if x.partition("#")[0].endswith("xhtml")]
    assert "03-two--" in inside  # a whole chapter
    assert "02-one--section" in marks


def test_the_chapters_stand_in_their_order(whole: ET.Element) -> None:
    titles = [
        "".join(h.itertext()).strip(" ¶#") for h in whole.iter(f"{XHTML}h1")
    ]
    told = [t for t in titles if t in ("Preface", "2 · One", "3 · Two")]
    assert told == ["Preface", "2 · One", "3 · Two"]


def test_nothing_folds_but_code(whole: ET.Element) -> None:
    folds = [d.get("class") for d in whole.iter(f"{XHTML}details")]
    assert folds and set(folds) == {"fold code"}  # which is not printed
    marks = {e.get("id") for e in whole.iter()}
    assert {"02-one--answer-1", "02-one--question-1"} <= marks


def test_it_is_printed(built: Book, tmp_path: Path) -> None:
    try:
        chromium()
    except PressError:
        pytest.skip("no Chromium here (CHROMIUM=… may name one)")
    said = pdf(built.root, tmp_path / "dist" / "one.pdf")
    printed = (tmp_path / "dist" / "one.pdf").read_bytes()
    assert printed.startswith(b"%PDF-") and "holds the story" in said
    # the cover, the first page, four chapters, the references
    assert printed.count(b"/Type /Page\n") >= 7


def test_without_chromium_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    with pytest.raises(PressError, match="there is none: install it"):
        chromium()


def test_the_program_that_is_named_is_taken_or_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CHROMIUM", "mine")
    with pytest.raises(PressError, match="CHROMIUM=mine: there is no such"):
        chromium()  # it cannot be run
    mine.chmod(0o755)
    assert Path(chromium()) == mine


def test_what_prints_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, built: Book, tmp_path: Path
) -> None:
    monkeypatch.setattr(on_paper, "chromium", lambda: "/bin/false")
    (tmp_path / "one.pdf").write_text("the last one")
    with pytest.raises(PressError, match="/bin/false has printed nothing"):
        pdf(built.root, tmp_path / "one.pdf")
    assert (tmp_path / "one.pdf").read_text() == "the last one"


def test_a_program_that_does_not_end_is_ended_and_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    endless = tmp_path / "endless"
    endless.write_text("#!/bin/sh\nsleep 600\n")
    endless.chmod(0o755)
    monkeypatch.setattr(on_paper, "PATIENCE", 0.1)
    with pytest.raises(PressError, match="nothing: ended after 0.1"):
        on_paper._print(str(endless), tmp_path / "page", tmp_path / "pdf")
