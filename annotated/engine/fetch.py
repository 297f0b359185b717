"""annotated.engine.fetch.

Exported from the book; edit the chapter, then run `make export`.

- 18-multi30k.md: Multi30k and IWSLT: real sentences
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import shutil
import time
import urllib.request
from pathlib import Path
from typing import Any

from tqdm import tqdm

from annotated.engine.errors import DataError
from annotated.engine.registry import data_folder, registry

__all__ = ["PAUSES", "STALL", "fetch"]


# 18-multi30k.md: Where corpora come from
PAUSES = (0, 1, 4, 16)  # seconds before each try


STALL = 30  # seconds in which a server must say something


def _folder(name: str) -> Path:
    """Where the files of a registered data set lie."""
    return data_folder() / registry()[name].get("folder", name)


def fetch(name: str, file: str, url: str = "") -> Path:
    """The path of a data set's file, downloaded unless it is there.

    A file that is already in the data folder is taken as it is. Raises
    DataError where it can be had neither way.
    """
    folder, entry = _folder(name), registry()[name]
    if (folder / file).exists():
        return folder / file
    url = f"{url or entry['url']}/{file}"
    known = entry.get("sha256", {}).get(file)
    failure: Exception | None = None
    wrong = 0
    for pause in PAUSES:
        time.sleep(pause)
        try:
            return _download(url, known, folder / file)
        except _WrongHash as error:
            failure, wrong = error, wrong + 1
            if wrong == 2:
                break
        except (OSError, ValueError, http.client.HTTPException) as error:
            failure = error
            if isinstance(error, DataError) or _for_good(error):
                break
    reason = " ".join(str(failure).split())[:160]
    raise DataError(
        f"{name}: {file} is not in {folder} and could not be downloaded "
        f"({type(failure).__name__.strip('_')}: {reason}). Fetch {url} by "
        "other means and put it there, or set ANNOTATED_DATA to a folder "
        f"that has {folder.name}/{file}"
    )


class _WrongHash(ValueError):
    """What was fetched is not what the registry names."""


def _for_good(error: Exception) -> bool:
    """Whether another try would meet the same refusal."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (401, 403, 404, 410)
    lasting = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC)
    return isinstance(error, OSError) and error.errno in lasting


def _download(url: str, known: str | None, place: Path) -> Path:
    """Load url, or the rest of it, into place; whole or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{place.name}.part")
    mark = place.with_name(f".{place.name}.tag")  # which version part is
    # what came earlier is only worth something if it can be checked
    sure = part.exists() and (known or mark.exists())
    have = part.stat().st_size if sure else 0
    request = urllib.request.Request(url)
    if have:
        request.add_header("Range", f"bytes={have}-")
    if have and mark.exists():
        request.add_header("If-Range", mark.read_text("utf-8"))
    try:
        with urllib.request.urlopen(request, timeout=STALL) as answer:
            have = _agreed(answer, have, part)
            length = answer.headers.get("Content-Length")
            whole = have + int(length) if length else None
            _need_room(place.parent, (whole or 0) - have, url)
            tag = answer.headers.get("ETag") or answer.headers.get(
                "Last-Modified"
            )
            if tag and not tag.startswith("W/"):
                mark.write_text(tag, "utf-8")
            else:
                mark.unlink(missing_ok=True)
            _receive(answer, part, have, whole)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        # there is no rest: all is here, or it is another file
        if not known or _hash(part, known) != known:
            part.unlink()
            raise
    found = _hash(part, known) if known else None
    if found != known:
        part.unlink()
        raise _WrongHash(f"its hash is {found}, not {known}")
    mark.unlink(missing_ok=True)
    return part.replace(place)


def _agreed(answer: Any, have: int, part: Path) -> int:
    """How much of the part stays: all of it, if the rest is coming."""
    if answer.status != 206:
        return 0
    place = answer.headers.get("Content-Range", "")
    if not place.startswith(f"bytes {have}-"):
        part.unlink()
        raise OSError(f"the server sent {place or 'an unknown part'}")
    return have


def _receive(answer: Any, part: Path, have: int, whole: int | None) -> None:
    """Write what comes behind what is there; OSError if it is short."""
    bar = tqdm(
        desc=part.name.strip(".").removesuffix(".part"),
        initial=have,
        total=whole,
        unit="B",
        unit_scale=True,
        disable=None,
    )
    with bar, part.open("ab" if have else "wb") as file:
        while chunk := answer.read1(2**16):  # what there is
            file.write(chunk)
            bar.update(len(chunk))
        got = file.tell()
    if whole is not None and got != whole:
        raise OSError(f"{got:,} of {whole:,} bytes came")


def _need_room(folder: Path, size: int, what: object) -> None:
    """DataError where a disk has not as many bytes to give."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise DataError(
            f"{what} needs {size / 1e6:,.0f} MB, and {folder} has "
            f"{free / 1e6:,.0f} MB left: make room, or set ANNOTATED_DATA "
            "to a folder on another disk"
        )


def _hash(path: Path, known: str) -> str:
    """The file's hash, of the kind that known is: md5:… or sha256."""
    kind = "md5" if known.startswith("md5:") else "sha256"
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return (
        f"md5:{digest.hexdigest()}" if kind == "md5" else digest.hexdigest()
    )
