"""Exported from the book; edit the chapter, then run `make export`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from annotated.corpora.reading import text_of
from annotated.engine.errors import UsageError, unknown
from annotated.engine.parts import PartsShape, check_sources
from annotated.engine.recipes import RECIPES, Recipe
from annotated.engine.trainer import RunConfig
from annotated.search import SearchConfig

__all__ = ["config_file", "recipe_in"]


# E12-command-line.md: A recipe in a file
_TABLES = {
    "model": PartsShape,
    "training": RunConfig,
    "search": SearchConfig,
}
_OF_A_RUN = "format", "fingerprints", "kernels", "first"  # no fields


def config_file(args: Sequence[str]) -> Path | None:
    """The file that --config names, if any."""
    found, words = None, iter(args)
    for word in words:
        option, _, file = word.partition("=")
        if option == "--config":
            found = Path(file or next(words, ""))
    return found


def recipe_in(path: Path, named: str | None) -> tuple[str, dict[str, Any]]:
    """The recipe to begin with, the one that is named or else the one that
    a recipe.json or TOML file says ("" for neither), and its fields.

    UsageError, with file and field, where one is none; DataError if it
    cannot be read; RunError if it needs another file of --import.
    """
    values = _values(path)
    base = values.pop("recipe", None)
    if named is None and base is not None and str(base) not in RECIPES:
        raise UsageError(f"{path}: {unknown('recipe', str(base), RECIPES)}")
    imports = values.pop("imports", {})
    if not isinstance(imports, dict):
        raise UsageError(f"{path}: imports must be a table")
    check_sources(path, imports)
    hints = get_type_hints(Recipe)
    for kind in _TABLES.values():
        hints |= get_type_hints(kind)
    fields = {}
    for name, value in values.items():
        inside = name in _TABLES and isinstance(value, dict)
        for field, one in value.items() if inside else [(name, value)]:
            if field in _OF_A_RUN:
                continue
            if field not in hints or field in _TABLES:
                what = unknown("field", field, hints, "see --help")
                raise UsageError(f"{path}: {what}")
            if (wanted := _wanted(one, hints[field])) is not None:
                raise UsageError(
                    f"{path}: {field} must be {wanted}, not {one!r}"
                )
            fields[field] = tuple(one) if isinstance(one, list) else one
    return named or base or "", fields


def _values(path: Path) -> dict[str, Any]:
    """What is in a JSON or TOML file."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    kind = "JSON" if path.suffix == ".json" else "TOML"
    text = text_of(path)
    try:
        values = (json if kind == "JSON" else tomllib).loads(text)
    except (ValueError, RecursionError) as bad:
        raise UsageError(f"{path} is not {kind}: {bad}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{path} has no fields, but {str(values)[:40]}")
    return dict(values)


_KINDS = {str: "a text", bool: "true or false", int: "a whole number"}


def _wanted(value: Any, hint: Any) -> str | None:
    """What a field of this type has to be, unless the value is one. Of
    numbers and choices the recipe itself knows more.
    """
    kinds = get_args(hint)
    if NoneType in kinds:
        return None if value is None else _wanted(value, kinds[0])
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            return "a list"
        items = [_wanted(item, kinds[0]) for item in value]
        return next((f"a list, each {w}" for w in items if w), None)
    if kinds:  # choices
        return None if isinstance(value, str) else _KINDS[str]
    if hint in _KINDS and type(value) is not hint:
        return _KINDS[hint]
    return None
