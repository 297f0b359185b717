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
    "check_new", "new_folder", "replacing", "write_text", "write_json",
    "flush", "checksum",
]  # fmt: skip


# E3-ground.md: Files that are complete
def check_new(folder: Path) -> None:
    """RunError unless folder is empty or does not exist."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
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
        check_new(folder)  # another process may have filled it
        if folder.exists():
            folder.rmdir()
        fresh.rename(folder)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which replaces path at the end; after
    an error it is deleted and path is unchanged.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield fresh
        fresh.replace(path)
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
