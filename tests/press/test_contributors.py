"""What a file may look like that somebody else has written or left."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from press import worlds as played
from press.__main__ import main
from press.chapters import PressError, read_book, select
from press.execute import World
from press.export import export
from press.notebooks import notebooks
from press.release import release
from press.worlds import worlds
from tests.press.conftest import Book, code, exported


def refused(book: Book) -> str:
    with pytest.raises(PressError) as told:
        export(book.root)
    return str(told.value)


# --- characters that are not seen ---


@pytest.mark.parametrize(
    "sign, name",
    [("\u2028", "U+2028"), ("\x85", "U+0085"), ("\x0c", "U+000C")],
)
def test_a_line_that_ends_for_python_alone_is_refused(
    book: Book, sign: str, name: str
) -> None:
    """All below it would be cut from the page at the wrong lines."""
    book.chapter("02-one", f"Pasted{sign} words.", code("x = 1"), "End.")
    row = (
        book.read("book/02-one.md")
        .split("\n")
        .index(f"Pasted{sign} words.")
    )
    said = refused(book)
    assert f"book/02-one.md, line {row + 1}" in said and name in said
    assert "delete it" in said


def test_a_byte_order_mark_is_named(book: Book) -> None:
    path = book.chapter("02-one", exported("X = 1"), module="one")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert "byte order mark" in refused(book)


def test_exercises_are_read_as_pages_are(book: Book) -> None:
    book.chapter("02-one", ":::{graded} 02-x\n:::")
    path = book.write("book/exercises/02-x.md", "---\n---\n")
    path.write_bytes("Größe".encode("latin-1"))
    assert "book/exercises/02-x.md: cannot be read" in refused(book)
    path.write_text("words\u2028 here", encoding="utf-8")
    assert "book/exercises/02-x.md, line 1" in refused(book)


# --- tags ---


@pytest.mark.parametrize(
    "tag, meant",
    [
        ("claim", "claims"),
        ("hide-ouput", "hide-output"),
        ("hide_input", "hide-input"),
        ("posters", "poster"),
    ],
)
def test_a_tag_that_means_nothing_is_refused(
    book: Book, tag: str, meant: str
) -> None:
    """An answer would stand open, and a claim be shown and not tried."""
    book.chapter("02-one", code("x = 1", tag))
    said = refused(book)
    assert f"'{tag}'" in said and meant in said
    assert "code cell 1 (x = 1)" in said


def test_tags_are_a_list(book: Book) -> None:
    """The letters of a word are no tags: nothing would be exported."""
    book.chapter("02-one", "```{code-cell}\n:tags: export\n\nX = 1\n```")
    assert "tags: [export]" in refused(book)


# --- pages ---


def test_two_pages_with_one_number_are_refused(book: Book) -> None:
    """Figures, exercises and questions of both would be called alike."""
    book.chapter("02-one")
    book.chapter("02-two")
    said = refused(book)
    assert "book/02-two.md" in said and "book/02-one.md" in said
    assert "02" in said


def test_a_page_that_is_named_twice_is_chosen_once(book: Book) -> None:
    book.chapter("02-one")
    book.chapter("03-two")
    chosen = select(read_book(book.root), ["03", "02-one", "03-two"])
    assert [page.name for page in chosen] == ["03-two", "02-one"]


# --- what was stopped ---


def test_what_a_killed_press_has_left_is_cleared_away(book: Book) -> None:
    book.chapter("02-one", exported("X = 1"), module="one")
    export(book.root)
    notebooks(book.root)
    rest = [
        book.write("annotated/.press-abc1", "half"),
        book.write("book/notebooks/recall/.press-abc2", "half"),
    ]
    assert export(book.root, check=True) == []
    assert notebooks(book.root, check=True) == []
    export(book.root)
    notebooks(book.root)
    assert not any(path.exists() for path in rest)


def test_a_release_is_written_everywhere_or_nowhere(book: Book) -> None:
    book.write("pyproject.toml", 'version = "0.1.0.dev0"\n')
    book.write("book/00-preface.md", '__version__ = "0.1.0.dev0"\n')
    book.write("CITATION.cff", "version: 0.1.0.dev0\n")
    book.write("CHANGELOG.md", "# Changes\n\n## 0.2.0, not yet released\n")
    with pytest.raises(PressError, match="CHANGELOG.md"):
        release(book.root, "0.1.0", date(2030, 1, 1))
    assert 'version = "0.1.0.dev0"' in book.read("pyproject.toml")
    assert "dev0" in book.read("book/00-preface.md")
    assert book.read("CITATION.cff") == "version: 0.1.0.dev0\n"


# --- worlds ---


def false_in(
    book: Book, monkeypatch: pytest.MonkeyPatch, between: str = ""
) -> None:
    """Two worlds, in the second of which page 02 is false."""
    book.chapter("02-one", code("x = 1"))
    book.chapter("03-two", code("y = 2"))
    two = World("one", {}), World("two", {})
    monkeypatch.setattr(played, "WORLDS", two)

    def run(root: Path, page, world: World):
        if between and page.name == "02-one":  # another process is done
            path = root / f"build/worlds/{world.name}.json"
            book.write(str(path.relative_to(root)), between)
        false = (world.name, page.name) == ("two", "02-one")
        return None, 1.0, f"{page.name}: false" if false else ""

    monkeypatch.setattr(played, "run", run)


def test_worlds_that_are_done_still_say_what_is_false_in_them(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    false_in(book, monkeypatch)
    said: list[str] = []
    found = [worlds(book.root, None, [], said.append) for _ in range(4)]
    assert found == [[], *[["two: 02-one: false"]] * 3]
    assert said[-1] == "all 2 worlds are done"


def test_two_that_play_one_world_keep_each_others_pages(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"key": "k", "seconds": 5.0, "problem": ""}
    false_in(book, monkeypatch, json.dumps({"09-other": other}))
    worlds(book.root, "one", ["02"], lambda line: None)
    kept = json.loads(book.read("build/worlds/one.json"))
    assert kept.keys() == {"09-other", "02-one"}


# --- arguments ---


def test_arguments_that_cannot_be_are_said_in_a_line(
    book: Book, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book.chapter("02-one", code("x = 1"))
    with pytest.raises(SystemExit):
        main(["--root", str(book.root), "execute", "--jobs", "-1"])
    assert "--jobs" in capsys.readouterr().err
    assert main(["--root", str(tmp_path / "nowhere"), "export"]) == 2
    assert "pyproject.toml" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
