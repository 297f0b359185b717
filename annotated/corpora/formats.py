"""Exported from the book; edit the chapter, then run `make export`."""

import csv
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from annotated.corpora.reading import PACKED, Text
from annotated.engine.errors import DataError

__all__ = ["Fields", "form_of", "read_both"]


# E7-text.md: Files with both sides
_ENDS = {
    ".tmx": "tmx",
    ".xlf": "xliff",
    ".xliff": "xliff",
    ".po": "po",
    ".jsonl": "jsonl",
    ".csv": "csv",
}
Fields = tuple[str, str]  # languages, keys or columns: source and target


def form_of(path: Path) -> str:
    """The form of a file with both sides, by its suffix; tsv if that is
    none of them.
    """
    name = path.with_suffix("") if path.suffix in PACKED else path
    return _ENDS.get(name.suffix.lower(), "tsv")


def read_both(
    text: Text, form: str, fields: Fields, strict: bool = True
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
    return re.sub(r"[ \t]*[\r\n]+[ \t]*", " ", text).strip()


def _name(element: Any) -> str:
    """The name of a tag, without that of its space."""
    return str(element.tag).rpartition("}")[2]


def _units(text: Text, names: Collection[str]) -> Iterator[Any]:
    """Each element of an XML file with one of these names, which is then
    forgotten.
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
                    yield element
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
    return re.sub(r"\s*\n\s*", " ", "".join(element.itertext()))


_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_NOT_YET = {"new", "needs-translation", "initial"}  # states of a target


def _tmx(text: Text, fields: Fields, _: bool) -> Iterator[Fields]:
    known, found = Counter[str](), False
    for unit in _units(text, {"tu"}):
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


def _xliff(text: Text, _: Fields, __: bool) -> Iterator[Fields]:
    found = False
    for unit in _units(text, {"trans-unit", "segment"}):
        sides = {_name(child): child for child in unit}
        if "source" not in sides:
            continue
        found, target = True, sides.get("target")
        states = {e.get("state") for e in (target, unit) if e is not None}
        done = target is not None and not states & _NOT_YET
        yield _said(sides["source"]), _said(target) if done else ""
    if not found:
        raise DataError(f"{text} has no units with a <source>: not XLIFF")


def _po(text: Text, _: Fields, __: bool) -> Iterator[Fields]:
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
    if not entries:
        raise DataError(f"{text} has no messages")
    for entry in entries:
        if entry.obsolete:
            continue
        done = "fuzzy" not in entry.flags
        if not entry.msgid_plural:
            yield entry.msgid, entry.msgstr if done else ""
            continue
        forms = entry.msgstr_plural
        for said, n in ((entry.msgid, 0), (entry.msgid_plural, -1)):
            form = sorted(forms)[n] if forms and done else None
            yield said, "" if form is None else forms[form]


def _jsonl(text: Text, fields: Fields, strict: bool) -> Iterator[Fields]:
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
    """The text of a key; translation.en is one inside another."""
    value = row
    for key in field.split("."):
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


def _csv(text: Text, fields: Fields, strict: bool) -> Iterator[Fields]:
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


def _tsv(text: Text, fields: Fields, strict: bool) -> Iterator[Fields]:
    rows = (line.split("\t") for line in text.lines(strict))
    yield from _columns(text, rows, fields)


def _columns(
    text: Text, rows: Iterator[list[str]], fields: Fields
) -> Iterator[Fields]:
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
        if len(cells) <= max(index):
            raise DataError(
                f"{text}, line {number}: {len(cells)} columns, but "
                f"{max(index) + 1} are needed"
            )
        yield cells[index[0]], cells[index[1]]


_READERS: dict[str, Any] = {
    "tmx": _tmx,
    "xliff": _xliff,
    "po": _po,
    "jsonl": _jsonl,
    "csv": _csv,
    "tsv": _tsv,
}
