"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import csv
import html
import json
import re
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from annotated.corpora.cleaning import Cleaning, Division, divide
from annotated.corpora.fetch import fetch
from annotated.corpora.reading import PACKED, Text
from annotated.corpora.registry import folder_of, registry
from annotated.corpora.synthetic import SYNTHETIC
from annotated.engine.errors import DataError, unknown

__all__ = ["TextPair", "columns_of", "splits_of", "load_pairs"]


# E7-text.md: Two sides
_Fields = tuple[str, str]  # languages, keys or columns: source and target


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
    form: str = "lines"  # two that differ are joined by a plus
    fields: _Fields = ("1", "2")  # of a file with both
    tag: str = ""  # put before each source when it is prepared
    weight: int = 1  # how many times an epoch has it

    def pairs(self, strict: bool = True) -> Iterator[tuple[str, str]]:
        """Its pairs. DataError if a file cannot be read, or if one side
        is longer than the other.
        """
        one, _, other = self.form.partition("+")
        if not self.apart:
            yield from _read_both(self.src, self.form, self.fields, strict)
            return
        src, tgt = _FORMS[one], _FORMS[other or one]
        sides = src(self.src, strict), tgt(self.tgt, strict)
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

    @classmethod
    def of_files(
        cls,
        src: Path,
        tgt: Path | None,
        columns: tuple[str, str] | None = None,
        languages: tuple[Any, Any] = (None, None),
    ) -> TextPair:
        """Two files in the format of their suffix, or one with both sides,
        which is given alone or twice. ValueError if it may have many
        languages and these are not given, or has none of the columns that
        are.
        """
        form = _form_of(src)
        known = bool(columns) or _suffix(src) in _ENDS
        both = tgt is None or (tgt == src and known)
        if columns and not (both and cls.has_columns(src)):
            raise ValueError(f"{src} has no columns: leave columns out")
        if not both:
            sides = src, tgt or src
            forms = [_MARKED.get(_suffix(side), "lines") for side in sides]
            form = "+".join(dict.fromkeys(forms))
            return cls(Text(sides[0]), Text(sides[1]), form)
        fields = columns or ("1", "2")
        if not columns and form not in ("csv", "tsv"):
            if None not in languages:
                fields = languages
            elif form in ("tmx", "jsonl"):
                more = "" if form == "tmx" else ", or columns, two keys"
                raise ValueError(
                    f"{src} may have many languages: give source and target"
                    f"{more}"
                )
        return cls(Text(src), Text(src), form, fields)

    @staticmethod
    def has_columns(path: Path) -> bool:
        """Whether a file with both sides has them in columns, or keys."""
        return _form_of(path) in ("jsonl", "csv", "tsv")

    @property
    def apart(self) -> bool:
        """Whether its sides are two texts."""
        return self.form.partition("+")[0] in _FORMS

    # E7-text.md: From a name to files
    @staticmethod
    def registered(
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
                    f"{name} has no {what} {value!r}; it has "
                    f"{', '.join(known)}"
                )
        card = entry["splits"].get(split, entry["splits"]["train"])
        pieces = card.get("parts", [card])
        return [
            _registered(name, piece, source, target) for piece in pieces
        ]

    # E7-text.md: One split, pair by pair
    @classmethod
    def in_folder(
        cls, folder: Path, split: str, source: str, target: str
    ) -> TextPair:
        """The files of a split in your own folder, compressed or not.

        Raises DataError where one is missing.
        """
        files = []
        for language in (source, target):
            names = [f"{split}.{language}{end}" for end in ("", *PACKED)]
            present = [folder / n for n in names if (folder / n).is_file()]
            if not present:
                raise DataError(f"{folder} has none of {', '.join(names)}")
            files.append(Text(present[0]))
        return cls(files[0], files[1])


_MARKED = {".sgm": "segments", ".xml": "segments"}  # others are lines


def columns_of(
    pairs: Iterable[tuple[str, str]],
) -> tuple[list[str], list[str]]:
    """Pairs as two lists: all sources, all targets."""
    both = list(pairs)
    return [src for src, _ in both], [tgt for _, tgt in both]


