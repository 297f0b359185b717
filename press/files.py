"""Derived files: compare them, or write them whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from press.chapters import PressError

REST = ".press-"  # begins the name of a file that is not yet whole
Expected = Mapping[Path, "str | bytes"]


def drift(
    expected: Expected, present: Iterable[Path], root: Path
) -> list[str]:
    """One line for each file that is not what the chapters say."""
    found = {}
    for path, text in expected.items():
        if not path.is_file():
            found[path] = "is missing"
        elif path.read_bytes() != _bytes(text):
            found[path] = "is not what the book says"
    for path in present:
        if path not in expected and not path.name.startswith(REST):
            found[path] = "comes from no chapter"
    return [
        f"{path.relative_to(root).as_posix()} {found[path]}"
        for path in sorted(found)
    ]


def write(
    expected: Expected,
    present: Iterable[Path],
    ours: Callable[[Path], bool],
    root: Path,
) -> list[str]:
    """Write what changed, remove what is stale; the names of both."""
    rest: list[Path] = []
    stale: list[Path] = []
    for path in sorted(set(present) - expected.keys()):
        (rest if path.name.startswith(REST) else stale).append(path)
    foreign = [path for path in stale if not ours(path)]
    if foreign:
        raise PressError(
            *(
                f"{path.relative_to(root).as_posix()} was not made by the "
                "press: move it into a chapter, or delete it"
                for path in foreign
            )
        )
    for path in rest:  # of a press that was killed
        path.unlink(missing_ok=True)
    done = []
    for path, text in expected.items():
        if replace(path, text):
            done.append(f"wrote {path.relative_to(root).as_posix()}")
    for path in stale:
        path.unlink()
        done.append(f"removed {path.relative_to(root).as_posix()}")
    return done


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def replace(path: Path, text: str | bytes) -> bool:
    """Put text at path in one step; False where it was there already.
    PressError where nothing can be written.
    """
    try:
        return _replace(path, _bytes(text))
    except (FileExistsError, NotADirectoryError) as error:
        reason = f"{error.filename} is no folder"
    except OSError as error:
        reason = str(error.strerror)
    raise PressError(f"{path} cannot be written: {reason}")


def _replace(path: Path, data: bytes) -> bool:
    if path.is_file() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=REST)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o644)  # mkstemp makes it 0600
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise
    return True
