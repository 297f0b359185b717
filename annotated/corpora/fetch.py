"""Exported from the book; edit the chapter, then run `make export`."""

import hashlib
import http.client
import os
import shutil
import time
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

from annotated.corpora.registry import folder_of, registry
from annotated.engine.errors import DataError

__all__ = ["fetch", "open_url", "file_hash"]


# E7-text.md: Getting a file
_PAUSES = (0, 1, 4)  # seconds before each try
_PATIENCE = 30  # seconds to wait for a server's response
_LONGEST = 60  # seconds to wait when a server asks for a pause
_AGENT = "attention-annotated (a textbook's downloader; urllib)"


def fetch(name: str, file: str, url: str = "") -> Path:
    """The path of a data set's file, downloaded unless it exists.

    Its hash is verified if the registry has one. Raises DataError if the
    file differs or cannot be downloaded.
    """
    entry, folder = registry()[name], folder_of(name)
    known, path = entry.get("sha256", {}).get(file, ""), folder / file
    url = f"{url or entry['url']}/{file}"
    part = path.with_name(f".{path.name}.{os.getpid()}")
    failure: Exception | None = None
    pauses, asked = list(_PAUSES), 0.0
    try:
        while pauses:
            time.sleep(max(pauses.pop(0), asked))
            if path.exists():
                state = path.stat()
                _compare(path, known, (state.st_size, state.st_mtime_ns))
                return path
            before = _size(part) if known else 0
            try:
                _download(url, part, before)
                if wrong := _wrong_hash(part, known):
                    failure = OSError(wrong)
                    break  # it would be the same again
                part.replace(path)
                return path
            except (OSError, ValueError, http.client.HTTPException) as bad:
                failure, asked = bad, _pause(bad)
                code = getattr(bad, "code", 500)
                if code not in _PASSING:
                    break
                if code == 416:  # there is no rest: begin again
                    part.unlink(missing_ok=True)
                if known and _size(part) > before:
                    pauses = list(_PAUSES)  # it gets on
    finally:
        part.unlink(missing_ok=True)
    reason = " ".join(str(failure).split())[:160]
    certain = "CERTIFICATE_VERIFY_FAILED" in reason
    raise DataError(
        f"{name}: {file} is not in {folder} and could not be downloaded "
        f"({type(failure).__name__}: {reason}). {_TRUST * certain}Download "
        f"{url} by other means and put it there, or set ANNOTATED_DATA to "
        f"a folder that contains {folder.name}/{file}"
    )


_TRUST = (  # as Python from python.org has none until then
    "On a Mac, run Install Certificates.command, which is in Python's "
    "folder in Applications. Or: "
)


_PASSING = {408, 416, 429, *range(500, 600)}  # troubles that may pass


def open_url(url: str, **headers: str) -> Any:
    """What a server answers, to read from. OSError if it does not."""
    headers = {"User-Agent": _AGENT, **headers}
    request = urllib.request.Request(url, headers=headers)
    return urllib.request.urlopen(request, timeout=_PATIENCE)


def _download(url: str, part: Path, first: int) -> None:
    """Download the bytes of url from first on; part has those before."""
    rest = {"Range": f"bytes={first}-"} if first else {}
    with open_url(url, **rest) as answer:
        part.parent.mkdir(parents=True, exist_ok=True)
        goes_on = answer.status == 206  # else it begins again
        with part.open("ab" if goes_on else "wb") as file:
            length = int(answer.headers.get("Content-Length") or 0)
            total = length and length + file.tell()
            look: Any = {"desc": part.name, "disable": None}  # on a tty
            bar = tqdm.wrapattr(file, "write", length or None, **look)
            with bar as shown:
                shutil.copyfileobj(answer, shown)
            if total and file.tell() != total:
                raise OSError(f"got {file.tell():,} of {total:,} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _pause(error: Exception) -> float:
    """The seconds that a server asks to wait, at most _LONGEST."""
    said = getattr(error, "headers", None) or {}
    seconds = said.get("Retry-After") or ""
    return min(_LONGEST, int(seconds)) if seconds.isdigit() else 0.0


@cache  # an archive may have many parts
def _compare(path: Path, known: str, version: tuple[int, int]) -> None:
    """DataError unless the file has the hash in the registry."""
    if wrong := _wrong_hash(path, known):
        raise DataError(
            f"{path} does not match the registry: {wrong}. Delete it to "
            "download it again, or use it as your own data, from another "
            "folder"
        )


def _wrong_hash(path: Path, known: str) -> str:
    """How a file's hash differs from the registry's, which is a SHA-256,
    an MD5 that begins with md5:, or unknown; "" if it does not.
    """
    md5 = "md5:" if known.startswith("md5:") else ""
    actual = known and md5 + file_hash(path, "md5" if md5 else "sha256")
    return "" if actual == known else f"its hash is {actual}, not {known}"


def file_hash(path: Path, algorithm: str = "sha256") -> str:
    """The hash of a file by one of hashlib's algorithms, in hexadecimal."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
