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
    """RunError unless folder is empty, or not there yet."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(
            f"{folder} is not empty: choose another --out (training goes "
            "on with --resume)"
        )


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, alone in a hidden one, which becomes folder at the
    end; after an error nothing is left. RunError as check_new.
    """
    check_new(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(
        prefix=f".{folder.name}.", dir=folder.parent
    ) as place:
        fresh = Path(place) / "whole"
        fresh.mkdir()
        yield fresh
        check_new(folder)  # by another process, meanwhile
        if folder.exists():
            folder.rmdir()
        fresh.rename(folder)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Another name to write under. What lies there at the end becomes
    path; after an error it is deleted, and path is as it was.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield fresh
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    with replacing(path) as fresh:
        fresh.write_text(text, "utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write JSON to path, whole or not at all."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    write_text(path, text + "\n")


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows has no handle on a folder
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checksum(path: Path) -> int:
    """CRC-32 of a file: against accidents, not against intent."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(2**20):
            crc = zlib.crc32(block, crc)
    return crc
