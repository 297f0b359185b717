"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import bz2
import gzip
import html
import lzma
import re
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, Any

import numpy as np

from annotated.engine.errors import DataError, check_whole, unknown
from annotated.engine.fetch import fetch
from annotated.engine.registry import folder_of, registry
from annotated.pocket import SPLITS, pocket_pairs

__all__ = [
    "Text", "no_text", "Part", "read_lines", "read_pair", "columns_of",
    "parts_of", "splits_of", "Division", "Cleaning", "count_words",
    "detokenized", "remarks", "divide", "load_pairs", "own_files",
    "SYMBOLS", "SYNTHETIC", "synthetic_pairs",
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
            number = 0
            for number, line in enumerate(file, start=1):
                if number == 1:  # Windows' byte order mark
                    line = line.removeprefix(b"\xef\xbb\xbf")
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                text = line.decode("utf-8", "surrogateescape")
                if strict and (found := no_text(text)):
                    # if the file is also damaged, that is the error
                    while file.read(2**20):
                        continue
                    byte = len(text[: found.start()].encode()) + 1
                    raise DataError(
                        f"{self}, line {number}, byte {byte}: not UTF-8 "
                        "text; convert the file, for example with iconv"
                    )
                yield text
            if not number:
                raise DataError(f"{self} is empty")


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


@dataclass(frozen=True)
class Division:
    """How to split a corpus: by the number of a pair, counted from 1, or
    by a checksum of its source, modulo `of`. Pairs that are in neither
    valid nor test are in train.
    """

    by: str = "line"
    of: int = 1
    valid: int | None = None  # the remainder of its pairs; None: no pair
    test: int | None = None

    def place(self, number: int, source: str) -> str:
        """The split of a pair."""
        if self.by == "source":
            number = zlib.crc32(source.encode("utf-8", "replace"))
        places = {self.valid: "valid", self.test: "test"}
        return places.get(number % self.of, "train")


# E7-text.md: What is left out
@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """Which pairs to keep, and how to write them. A word is a run of
    letters and digits, or one punctuation mark.
    """

    min_words: int = 1  # on either side
    max_words: int | None = None  # on either side
    ratio: float | None = None  # at most, of the longer side to the shorter
    lower: bool = False  # convert to lower case
    unescape: bool = False  # decode &quot; and other entities
    detokenize: bool = False  # rejoin punctuation to words

    def __post_init__(self) -> None:
        check_whole("min_words", self.min_words, least=1)
        if self.ratio is not None and not self.ratio >= 1:
            raise ValueError(f"ratio must be at least 1, not {self.ratio}")
        if self.max_words is not None and self.max_words < self.min_words:
            raise ValueError(
                f"max_words {self.max_words} is less than min_words "
                f"{self.min_words}"
            )

    def line(self, text: str) -> str:
        """A line after cleaning, which is still one line."""
        if self.unescape:  # &#10; is a line break
            text = " ".join(html.unescape(text).splitlines())
        text = detokenized(text) if self.detokenize else text
        return text.lower() if self.lower else text

    def objection(self, src: str, tgt: str) -> str | None:
        """Why a pair is dropped; None if it is kept."""
        if not src.strip() or not tgt.strip():
            return "a blank side"
        if no_text(src) or no_text(tgt):
            return "not UTF-8 text"
        # a line has no more words than characters
        most = self.max_words or max(len(src), len(tgt))
        short = max(len(src), len(tgt)) <= most
        if short and self.ratio is None and self.min_words <= 1:
            return None
        counts = sorted(map(count_words, (src, tgt)))
        if counts[0] < self.min_words:
            return f"fewer than {self.min_words} words"
        if counts[1] > most:
            return f"more than {most} words"
        if self.ratio and counts[1] > self.ratio * counts[0]:
            return f"lengths differ by more than {self.ratio:g} times"
        return None


_WORD = re.compile(r"\w+|[^\w\s]")


def count_words(line: str) -> int:
    """The number of words and punctuation marks."""
    return len(_WORD.findall(line))


_CLOSING = r"[.,;:!?%)\]}»”]|n't\b|'(?:s|t|re|ve|ll|d|m)\b"
_ELIDED = r"(?:(?<!')[^\W\d_s]|\bs)'"  # l' arte
_REJOINED = [
    (re.compile(r" @-@ "), "-"),
    (re.compile(rf" ({_CLOSING})"), r"\1"),
    (re.compile(rf"([(\[{{«“¿¡]|{_ELIDED}) (?=\S)"), r"\1"),
    (re.compile(r'(?<!\S)" (.*?) "(?!\w)'), r'"\1"'),
]


def detokenized(line: str) -> str:
    """A line without the spaces that a tokeniser put around punctuation,
    by rules shared by English, French, Italian and Spanish.
    """
    for pattern, new in _REJOINED:
        line = pattern.sub(new, line)
    return line


_ESCAPED = re.compile(r"&(?:apos|quot|amp|lt|gt|#\d+);")


def remarks(lines: Sequence[str]) -> list[str]:
    """Remarks on unusual lines of text, one sentence each."""
    escaped = sum(bool(_ESCAPED.search(line)) for line in lines)
    apart = sum(bool(re.search(r"\w [.,](?: |$)", x)) for x in lines)
    joined = sum(bool(re.search(r"\w[.,](?: |$)", x)) for x in lines)
    found = []
    if escaped > len(lines) / 100:
        found.append(
            "the text is escaped (&quot; for a quotation mark): prepare "
            "it with --unescape, or translations will be escaped too"
        )
    if apart > 4 * joined:
        found.append(
            'the text is tokenised (" ." for a full stop): prepare it with '
            "--detokenize, or translations will be tokenised too, and "
            "the model will do badly on ordinary text"
        )
    return found


# E7-text.md: One split, pair by pair
def divide(
    split: str,
    pairs: Iterable[tuple[str, str]],
    cleaning: Cleaning,
    division: Division,
    dropped: Counter[str],
) -> Iterator[tuple[str, str, str]]:
    """Yield (split, source, target) for the pairs read for a split. Clean
    train pairs are divided among the splits; dropped counts the others by
    reason. Pairs are numbered after cleaning.
    """
    number, place = 0, split
    for src, tgt in pairs:
        # as it will be written: &nbsp; is a blank side, &amp; one word
        src, tgt = cleaning.line(src), cleaning.line(tgt)
        if split == "train":
            if why := cleaning.objection(src, tgt):
                dropped[why] += 1
                continue
            number += 1
            place = division.place(number, src)
        yield place, src, tgt


def load_pairs(
    name: str, split: str, source: str, target: str
) -> tuple[list[str], list[str]]:
    """The source and target lines of a split of a registered data set, or
    of your own folder with files SPLIT.LANGUAGE (or .gz, .xz, .bz2).

    Raises DataError for an unknown data set, split or language.
    """
    known = registry()
    if name in known:
        if split == "train" and known[name].get("large"):
            raise DataError(
                f"{name} is too large to read at every start: prepare it "
                f"once with annotated data prepare {name}"
            )
        entry = known[name]
        parts = parts_of(name, split, source, target)
        rows = divide(
            split if split in entry["splits"] else "train",
            (pair for part in parts for pair in part.pairs()),
            Cleaning(**entry.get("clean", {})),
            Division(**entry.get("divide", {})),
            Counter(),
        )
        return columns_of((s, t) for place, s, t in rows if place == split)
    if Path(name).is_dir():
        return read_pair(*own_files(Path(name), split, source, target))
    otherwise = (
        f"annotated data list lists them; or give a folder with "
        f"train.{source}, train.{target}, valid.{source}, valid.{target}"
    )
    names = [*SYNTHETIC, *known]
    raise DataError(unknown("data set", name, names, otherwise))


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


# E7-text.md: Text without a file
SYMBOLS = tuple("abcdefghijklmnop")
SYNTHETIC = {  # name: the languages of its two sides
    "copy": ("symbols", "symbols"),
    "reverse": ("symbols", "symbols"),
    "pocket": ("de", "en"),
}


def synthetic_pairs(
    name: str, split: str, count: int, seed: int
) -> tuple[list[str], list[str]]:
    """The source and target lines of copy, reverse or pocket, generated
    on the fly. The splits (train, valid, test, …) share no pairs.
    DataError for an unknown split.
    """
    there = SPLITS if name == "pocket" else ("train", "valid", "test")
    if split not in there:
        raise DataError(
            f"{name} has no split {split!r}; it has {', '.join(there)}"
        )
    if name == "pocket":
        pairs = pocket_pairs(count, split, seed)
        return [p.source for p in pairs], [p.target for p in pairs]
    lines = list(islice(_symbol_lines(split, seed), count))
    if name == "reverse":
        return lines, [line[::-1] for line in lines]
    return lines, lines


def _symbol_lines(split: str, seed: int) -> Iterator[str]:
    """Endless lines of 1 to 10 letters; a line's hash sets its split."""
    draw = np.random.default_rng(seed)
    division = Division("source", of=10, valid=0, test=1)
    while True:
        line = " ".join(draw.choice(SYMBOLS, draw.integers(1, 11)))
        if division.place(0, line) == split:
            yield line
