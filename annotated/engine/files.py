"""Exported from the book; edit the chapter, then run `make export`."""

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from annotated.engine.errors import RunError

__all__ = [
    "LOCK", "check_new", "new_folder", "replacing", "write_text",
    "write_json", "keep_first", "flush", "checksum",
]  # fmt: skip


# E3-ground.md: Files that are complete
LOCK = ".lock"  # in the folder of a run that is being trained


def check_new(folder: Path) -> None:
    """RunError unless folder is empty, does not exist, or has a lock and
    no recipe: it is then of a run that has just been begun.
    """
    whole = folder.absolute()
    there = next(path for path in (whole, *whole.parents) if path.exists())
    if not there.is_dir():
        raise RunError(f"{there} is a file: choose another --out")
    names = {path.name for path in folder.glob("*")}
    if names and (LOCK not in names or "recipe.json" in names):
        raise RunError(
            f"{folder} is not empty: choose another --out (to continue "
            "training, add --resume)"
        )


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A new folder inside a hidden one, renamed to folder at the end;
    nothing is left after an error. RunError as in check_new.
    """
    check_new(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(
        prefix=f".{folder.name}.", dir=folder.parent
    ) as place:
        fresh = Path(place) / "whole"
        fresh.mkdir()
        yield fresh
        for file in (*fresh.iterdir(), fresh):
            flush(file)
        check_new(folder)  # another process may have filled it
        if folder.exists():
            folder.rmdir()
        fresh.rename(folder)
        flush(folder.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which replaces path at the end, when
    it is on the disk; after an error it is deleted and path is unchanged.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield fresh
        flush(fresh)
        fresh.replace(path)
        flush(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as fresh:
        fresh.write_text(text, "utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write value to path as JSON, atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    write_text(path, text + "\n")


def keep_first(path: Path, text: str) -> str:
    """Write a text file, complete or not at all, unless there is one: of
    several processes the first wins. Returns what the file holds.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, "utf-8")
        flush(fresh)
        try:
            os.link(fresh, path)  # fails if path exists; a rename does not
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            fresh.replace(path)
        return path.read_text("utf-8")
    finally:
        fresh.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checksum(path: Path) -> int:
    """CRC-32 of a file: detects accidents, not tampering."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(2**20):
            crc = zlib.crc32(block, crc)
    return crc
