"""What a file may look like that somebody else has written or left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from press import classroom as course
from press import execute as executing
from press import files
from press import worlds as played
from press.__main__ import main
from press.chapters import PressError, read_book, select
from press.classroom import classroom
from press.execute import World, execute
from press.export import export
from press.notebooks import notebooks
from press.release import release
from press.serve import Server
from press.site import proof
from press.slides import slides
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


def test_a_release_whose_pages_had_a_fault_is_made_again(
    book: Book,
) -> None:
    book.write("pyproject.toml", '[project]\nversion = "0.1.0.dev0"\n')
    book.write("book/00-preface.md", '__version__ = "0.1.0.dev0"\n')
    book.write("CITATION.cff", "version: 0.1.0.dev0\n")
    book.write("CHANGELOG.md", "# Changes\n\n## 0.1.0, not yet released\n")
    release(book.root, "0.1.0", date(2030, 1, 1))
    release(book.root, "0.1.0", date(2030, 1, 2))
    assert (
        book.read("CHANGELOG.md") == "# Changes\n\n## 0.1.0, 2030-01-02\n"
    )
    release(book.root, "0.2.0.dev0", date(2030, 1, 3))
    with pytest.raises(PressError, match="CHANGELOG.md"):  # it is out
        release(book.root, "0.1.0", date(2030, 1, 4))


def test_what_a_teacher_has_added_to_a_course_is_kept(book: Book) -> None:
    out = book.root / "classroom"
    classroom(book.root, out)
    hidden = json.loads((out / "hidden.json").read_text("utf-8"))
    mine = json.dumps(
        hidden | {"checks": {"02-x": ["def check_x(f): ..."]}}
    )
    (out / "hidden.json").write_text(mine, "utf-8")
    with (out / "nbgrader_config.py").open("a") as file:
        file.write("c.Execute.timeout = 900\n")
    told = "\n".join(classroom(book.root, out))
    assert json.loads((out / "hidden.json").read_text("utf-8")) == hidden
    assert (out / "kept/hidden.json").read_text("utf-8") == mine
    kept = (out / "kept/nbgrader_config.py").read_text("utf-8")
    assert kept.endswith("c.Execute.timeout = 900\n")
    assert f"hidden.json was as {Path('kept/hidden.json')}" in told
    assert "kept" not in "\n".join(classroom(book.root, out))
    (out / "hidden.json").write_text("{}", "utf-8")  # a seed is lost, too
    classroom(book.root, out, "other")
    assert (out / "kept/2-hidden.json").read_text("utf-8") == "{}"
    classroom(book.root, out, "third")
    other = json.loads((out / "kept/3-hidden.json").read_text("utf-8"))
    assert other["seed"] == "other"


def test_an_assignment_that_a_teacher_has_edited_is_kept(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, page = book.root / "classroom", {"text": "as in the book\n"}
    group = [SimpleNamespace(chapter="02-x")]
    monkeypatch.setattr(course, "by_page", lambda exercises: [group])
    monkeypatch.setattr(course, "assignment", lambda notebook, group: page)
    monkeypatch.setattr(
        course, "exercise_notebook", lambda *given, **more: "{}"
    )
    classroom(book.root, out)
    path = out / "source/02-x/02-x.ipynb"
    page["text"] = "as in a later book\n"  # nobody has touched the file
    assert "kept" not in "\n".join(classroom(book.root, out))
    path.write_text("with a date for handing in\n", "utf-8")
    for text in ("a third", "a fourth"):
        page["text"] = text
        told = "\n".join(classroom(book.root, out))
        assert text in path.read_text("utf-8")
        old = out / "kept/source/02-x/02-x.ipynb"
        assert old.read_text("utf-8") == "with a date for handing in\n"
        assert ("kept what" in told) == (text == "a third")
    assert [p.name for p in old.parent.iterdir()] == ["02-x.ipynb"]
    assert [p.name for p in path.parent.iterdir()] == ["02-x.ipynb"]


def test_ctrl_c_begins_no_other_page(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2, 6):
        book.chapter(f"0{number}-page", code("x = 1"))
    over = Event()
    begun: list[object] = []

    def run(*given: object, **more: object) -> str:
        begun.append(given)
        if len(begun) == 1:
            raise KeyboardInterrupt
        over.wait(5)
        return ""

    monkeypatch.setattr(executing, "_run", run)
    with pytest.raises(KeyboardInterrupt):
        execute(book.root, jobs=1, say=lambda line: None)
    over.set()
    assert len(begun) <= 2


def test_two_do_not_set_pages_in_one_folder(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    refused: list[str] = []

    def sphinx(root: Path, build: Path, *more: object) -> None:
        handle = os.open(build, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
        refused.append(build.name)

    monkeypatch.setattr("press.site.sphinx", sphinx)
    book.chapter("02-one", code("x = 1"))
    proof(book.root)
    assert refused == ["proof"]


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


@pytest.mark.parametrize("port", ["65536", "-1", "8000s"])
def test_a_port_that_is_none_is_refused(
    book: Book, capsys: pytest.CaptureFixture[str], port: str
) -> None:
    with pytest.raises(SystemExit):
        main(["--root", str(book.root), "serve", "--port", port])
    assert "is no port: it is a number up to" in capsys.readouterr().err


def test_only_the_story_has_slides(book: Book) -> None:
    book.chapter("A1-guide")
    with pytest.raises(PressError, match="no slides of A1-guide: only"):
        slides(book.root, ["A1"], book.root / "dist")


# --- where it is written, and who reads it ---


def test_what_cannot_be_written_is_said_and_nothing_is_lost(
    book: Book,
) -> None:
    file = book.write("file", "kept")
    book.write("folder/file", "kept")
    with pytest.raises(PressError, match="file/x/y cannot.*file/x is no"):
        files.replace(file / "x" / "y", "new")
    with pytest.raises(PressError, match="file/x cannot .*file is no fol"):
        files.replace(file / "x", "new")
    with pytest.raises(PressError, match="folder cannot .*Is a directory"):
        files.replace(book.root / "folder", "new")
    assert book.read("file") == book.read("folder/file") == "kept"
    assert len(list(book.root.iterdir())) == 4


def test_a_file_that_is_missing_is_named(
    book: Book, capsys: pytest.CaptureFixture[str]
) -> None:
    (book.root / "pyproject.toml").write_text('version = "0.0.0"\n')
    assert main(["--root", str(book.root), "release", "0.1.0"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("00-preface.md: No such file or directory")


@pytest.mark.parametrize("buffered", [True, False])
def test_a_reader_who_has_gone_is_no_traceback(
    book: Book, buffered: bool
) -> None:
    book.chapter("02-one", code("x = 1"))
    unbuffered = {"PYTHONUNBUFFERED": "" if buffered else "1"}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "press",
            "--root",
            str(book.root),
            "minutes",
        ],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, **unbuffered},
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_browser_that_leaves_is_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Server(("127.0.0.1", 0), None) as server:  # type: ignore
        for error in (BrokenPipeError(), ConnectionResetError()):
            try:
                raise error
            except OSError:
                server.handle_error(None, ("here", 1))
    assert capsys.readouterr().err == ""
