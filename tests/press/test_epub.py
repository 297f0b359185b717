"""The story to take away: whole, and read without a network or a script."""

from __future__ import annotations

import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from press.archive import archive
from press.chapters import PressError
from press.epub import COVER, XHTML, epub, faults
from press.formulas import mathml, third
from press.notebooks import expected_notebooks

from .conftest import Book

MATH = "{http://www.w3.org/1998/Math/MathML}"


@pytest.fixture(scope="module")
def made(built: Book) -> Path:
    path = built.root / "dist" / "one.epub"
    assert "holds 4 chapters" in epub(built.root, path)
    return path


def page(made: Path, name: str) -> ET.Element:
    with zipfile.ZipFile(made) as book:
        return ET.fromstring(book.read(f"{name}.xhtml"))


def words(tree: ET.Element) -> str:
    return " ".join("".join(tree.itertext()).split())


def test_an_epub_is_whole(made: Path) -> None:
    assert faults(made) == []
    with zipfile.ZipFile(made) as book:
        names = book.namelist()
        first = book.infolist()[0]
        manifest = book.read("content.opf").decode()
        assert book.read("mimetype") == b"application/epub+zip"
    assert first.filename == "mimetype"
    assert first.compress_type == zipfile.ZIP_STORED
    assert not [n for n in names if n.endswith((".js", ".woff2"))]
    assert f'href="{COVER}"' in manifest
    for name, told in ((COVER, "cover-image"), ("02-one.xhtml", "mathml")):
        [item] = [x for x in manifest.splitlines() if f'"{name}"' in x]
        assert f'properties="{told}"' in item


def test_its_contents_are_the_parts_of_the_book(made: Path) -> None:
    links = [a.get("href") for a in page(made, "nav").iter(f"{XHTML}a")]
    chapters = ["00-preface.xhtml", "02-one.xhtml", "03-two.xhtml"]
    assert [x for x in links if x in chapters] == chapters
    assert "02-one.xhtml#section" in links
    assert "references.xhtml" in links
    assert not any("api" in (link or "") for link in links)


def test_a_page_has_what_it_printed_and_drew(made: Path) -> None:
    tree = page(made, "02-one")
    assert "no longer hidden" in words(tree)
    images = {i.get("alt"): i.get("src") for i in tree.iter(f"{XHTML}img")}
    assert str(images["A rising line"]).endswith(".svg")
    # only code folds
    folds = list(tree.iter(f"{XHTML}details"))
    assert folds and {one.get("class") for one in folds} == {"fold code"}
    # formulas need nobody to set them
    assert len(list(tree.iter(f"{MATH}math"))) >= 3
    assert "\\(" not in words(tree)


def test_answers_stand_at_the_end_of_their_page(made: Path) -> None:
    tree = page(made, "02-one")
    marked = {e.get("id"): e for e in tree.iter() if e.get("id")}
    end = set(marked["answers-here"].iter())
    told = words(marked["answers-here"])
    assert told.startswith("Answers")
    before = words(tree).partition(told)[0]
    assert "about 3" in before  # what can be chosen
    for answer in (
        "Right: the root of",
        "one thing.",
        "Look at",
        "print(1)",
    ):
        assert answer in told and answer not in before
    links = {a.get("href"): a for a in tree.iter(f"{XHTML}a")}
    answers = [mark for mark in marked if mark.startswith("answer-")]
    assert len(answers) == 4  # choices, outputs, a solution, a hint
    for mark in answers:
        question = mark.replace("answer", "question")
        assert marked[mark] in end and marked[question] not in end
        assert links[f"#{mark}"] not in end and links[f"#{question}"] in end
    assert words(links["#answer-3"]) == "Solution of exercise 2.1"


def test_nothing_waits_for_a_script(made: Path) -> None:
    tree = page(made, "03-two")
    for tag in ("script", "form", "input", "button", "style"):
        assert not list(tree.iter(f"{XHTML}{tag}")), tag
    stills = [
        i for i in tree.iter(f"{XHTML}img") if i.get("alt") == "A still"
    ]
    assert len(stills) == 1
    assert "Figure 3.1" in words(tree)
    assert list(tree.iter(f"{XHTML}table"))  # of pandas, too


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("</h1>", "</h2>", "02-one.xhtml is no XML"),
        (
            'href="03-two.xhtml',
            'href="04-gone.xhtml',
            "04-gone.xhtml: not there",
        ),
        ('href="03-two.xhtml', 'href="03-two.xhtml#gone', "no such place"),
        ('src="_images/', 'src="_images/x', "not there"),
        ('src="_images/', 'src="https://example.org/', "asks for https"),
        ("</body>", "<script/></body>", "has a script"),
    ],
)
def test_what_is_broken_is_told(
    made: Path, tmp_path: Path, old: str, new: str, told: str
) -> None:
    broken = tmp_path / "broken.epub"
    with (
        zipfile.ZipFile(made) as book,
        zipfile.ZipFile(broken, "w") as other,
    ):
        for name in book.namelist():
            text = book.read(name)
            if name == "02-one.xhtml":
                assert old.encode() in text
                text = text.replace(old.encode(), new.encode(), 1)
            other.writestr(name, text)
    assert any(told in fault for fault in faults(broken)), faults(broken)


@pytest.mark.parametrize(
    ("tex", "read"),
    [
        (r"x_1, \dots, x_n", "x1,…,xn"),
        (r"\frac12 + \tfrac{1}{n}", "12+1n"),
        (r"\Big(\prod_i p_i\Big)^{1/4}", "(∏ipi)1/4"),
        (r"a < b \cdot \sin x", "a<b⋅sinx"),
    ],
)
def test_formulas_are_xml(tex: str, read: str) -> None:
    for block in (False, True):
        tree = ET.fromstring(third(mathml(tex, block)))
        assert "".join("".join(tree.itertext()).split()) == read
        assert not any(one.get("displaystyle") for one in tree.iter())


def test_a_zip_has_the_site_and_the_notebooks(built: Book) -> None:
    built.write("book/notebooks/02-one.ipynb", "{}")  # of before
    built.write("book/notebooks/.ipynb_checkpoints/02-one.ipynb", "{}")
    path = built.root / "dist" / "one.zip"
    assert "files in" in archive(built.root, path)
    with zipfile.ZipFile(path) as zipped:
        names = set(zipped.namelist())
        index = zipped.read("attention-annotated/site/index.html")
        one = zipped.read("attention-annotated/notebooks/02-one.ipynb")
    assert index == (built.root / "site/index.html").read_bytes()
    made = expected_notebooks(built.root)
    assert one.decode() == made[built.root / "book/notebooks/02-one.ipynb"]
    site = (built.root / "site").rglob("*")
    files = sum(path.is_file() for path in site)
    assert len(names) == len(made) + files


def test_an_epub_that_is_not_whole_replaces_none(
    built: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "book.epub"
    out.write_text("the last one")
    monkeypatch.setattr("press.epub.faults", lambda made: ["a link: gone"])
    with pytest.raises(PressError, match="book.epub: a link: gone"):
        epub(built.root, out)
    assert out.read_text() == "the last one"
