"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import bz2
import codecs
import gzip
import html
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
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, Any

from annotated.corpora.fetch import fetch
from annotated.corpora.registry import folder_of, registry
from annotated.engine.errors import DataError

__all__ = [
    "Text", "MARKS", "CURES", "decoded", "text_of", "python_of", "json_of",
    "no_text", "fault", "Part", "read_lines", "read_pair", "columns_of",
    "parts_of", "splits_of", "own_files",
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
                unpack = _PACKED.get(Path(self.member or self.path).suffix)
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


MARKS = {  # with which Windows begins a file
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
    while any(mark.startswith(first) for mark in MARKS):
        if not (block := next(blocks, b"")):
            break
        first += block
    found = [mark for mark in MARKS if first.startswith(mark)]
    mark, kind = (found[0], MARKS[found[0]]) if found else (b"", "utf-8")
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
        bad = no_text(text) if strict else None
        if bad:
            end = text.rfind("\n", 0, bad.start()) + 1
        if end:
            lines = text[:end].replace("\r\n", "\n")
            yield lines if block else lines.removesuffix("\r")
        number += text.count("\n", 0, end)
        if bad:
            byte = len(text[end : bad.start()].encode(kind)) + 1
            why = fault(bad)
            raise DataError(
                f"{name}, line {number}, byte {byte}: {why}; {cures[why]}"
            )


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
    except ValueError as bad:
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


_PACKED: dict[str, Any] = {
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
    if text.path.suffix == ".zip":
        archive = stack.enter_context(zipfile.ZipFile(file))
        for name in archive.namelist():
            if f"/{name}".endswith(end):
                return stack.enter_context(archive.open(name))
    else:
        tar = tarfile.open(fileobj=file, mode="r:*")  # noqa: SIM115
        stack.enter_context(tar)
        for info in tar:
            found = f"/{info.name}".endswith(end) and tar.extractfile(info)
            if found:
                return stack.enter_context(found)
    raise DataError(f"{text.path} has no member {text.member}")


_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def no_text(line: str) -> re.Match[str] | None:
    """The first NUL or lone surrogate in a line, if any."""
    plain = line.isascii() and "\0" not in line
    return None if plain else _NO_TEXT.search(line)


def fault(found: re.Match[str]) -> str:
    """What is wrong with a text in which no_text has found this."""
    return "a NUL byte" if found[0] == "\0" else "not UTF-8 text"


# E7-text.md: Two sides
def _talks(text: Text, strict: bool) -> Iterator[str]:
    """The lines of a talk with its title and description only."""
    for line in text.lines(strict):
        if not re.match(r"\s*<(?!title|description)", line):
            yield re.sub(r"</?(title|description)>", "", line).strip()


def _segments(text: Text, strict: bool) -> Iterator[str]:
    """The contents of each <seg>…</seg>, on one line."""
    whole = "\n".join(text.lines(strict))
    for found in re.findall(r"(?is)<seg\b[^>]*>(.*?)</seg>", whole):
        yield " ".join(html.unescape(found).split())


_FORMS: dict[str, Any] = {
    "lines": Text.lines,
    "talks": _talks,
    "segments": _segments,
}


@dataclass(frozen=True)
class Part:
    """A piece of a corpus: two texts, or one with a column per side."""

    src: Text
    tgt: Text
    form: str = "lines"
    columns: tuple[int, int] = (0, 1)

    def pairs(self, strict: bool = True) -> Iterator[tuple[str, str]]:
        """Its pairs. DataError if a file cannot be read, or if one side
        is longer than the other.
        """
        if self.form == "tsv":
            yield from _rows(self.src, *self.columns, strict)
            return
        read = _FORMS[self.form]
        sides = read(self.src, strict), read(self.tgt, strict)
        for number, pair in enumerate(zip_longest(*sides)):
            if None in pair:  # one side has ended before the other
                counts = [number, number]
                longer = 1 - pair.index(None)
                counts[longer] += 1 + sum(1 for _ in sides[longer])
                raise DataError(
                    f"{self.src} has {counts[0]} lines but {self.tgt} has "
                    f"{counts[1]}: line i of one must translate line i of "
                    "the other"
                )
            yield pair


def _rows(
    text: Text, one: int, other: int, strict: bool
) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.lines(strict), start=1):
        cells = line.split("\t")
        if len(cells) <= max(one, other):
            raise DataError(
                f"{text}, line {number}: {len(cells)} columns, but "
                f"{max(one, other) + 1} are needed"
            )
        yield cells[one], cells[other]


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, plain, .gz, .xz or .bz2.

    Raises DataError, with file and line, if the file is missing, empty,
    damaged or not UTF-8, or has a NUL byte.
    """
    return list(Text(path).lines())


def read_pair(src: Path, tgt: Path) -> tuple[list[str], list[str]]:
    """The lines of two files that translate each other line by line.

    Raises DataError if they differ in their number of lines.
    """
    return columns_of(Part(Text(src), Text(tgt)).pairs())


def columns_of(
    pairs: Iterable[tuple[str, str]],
) -> tuple[list[str], list[str]]:
    """Pairs as two lists: all sources, all targets."""
    found = list(pairs)
    return [src for src, _ in found], [tgt for _, tgt in found]


# E7-text.md: From a name to files
def parts_of(name: str, split: str, source: str, target: str) -> list[Part]:
    """The pieces of a split of a registered data set, downloaded.

    Raises DataError for an unknown split or language.
    """
    entry = registry()[name]
    for what, value, there in (
        ("split", split, splits_of(entry)),
        ("language", source, entry["languages"]),
        ("language", target, entry["languages"]),
    ):
        if value not in there:
            raise DataError(
                f"{name} has no {what} {value!r}; it has {', '.join(there)}"
            )
    card = entry["splits"].get(split, entry["splits"]["train"])
    pieces = card.get("parts", [card])
    return [_registered(name, piece, source, target) for piece in pieces]


def splits_of(entry: dict[str, Any]) -> list[str]:
    """The splits of a data set, including those cut from train."""
    divided = [k for k in entry.get("divide", {}) if k in ("valid", "test")]
    return [*entry["splits"], *divided]


def _registered(
    name: str, piece: dict[str, Any], source: str, target: str
) -> Part:
    """A piece of a registered split, its files found or downloaded."""
    names = registry()[name].get("names", {})
    other = target if source == "en" else source
    sides = []
    for role, language in (("src", source), ("ref", target)):
        words = {
            "language": names.get(language, language),
            "other": names.get(other, other),
            "role": role,
        }
        file, member, url = (
            piece.get(key, "").format(**words)
            for key in ("file", "member", "url")
        )
        sides.append(_text(name, file, member, url))
    columns = piece.get("columns", ["en", "other"])
    en = columns.index("en"), columns.index("other")
    order = en if source == "en" else en[::-1]
    return Part(sides[0], sides[1], piece.get("form", "lines"), order)


def _text(name: str, file: str, member: str, url: str) -> Text:
    """A file, or a member of an archive that may be unpacked already."""
    folder = folder_of(name)
    for place in (member, Path(member).name) if member else ():
        if (folder / place).is_file():
            return Text(folder / place)
    return Text(fetch(name, file, url), member)


# E7-text.md: One split, pair by pair
def own_files(
    folder: Path, split: str, source: str, target: str
) -> tuple[Path, Path]:
    """The files of a split in your own folder, compressed or not."""
    found = []
    for language in (source, target):
        names = [f"{split}.{language}{end}" for end in ("", *_PACKED)]
        there = [folder / n for n in names if (folder / n).is_file()]
        if not there:
            raise DataError(f"{folder} has none of {', '.join(names)}")
        found.append(there[0])
    return found[0], found[1]
