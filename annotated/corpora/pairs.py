"""Exported from the book; edit the chapter, then run `make export`."""

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from annotated.corpora.cleaning import Cleaning, Division, divide
from annotated.corpora.fetch import fetch
from annotated.corpora.formats import Fields, form_of, read_both
from annotated.corpora.reading import PACKED, Text
from annotated.corpora.registry import folder_of, registry
from annotated.corpora.synthetic import SYNTHETIC
from annotated.engine.errors import DataError, unknown

__all__ = [
    "TextPair", "part_of", "read_pair", "columns_of", "parts_of",
    "splits_of", "load_pairs", "own_files",
]  # fmt: skip


# E7-text.md: Two sides
def _talks(text: Text, strict: bool) -> Iterator[str]:
    """The lines of a talk with its title and description only."""
    for line in text.lines(strict):
        if not re.match(r"\s*<(?!title|description)", line):
            yield re.sub(r"</?(title|description)>", "", line).strip()


def _segments(text: Text, strict: bool) -> Iterator[str]:
    """The contents of each <seg>…</seg>, on one line."""
    lines = "\n".join(text.lines(strict))
    for segment in re.findall(r"(?is)<seg\b[^>]*>(.*?)</seg>", lines):
        yield " ".join(html.unescape(segment).split())


_FORMS: dict[str, Any] = {
    "lines": Text.lines,
    "talks": _talks,
    "segments": _segments,
}


@dataclass(frozen=True)
class TextPair:
    """A piece of a corpus: two texts, or one with both sides."""

    src: Text
    tgt: Text
    form: str = "lines"
    fields: Fields = ("1", "2")  # of a file with both
    tag: str = ""  # put before each source when it is prepared
    weight: int = 1  # how many times an epoch has it

    def pairs(self, strict: bool = True) -> Iterator[tuple[str, str]]:
        """Its pairs. DataError if a file cannot be read, or if one side
        is longer than the other.
        """
        if self.form not in _FORMS:
            yield from read_both(self.src, self.form, self.fields, strict)
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


def part_of(
    src: Path,
    tgt: Path | None,
    columns: tuple[str, str] | None = None,
    languages: tuple[Any, Any] = (None, None),
) -> TextPair:
    """Two files in the format of their suffix, or one with both sides,
    which is given alone or twice. ValueError if it may have many languages
    and these are not given, or has no columns.
    """
    form = form_of(src)
    both = tgt is None or (tgt == src and form != "tsv")
    if columns and (not both or form in ("tmx", "xliff", "po")):
        raise ValueError(f"{src} has no columns: leave columns out")
    if not both:
        marked = src.suffix in (".sgm", ".xml")
        form = "segments" if marked else "lines"
        return TextPair(Text(src), Text(tgt or src), form)
    if form == "tmx" or form == "jsonl" and not columns:
        if None in languages:
            more = "" if form == "tmx" else ", or columns, two keys"
            raise ValueError(
                f"{src} may have many languages: give source and target"
                f"{more}"
            )
        return TextPair(Text(src), Text(src), form, languages)
    return TextPair(Text(src), Text(src), form, columns or ("1", "2"))


def read_pair(src: Path, tgt: Path) -> tuple[list[str], list[str]]:
    """The lines of two files that translate each other line by line.

    Raises DataError if one cannot be read, or has more lines.
    """
    return columns_of(TextPair(Text(src), Text(tgt)).pairs())


def columns_of(
    pairs: Iterable[tuple[str, str]],
) -> tuple[list[str], list[str]]:
    """Pairs as two lists: all sources, all targets."""
    both = list(pairs)
    return [src for src, _ in both], [tgt for _, tgt in both]


# E7-text.md: From a name to files
def parts_of(
    name: str, split: str, source: str, target: str
) -> list[TextPair]:
    """The pieces of a split of a registered data set, downloaded.

    Raises DataError for an unknown split or language.
    """
    entry = registry()[name]
    for what, value, known in (
        ("split", split, splits_of(entry)),
        ("language", source, entry["languages"]),
        ("language", target, entry["languages"]),
    ):
        if value not in known:
            raise DataError(
                f"{name} has no {what} {value!r}; it has {', '.join(known)}"
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
) -> TextPair:
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
    en, them = (str(columns.index(n) + 1) for n in ("en", "other"))
    order = (en, them) if source == "en" else (them, en)
    return TextPair(sides[0], sides[1], piece.get("form", "lines"), order)


def _text(name: str, file: str, member: str, url: str) -> Text:
    """A file, or a member of an archive that may be unpacked already."""
    folder = folder_of(name)
    for unpacked in (member, Path(member).name) if member else ():
        if (folder / unpacked).is_file():
            return Text(folder / unpacked)
    return Text(fetch(name, file, url), member)


# E7-text.md: One split, pair by pair
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
        return columns_of((s, t) for part, s, t in rows if part == split)
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
    """The files of a split in your own folder, compressed or not.

    Raises DataError where one is missing.
    """
    files = []
    for language in (source, target):
        names = [f"{split}.{language}{end}" for end in ("", *PACKED)]
        present = [folder / n for n in names if (folder / n).is_file()]
        if not present:
            raise DataError(f"{folder} has none of {', '.join(names)}")
        files.append(present[0])
    return files[0], files[1]
