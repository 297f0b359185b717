"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

from annotated.engine.errors import DataError

__all__ = [
    "Text", "CURES", "decoded", "read_lines", "text_of", "python_of",
    "json_of", "PACKED", "fault",
]  # fmt: skip


# E7-text.md: Reading lines
@dataclass(frozen=True)
class Text:
    """A text file, possibly compressed or a member of an archive."""

    path: Path
    member: str = ""

    def __str__(self) -> str:
        return f"{self.path}" + (f", {self.member}" if self.member else "")

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open its decompressed bytes. DataError if it cannot be opened,
        or later, while it is being read.
        """
        try:
            with ExitStack() as stack:
                file: Any = stack.enter_context(self.path.open("rb"))
                if self.member:
                    file = _member(stack, file, self)
                name = Path(self.member or self.path)
                unpack = PACKED.get(name.suffix.lower())
                yield stack.enter_context(unpack(file)) if unpack else file
        except _DAMAGE as bad:
            raise DataError(
                f"{self} is damaged ({bad}): delete it and get it again"
            ) from None
        except OSError as error:
            reason = error.strerror or error
            raise DataError(f"{self} cannot be read: {reason}") from None

    def lines(self, strict: bool = True) -> Iterator[str]:
        """Its lines, split at \\n only. DataError if the file is missing,
        empty or damaged, and, if strict, for a line that is not UTF-8 or
        has a NUL byte. If not strict, invalid bytes become lone
        surrogates.
        """
        with self.open() as file:
            blocks = iter(partial(file.read, 2**16), b"")
            empty = True
            try:
                for text in decoded(blocks, str(self), strict):
                    empty = False
                    yield from text.removesuffix("\n").split("\n")
            except DataError:  # if it is also damaged, that is the error
                for _ in blocks:
                    continue
                raise
            if empty:
                raise DataError(f"{self} is empty")


_MARKS = {  # with which Windows begins a file
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
CURES = {  # for each fault of a text, what to do
    "not UTF-8 text": "save it as UTF-8 in an editor, or with iconv",
    "a NUL byte": "save UTF-16 as UTF-8, or else delete such bytes",
}


def decoded(
    blocks: Iterable[bytes],
    name: str,
    strict: bool = True,
    cures: Mapping[str, str] = CURES,
) -> Iterator[str]:
    """Decode blocks of bytes as they arrive: yield texts of whole lines,
    which end with \\n alone. A byte order mark is taken away; after that
    of UTF-16 the text is read as such. Raises DataError as Text.lines
    does, after the lines before the bad one.
    """
    blocks, first = iter(blocks), b""
    while any(mark.startswith(first) for mark in _MARKS):
        if not (block := next(blocks, b"")):
            break
        first += block
    mark = next((m for m in _MARKS if first.startswith(m)), b"")
    kind = _MARKS.get(mark, "utf-8")
    errors = "surrogatepass" if kind != "utf-8" else "surrogateescape"
    decode = codecs.getincrementaldecoder(kind)(errors).decode
    number, rest = 1, [""]  # of a line that is incomplete
    for block in chain([first.removeprefix(mark)], blocks, [b""]):
        try:
            text = decode(block, not block)
        except UnicodeDecodeError:
            raise DataError(f"{name} is cut off: get it again") from None
        if block and "\n" not in text:
            rest.append(text)
            continue
        text = "".join([*rest, text])
        end = text.rfind("\n") + 1 if block else len(text)
        text, rest = text[:end], [text[end:]]
        bad = fault(text) if strict else None
        if bad:
            end = text.rfind("\n", 0, bad[1]) + 1
        if end:
            lines = text[:end].replace("\r\n", "\n")
            yield lines if block else lines.removesuffix("\r")
        number += text.count("\n", 0, end)
        if bad:
            why, start = bad
            byte = len(text[end:start].encode(kind)) + 1
            raise DataError(
                f"{name}, line {number}, byte {byte}: {why}; {cures[why]}"
            )


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, plain, .gz, .xz or .bz2.

    Raises DataError, with file and line, if the file is missing, empty,
    damaged or not UTF-8, or has a NUL byte.
    """
    return list(Text(path).lines())


def _bytes_of(source: Path | bytes) -> bytes:
    if isinstance(source, bytes):
        return source
    with Text(source).open() as file:
        return bytes(file.read())


def text_of(source: Path | bytes, name: str = "") -> str:
    """The text of a file that a person made, or of its bytes, by the rules
    of Text.lines; it may be empty. name is what an error calls it.

    Raises DataError, with file and line, as Text.lines does.
    """
    data = _bytes_of(source)
    return "".join(decoded([data], name or str(source)))


def python_of(source: Path | bytes, name: str = "") -> str:
    """The text of a Python file, as Python reads it: it may have a byte
    order mark or a coding line, and is UTF-8 otherwise. DataError if
    Python would not read it.
    """
    data, name = _bytes_of(source), name or str(source)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(
            f"{name} is UTF-16, which Python does not read: save it as "
            "UTF-8"
        )
    try:
        kind, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        if not kind.startswith("utf-8"):
            data = data.decode(kind).encode()
    except SyntaxError as bad:
        text_of(data, name)  # it says where, if it is not UTF-8
        raise DataError(f"{name}: {bad}") from None
    except (ValueError, LookupError) as bad:  # or no encoding of text
        raise DataError(f"{name} is not {kind} as it says: {bad}") from None
    return text_of(data, name).replace("\r", "\n")


def json_of(source: Path | bytes, name: str = "") -> Any:
    """What a JSON file that a person made holds, such as a notebook.
    DataError if it is not text, or not JSON.
    """
    text = text_of(source, name)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as bad:
        where = name or str(source)
        raise DataError(f"{where} is not JSON: {bad}") from None


PACKED: dict[str, Any] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
}
_DAMAGE = (
    EOFError,
    lzma.LZMAError,
    zlib.error,
    gzip.BadGzipFile,
    tarfile.TarError,
    zipfile.BadZipFile,
)


def _member(stack: ExitStack, file: IO[bytes], text: Text) -> IO[bytes]:
    """The member of an archive whose name ends with text.member."""
    end = f"/{text.member}"
    if text.path.suffix.lower() == ".zip":
        archive = stack.enter_context(zipfile.ZipFile(file))
        for name in archive.namelist():
            if f"/{name}".endswith(end):
                return stack.enter_context(archive.open(name))
    else:
        tar = tarfile.open(fileobj=file, mode="r:*")  # noqa: SIM115
        stack.enter_context(tar)
        for info in tar:
            named = f"/{info.name}".endswith(end)
            if named and (member := tar.extractfile(info)):
                return stack.enter_context(member)
    raise DataError(f"{text.path} has no member {text.member}")


_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def fault(text: str) -> tuple[str, int] | None:
    """What first keeps it from being text, a NUL or a lone surrogate, and
    where that is; None if nothing does.
    """
    plain = text.isascii() and "\0" not in text
    if plain or (bad := _NO_TEXT.search(text)) is None:
        return None
    what = "a NUL byte" if bad[0] == "\0" else "not UTF-8 text"
    return what, bad.start()