# E7-text.md: Files with both sides
_ENDS = {
    ".tmx": "tmx",
    ".xlf": "xliff",
    ".xliff": "xliff",
    ".po": "po",
    ".mo": "mo",
    ".jsonl": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
}


def _suffix(path: Path) -> str:
    """The suffix in lower case; of a packed file, that of its contents."""
    end = path.suffix.lower()
    return path.with_suffix("").suffix.lower() if end in PACKED else end


def _form_of(path: Path) -> str:
    """The form of a file with both sides, by its suffix; tsv if that is
    none of them.
    """
    return _ENDS.get(_suffix(path), "tsv")


def _read_both(
    text: Text, form: str, fields: _Fields, strict: bool = True
) -> Iterator[tuple[str, str]]:
    """The pairs of a file with both sides, each side on one line.
    DataError, with file and line, if it is not what form says.
    """
    for src, tgt in _READERS[form](text, fields, strict):
        yield _one_line(src), _one_line(tgt)


def _library(name: str) -> Any:
    """A library of the extra [text]. RunError if it is not installed."""
    # here, because it loads torch, which lists of data sets do without
    from annotated.corpora.sentencepieces import optional_import

    return optional_import(name, "defusedxml polib (the extra [text])")


def _one_line(text: str) -> str:
    parts = (part.strip(" \t") for part in re.split(r"[\r\n]+", text))
    return " ".join(filter(None, parts)).strip()


def _name(element: Any) -> str:
    """The name of a tag, without that of its space."""
    return str(element.tag).rpartition("}")[2]


def _units(
    text: Text, names: Collection[str]
) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Each element of an XML file with one of these names, which is then
    forgotten, and those that it is in.
    """
    xml = _library("defusedxml.ElementTree")
    inside: list[Any] = []
    with text.open() as file:
        try:
            for event, element in xml.iterparse(file, ("start", "end")):
                if event == "start":
                    inside.append(element)
                    continue
                inside.pop()
                if _name(element) in names:
                    yield element, inside
                    if inside:
                        inside[-1].remove(element)
        except xml.ParseError as bad:
            line = bad.position[0]
            reason = str(bad).partition(":")[0]
            raise DataError(
                f"{text}, line {line}: not XML ({reason}): export it again"
            ) from None
        except (ValueError, LookupError) as bad:
            raise DataError(
                f"{text} cannot be read ({bad}): export it as UTF-8, and "
                "without entities of its own"
            ) from None


_CODES = {"bpt", "ept", "ph", "it", "ut"}  # what is in them is no text


def _said(element: Any) -> str:
    """The text of an element, without a tool's codes."""
    for code in [e for e in element.iter() if _name(e) in _CODES]:
        after = code.tail
        code.clear()
        code.tail = after
    return _one_line("".join(element.itertext()))


_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_NOT_YET = {"new", "needs-translation", "initial"}  # states of a target


def _tmx(text: Text, fields: _Fields, __: bool) -> Iterator[_Fields]:
    known, found = Counter[str](), False
    for unit, _ in _units(text, {"tu"}):
        sides = {}
        for variant in unit:
            language = variant.get(_LANG) or variant.get("lang") or ""
            for said in variant:
                if _name(said) == "seg":
                    known[language] += 1
                    sides[_code(language)] = _said(said)
        src, tgt = (_in(sides, field) for field in fields)
        if src is not None and tgt is not None:
            found = True
            yield src, tgt
    if not found:
        has = ", ".join(f"{n or '?'} ({known[n]:,})" for n in known)
        raise DataError(
            f"{text} has nothing in both {' and '.join(fields)}; it has "
            f"{has or 'no text'}: give --source and --target"
        )


def _code(language: str) -> str:
    return language.lower().replace("_", "-")


def _in(sides: dict[str, str], language: str) -> str | None:
    """The text in a language, or else in one of its varieties."""
    code = _code(language)
    near = [c for c in sides if c == code or c.startswith(f"{code}-")]
    return sides[min(near, key=len)] if near else None


