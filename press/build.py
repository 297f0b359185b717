"""Sources in a folder, and Sphinx, which sets them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from annotated.engine.files import one_at_a_time
from annotated.engine.processes import tied
from press.chapters import Chapter, PressError, read_book


@contextmanager
def alone(build: Path) -> Iterator[None]:
    """Whoever sets pages in a folder of build/; a second waits, since it
    would take away what the first is reading.
    """
    build.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(build):
        yield


def mirror(sources: dict[str, bytes], folder: Path) -> None:
    """Make folder hold exactly these files; equal ones keep their time."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file():
            if path.relative_to(folder).as_posix() not in sources:
                path.unlink()
        elif not any(path.iterdir()):
            path.rmdir()
    for name, data in sources.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def sphinx(
    root: Path, build: Path, builder: str, options: Mapping[str, str]
) -> None:
    """From build/source to build/BUILDER, with options of conf.py;
    warnings are errors.
    """
    source, trees = build / "source", build / "doctrees"
    begun = build / "sphinx.begun"
    if begun.exists():  # it failed, or was cut off: nothing of it is known
        shutil.rmtree(trees, ignore_errors=True)
    begun.touch()
    command = [sys.executable, "-m", "sphinx", "-b", builder, "-j", "auto"]
    command += ["-W", "--keep-going", "-q", "-d", str(trees)]
    command += ["--no-color"]  # its messages are read: see _places
    command += [f"-D{name}={value}" for name, value in options.items()]
    # conf.py loads press.pages
    here = [str(Path(__file__).resolve().parents[1])]
    path = os.pathsep.join(
        [*here, *filter(None, [os.getenv("PYTHONPATH")])]
    )
    with tied() as tie:
        done = subprocess.run(
            [*command, str(source), str(build / builder)],
            env=dict(os.environ, LC_ALL="C.UTF-8", PYTHONPATH=path),
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            **tie,
        )
    if done.returncode:
        raise PressError(
            *_places(done.stderr, read_book(root), source),
            "Sphinx found the faults above: the pages are not whole",
        )
    begun.unlink()


def _places(text: str, chapters: list[Chapter], folder: Path) -> list[str]:
    """Sphinx's messages with chapter and section for its line numbers."""
    named = {chapter.name: chapter for chapter in chapters}

    def place(match: re.Match[str]) -> str:
        chapter = named[match[1]]
        number = int(match[2] or 0) // 10_000 - 1  # MyST-NB counts so
        if not 0 <= number < len(chapter.cells):
            return f"book/{chapter.file}"
        cell = chapter.cells[number]
        return cell.place if cell.kind == "code" else cell.section

    text = text.replace(f"{folder}{os.sep}", "book/")
    names = "|".join(map(re.escape, named)) or "-"
    return re.sub(
        rf"^book/({names})\.ipynb(?::(\d+))?", place, text, flags=re.M
    ).splitlines()
