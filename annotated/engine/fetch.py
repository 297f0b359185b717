"""Exported from the book; edit the chapter, then run `make export`."""

import hashlib
import http.client
import shutil
import time
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

from annotated.engine.errors import DataError
from annotated.engine.files import replacing
from annotated.engine.registry import folder_of, registry

__all__ = ["PAUSES", "PATIENCE", "fetch", "file_hash"]


# E7-text.md: Getting a file
PAUSES = (0, 1, 4)  # seconds before each try
PATIENCE = 30  # seconds in which a server must say something


def fetch(name: str, file: str, url: str = "") -> Path:
    """The path of a data set's file, downloaded unless it is there.

    Its hash is compared, where the registry knows one. Raises DataError
    where the file is another, or cannot be had.
    """
    entry, folder = registry()[name], folder_of(name)
    known, place = entry.get("sha256", {}).get(file, ""), folder / file
    url = f"{url or entry['url']}/{file}"
    failure: Exception | None = None
    for pause in PAUSES:
        time.sleep(pause)
        if place.exists():
            state = place.stat()
            _compare(place, known, (state.st_size, state.st_mtime_ns))
            return place
        try:
            return _download(url, known, place)
        except (OSError, ValueError, http.client.HTTPException) as error:
            failure = error
            if getattr(error, "code", 500) < 500:
                break  # refused, and would be again
    reason = " ".join(str(failure).split())[:160]
    raise DataError(
        f"{name}: {file} is not in {folder} and could not be downloaded "
        f"({type(failure).__name__}: {reason}). Fetch {url} by other "
        "means and put it there, or set ANNOTATED_DATA to a folder that "
        f"has {folder.name}/{file}"
    )


def _download(url: str, known: str, place: Path) -> Path:
    """Load url into place, whole and correct or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as part:
        with (
            urllib.request.urlopen(url, timeout=PATIENCE) as answer,
            part.open("wb") as file,
        ):
            length = int(answer.headers.get("Content-Length") or 0)
            look: Any = {"desc": place.name, "disable": None}  # if watched
            bar = tqdm.wrapattr(file, "write", length or None, **look)
            with bar as shown:
                shutil.copyfileobj(answer, shown)
            if length and file.tell() != length:
                raise OSError(f"{file.tell():,} of {length:,} bytes came")
        if known and (found := file_hash(part, known)) != known:
            raise OSError(f"its hash is {found}, not {known}")
    return place


@cache  # an archive holds many parts
def _compare(place: Path, known: str, version: tuple[int, int]) -> None:
    """DataError unless the file is the one that the registry knows."""
    if known and (found := file_hash(place, known)) != known:
        raise DataError(
            f"{place} is not the file that the registry knows: its hash is "
            f"{found}, not {known}. Delete it to have it fetched, or use "
            "it as a folder of your own"
        )


def file_hash(path: Path, known: str = "") -> str:
    """The file's sha256; its md5, where known begins so."""
    md5 = known.startswith("md5:")
    digest = hashlib.new("md5" if md5 else "sha256", usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return "md5:" * md5 + digest.hexdigest()