def _reverse(fields: _Fields, source: str, target: str) -> bool:
    """Whether a file that names its languages, or the second of them, has
    them the other way round than is asked for.
    """
    src, tgt, one, other = (
        _code(language).partition("-")[0]
        for language in (*fields, source, target)
    )
    return src != tgt and other == src and one in ("", tgt)


def _xliff(text: Text, fields: _Fields, _: bool) -> Iterator[_Fields]:
    found = False
    for unit, inside in _units(text, {"trans-unit", "segment"}):
        sides = {_name(child): child for child in unit}
        if "source" not in sides:
            continue
        found, target = True, sides.get("target")
        states = {e.get("state") for e in (target, unit) if e is not None}
        done = target is not None and not states & _NOT_YET
        pair = _said(sides["source"]), _said(target) if done else ""
        said = {key: value for e in inside for key, value in e.items()}
        names = (
            said.get(one) or said.get(two) or ""  # of XLIFF 1.2 and 2
            for one, two in _XLIFF_LANGUAGES
        )
        yield pair[::-1] if _reverse(fields, *names) else pair
    if not found:
        raise DataError(f"{text} has no units with a <source>: not XLIFF")


_XLIFF_LANGUAGES = (
    ("source-language", "srcLang"),
    ("target-language", "trgLang"),
)


def _po(text: Text, fields: _Fields, _: bool) -> Iterator[_Fields]:
    polib = _library("polib")
    with text.open() as file:
        content = bytes(file.read())
    named = re.search(rb"charset=([\w.-]+)", content)
    kind = named[1].decode() if named else "utf-8"
    try:
        kind = "utf-8" if kind == "CHARSET" else kind  # of a template
        entries = polib.pofile(content.decode(kind).lstrip("\ufeff"))
    except (OSError, ValueError, LookupError) as bad:
        raise DataError(
            f"{text} is no PO file ({bad}): msgfmt --check says more"
        ) from None
    yield from _messages(text, entries, fields)


def _mo(text: Text, fields: _Fields, _: bool) -> Iterator[_Fields]:
    polib = _library("polib")
    with text.open() as file:
        content = bytes(file.read())
    try:
        entries = polib.mofile(content)
    except (OSError, ValueError, LookupError, struct.error) as bad:
        raise DataError(
            f"{text} is no MO file ({bad}): get it again"
        ) from None
    yield from _messages(text, entries, fields)


def _messages(
    text: Text, entries: Any, fields: _Fields
) -> Iterator[_Fields]:
    if not entries:
        raise DataError(f"{text} has no messages")
    # what it is translated from, it does not say
    turned = _reverse(fields, "", entries.metadata.get("Language", ""))
    for entry in entries:
        if entry.obsolete:
            continue
        for pair in _forms(entry):
            yield pair[::-1] if turned else pair


def _forms(entry: Any) -> Iterator[_Fields]:
    """A message and its translation; of a plural the first and last."""
    done = "fuzzy" not in entry.flags
    if not entry.msgid_plural:
        yield entry.msgid, entry.msgstr if done else ""
        return
    forms = entry.msgstr_plural
    for said, n in ((entry.msgid, 0), (entry.msgid_plural, -1)):
        form = sorted(forms)[n] if forms and done else None
        yield said, "" if form is None else forms[form]


def _jsonl(text: Text, fields: _Fields, strict: bool) -> Iterator[_Fields]:
    for number, line in enumerate(text.lines(strict), start=1):
        if not line.strip():
            continue
        where = f"{text}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as bad:
            raise DataError(
                f"{where}: not JSON ({bad}); each line is an object"
            ) from None
        yield _value(row, fields[0], where), _value(row, fields[1], where)


def _value(row: Any, field: str, where: str) -> str:
    """The text of a key; translation.en may be one inside another."""
    value = row
    whole = isinstance(row, dict) and field in row
    for key in [field] if whole else field.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if value is None and isinstance(row, dict):
        inner = row.get("translation")  # as Hugging Face's data sets have
        value = inner.get(field) if isinstance(inner, dict) else None
    if not isinstance(value, str):
        keys = ", ".join(row) if isinstance(row, dict) else "no keys"
        raise DataError(
            f"{where}: {field} is no text; it has {keys[:200]}: give "
            "--columns and two keys"
        )
    return value


