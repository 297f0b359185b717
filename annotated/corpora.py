"""annotated.corpora.

Exported from the book; edit the chapter, then run `make export`.

- 18-multi30k.md: Multi30k and IWSLT: real sentences
"""

from __future__ import annotations

import gzip
import lzma
import os
import sys
import time
import zlib
from collections.abc import Iterator
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pooch

from annotated.pocket import pocket_pairs

__all__ = [
    "DataError",
    "registry",
    "data_folder",
    "PAUSES",
    "fetch",
    "read_lines",
    "read_pair",
    "load_pairs",
    "SYMBOLS",
    "SYNTHETIC",
    "synthetic_pairs",
]


# 18-multi30k.md: Where corpora come from
class DataError(ValueError):
    """Data that cannot be used; it says what, where, and what to do."""


def registry() -> dict[str, Any]:
    """What data/registry.toml knows: name, files, licence, splits."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    file = resources.files("annotated") / "registry.toml"
    return tomllib.loads(file.read_text("utf-8"))


def data_folder() -> Path:
    """$ANNOTATED_DATA, or a folder in the user's cache."""
    own = os.environ.get("ANNOTATED_DATA")
    return Path(own) if own else Path(pooch.os_cache("annotated"))


PAUSES = (0, 1, 4)  # seconds before each try


def fetch(name: str, file: str) -> Path:
    """The path of a data set's file, downloaded unless it is there.

    A file that is already in the data folder is taken as it is. Raises
    DataError where it can be had neither way.
    """
    folder = data_folder() / name
    if (folder / file).exists():
        return folder / file
    entry = registry()[name]
    url, known = f"{entry['url']}/{file}", entry["sha256"].get(file)
    failure: Exception | None = None
    for pause in PAUSES:
        time.sleep(pause)
        try:
            return _download(url, known, folder, file)
        except (OSError, ValueError) as error:  # the network, the hash
            failure = error
    reason = " ".join(str(failure).split())[:160]
    raise DataError(
        f"{name}: {file} is not in {folder} and could not be downloaded "
        f"({type(failure).__name__}: {reason}). Fetch {url} by other means "
        "and put it there, or set ANNOTATED_DATA to a folder that has "
        f"{name}/{file}"
    )


def _download(url: str, known: str | None, folder: Path, file: str) -> Path:
    """pooch loads into a file of another name and moves it when whole."""
    bar = sys.stderr.isatty()
    return Path(pooch.retrieve(url, known, file, folder, progressbar=bar))


# 18-multi30k.md: Read strictly, or not at all
def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, plain, .gz or .xz; only \\n ends a line.

    Raises DataError for a file that is missing, empty, damaged, not
    UTF-8, or has a NUL byte, naming file and line.
    """
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(
        path.suffix, open
    )
    try:
        with opener(path, "rb") as file:
            content: bytes = file.read()
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as bad:
        raise DataError(
            f"{path} is damaged ({bad}): delete it and fetch it anew"
        ) from None
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path} cannot be read: {reason}") from None
    if not content:
        raise DataError(f"{path} is empty")
    content = content.removeprefix(b"\xef\xbb\xbf")  # Windows' signature
    return list(_decode(path, content.removesuffix(b"\n").split(b"\n")))


def _decode(path: Path, lines: list[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if b"\0" in line:
            raise DataError(
                f"{path}, line {number}: a NUL byte; is this UTF-8 text?"
            )
        try:
            yield line.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, line {number}, byte {error.start + 1}: not "
                "UTF-8; convert the file, with iconv for instance"
            ) from None


def read_pair(src: Path, tgt: Path) -> tuple[list[str], list[str]]:
    """Two files, line by line each other's translation.

    Raises DataError where they have not as many lines.
    """
    sides = read_lines(src), read_lines(tgt)
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{src} has {len(sides[0])} lines but {tgt} has "
            f"{len(sides[1])}: line i of one must translate line i of the "
            "other"
        )
    return sides


# 18-multi30k.md: From a name to pairs
def load_pairs(
    name: str, split: str, source: str, target: str
) -> tuple[list[str], list[str]]:
    """A split of a registered data set, or of a folder of your own with
    files SPLIT.LANGUAGE (or .gz, .xz): source lines, target lines.

    Raises DataError for a data set, split or language that is not there.
    """
    known = registry()
    if name in known:
        src, tgt = (
            _registered(name, known[name], split, language)
            for language in (source, target)
        )
    elif Path(name).is_dir():
        src, tgt = (
            _own(Path(name), f"{split}.{language}")
            for language in (source, target)
        )
    else:
        raise DataError(
            f"no data set {name!r}; there are {', '.join(SYNTHETIC)}, "
            f"{', '.join(known)}, or a folder with train.{source}, "
            f"train.{target}, valid.{source} and valid.{target}"
        )
    return read_pair(src, tgt)


def _registered(
    name: str, entry: dict[str, Any], split: str, language: str
) -> Path:
    """The file of a registered data set, fetched."""
    for what, value, there in (
        ("split", split, entry["splits"]),
        ("language", language, entry["languages"]),
    ):
        if value not in there:
            raise DataError(
                f"{name} has no {what} {value!r}; it has {', '.join(there)}"
            )
    file = entry["splits"][split]["file"].format(language=language)
    return fetch(name, file)


def _own(folder: Path, file: str) -> Path:
    """The file in a folder of one's own, compressed or not."""
    for end in ("", ".gz", ".xz"):
        if (folder / (file + end)).is_file():
            return folder / (file + end)
    raise DataError(f"{folder} has no file {file}, {file}.gz or {file}.xz")


SYMBOLS = tuple("abcdefghijklmnop")
SYNTHETIC = {  # and the languages of its two sides
    "copy": ("symbols", "symbols"),
    "reverse": ("symbols", "symbols"),
    "pocket": ("de", "en"),
}


def synthetic_pairs(
    name: str, split: str, count: int, seed: int
) -> tuple[list[str], list[str]]:
    """copy, reverse or pocket, made on the spot: source lines, target
    lines. The splits (train, valid, test, …) share no pair. DataError for
    a split that is not there.
    """
    if name == "pocket":
        pairs = pocket_pairs(count, split, seed)
        return [p.source for p in pairs], [p.target for p in pairs]
    if split not in ("train", "valid", "test"):
        raise DataError(
            f"{name} has no split {split!r}; it has train, valid, test"
        )
    lines = list(islice(_symbol_lines(split, seed), count))
    if name == "reverse":
        return lines, [line[::-1] for line in lines]
    return lines, lines


def _symbol_lines(split: str, seed: int) -> Iterator[str]:
    """Endless lines of 1 to 10 letters; a line's hash says its split."""
    draw = np.random.default_rng(seed)
    while True:
        line = " ".join(draw.choice(SYMBOLS, draw.integers(1, 11)))
        bucket = zlib.crc32(line.encode()) % 10
        if split == {0: "valid", 1: "test"}.get(bucket, "train"):
            yield line