def _csv(text: Text, fields: _Fields, strict: bool) -> Iterator[_Fields]:
    lines = (f"{line}\n" for line in text.lines(strict))
    first = next(lines, "")
    mark = ";" if first.count(";") > first.count(",") else ","
    rows = csv.reader(_before(first, lines), delimiter=mark, strict=True)
    try:
        yield from _columns(text, rows, fields)
    except csv.Error as bad:
        raise DataError(
            f"{text}, line {rows.line_num}: not CSV ({bad})"
        ) from None


def _before(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield first
    yield from rest


def _tsv(text: Text, fields: _Fields, strict: bool) -> Iterator[_Fields]:
    rows = (line.split("\t") for line in text.lines(strict))
    yield from _columns(text, rows, fields)


def _columns(
    text: Text, rows: Iterator[list[str]], fields: _Fields
) -> Iterator[_Fields]:
    """Two columns of a table, by number, or by name in its first line."""
    named = not all(field.isdecimal() for field in fields)
    head = next(rows, []) if named else []
    index = []
    for field in fields:
        if field in head:
            index.append(head.index(field))
        elif field.isdecimal() and int(field):
            index.append(int(field) - 1)
        else:
            has = ", ".join(head)[:200] or "columns from 1 on"
            raise DataError(f"{text} has no column {field}; it has {has}")
    for number, cells in enumerate(rows, start=2 if named else 1):
        if len(cells) < 2 and not "".join(cells).strip():
            continue  # a blank line, mostly the last
        if len(cells) <= max(index):
            # a cell of CSV may have several lines
            line = getattr(rows, "line_num", number)
            raise DataError(
                f"{text}, line {line}: {len(cells)} columns, but "
                f"{max(index) + 1} are needed"
            )
        yield cells[index[0]], cells[index[1]]


_READERS: dict[str, Any] = {
    "tmx": _tmx,
    "xliff": _xliff,
    "po": _po,
    "mo": _mo,
    "jsonl": _jsonl,
    "csv": _csv,
    "tsv": _tsv,
}


# E7-text.md: From a name to files
def splits_of(entry: dict[str, Any]) -> list[str]:
    """The splits of a data set, including those cut from train."""
    divided = [k for k in entry.get("divide", {}) if k in ("valid", "test")]
    return [*entry["splits"], *divided]


def _registered(
    name: str, piece: dict[str, Any], source: str, target: str
) -> TextPair:
    """A piece of a registered split, its files found or downloaded.
    DataError for two languages that it does not pair.
    """
    where = "".join(piece.get(key, "") for key in ("file", "member", "url"))
    english = piece.get("form") == "tsv" or "{other}" in where
    if english and (source, target).count("en") != 1:
        raise DataError(
            f"{name} pairs each language with English: {source}-{target} "
            "needs a folder of your own, with its two files"
        )
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

    Raises DataError for an unknown data set, split or language, and for
    one without files (see synthetic_pairs).
    """
    known = registry()
    if name in SYNTHETIC:
        raise DataError(f"{name} has no files: synthetic_pairs makes it")
    if name in known:
        if split == "train" and known[name].get("large"):
            raise DataError(
                f"{name} is too large to read at every start: prepare it "
                f"once with annotated data prepare {name}"
            )
        entry = known[name]
        parts = TextPair.registered(name, split, source, target)
        rows = divide(
            split if split in entry["splits"] else "train",
            (pair for part in parts for pair in part.pairs()),
            Cleaning(**entry.get("clean", {})),
            Division(**entry.get("divide", {})),
            Counter(),
        )
        return columns_of((s, t) for part, s, t in rows if part == split)
    if Path(name).is_dir():
        own = TextPair.in_folder(Path(name), split, source, target)
        return columns_of(own.pairs())
    otherwise = (
        f"annotated data list lists them; or give a folder with "
        f"train.{source}, train.{target}, valid.{source}, valid.{target}"
    )
    names = [*SYNTHETIC, *known]
    raise DataError(unknown("data set", name, names, otherwise))
