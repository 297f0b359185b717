"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import tyro

from annotated.commands.options import Flag, parse
from annotated.corpora.reading import text_of
from annotated.costs import dry_run
from annotated.engine.distributed import process_group, rank, rank_zero_only
from annotated.engine.errors import DataError, RunError, UsageError, unknown
from annotated.engine.fit import with_micro_tokens
from annotated.engine.parts import PartsShape, check_sources
from annotated.engine.recipes import RECIPES, Recipe
from annotated.engine.runner import train_recipe
from annotated.engine.runs import read_recipe
from annotated.engine.speed import training_device
from annotated.engine.start import fine_tuning, foreseen, with_precision
from annotated.engine.trainer import RunConfig
from annotated.exchange.export import FORMATS, unsupported
from annotated.model import TransformerConfig
from annotated.search import SearchConfig

__all__ = ["Recipes", "Train", "train"]


# E12-command-line.md: A recipe in a file
_TABLES = {
    "model": PartsShape,
    "training": RunConfig,
    "search": SearchConfig,
}
_OF_A_RUN = "format", "fingerprints", "kernels", "first"  # no fields


def _config_file(args: Sequence[str]) -> Path | None:
    """The file that --config names, if any."""
    found, words = None, iter(args)
    for word in words:
        option, _, file = word.partition("=")
        if option == "--config":
            found = Path(file or next(words, ""))
    return found


def _recipe_in(path: Path, named: str | None) -> tuple[str, dict[str, Any]]:
    """The recipe to begin with, the one that is named or else the one that
    a recipe.json or TOML file says ("" for neither), and its fields.

    UsageError, with file and field, where a field is unknown or has a
    value of another type; DataError if the file cannot be read; RunError
    if it needs another file of --import.
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
        inside = name in _TABLES
        if inside and not isinstance(value, dict):
            raise UsageError(f"{path}: {name} must be a table")
        for field, one in value.items() if inside else [(name, value)]:
            if field in _OF_A_RUN:
                continue
            if field not in hints or field in _TABLES:
                table = isinstance(one, dict)
                known = _TABLES if table else hints.keys() - _TABLES.keys()
                what = unknown("field", field, sorted(known), "see --help")
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


# E12-command-line.md: Train
@dataclasses.dataclass(frozen=True)
class Recipes:
    """List the recipes that can be trained."""

    def act(self) -> None:
        width = max(map(len, RECIPES))
        for name, recipe in RECIPES.items():
            print(f"{name:{width}}  {recipe.about}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """Train a recipe. Its fields are options; its values, defaults."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]
    out: Path | None = None  # the run folder, new unless resuming
    config: Path | None = None  # a recipe.json or TOML file of fields
    resume: Flag = False  # continue from the newest checkpoint in --out
    dry_run: Flag = False  # print what training would take, and exit
    shard: Flag = False  # shard the weights over the processes
    # cpu, cuda or mps (unset: a GPU; on a Mac the quicker)
    device: str | None = None

    def act(self) -> None:
        """Train, and print the run's summary as JSON."""
        if self.out is None and not self.dry_run:
            raise UsageError("train: give --out, a folder for the run")
        with process_group(self.device) as own:
            if self.out is None or self.dry_run:
                device = training_device(self.recipe, own)
                rank_zero_only(lambda: self._foresee(device))
                return
            notes = [
                f"no export to {form}: {why}"
                for form, why in unsupported(self.recipe.model).items()
            ]
            summary = train_recipe(
                self.recipe,
                self.out,
                resume=self.resume or _started_again(self.out),
                device=own,
                shard=self.shard,
                notes=notes,
            )
            if rank() == 0:
                print(json.dumps(summary))

    def _foresee(self, device: str) -> None:
        """Measure this device, and print what the run would take."""
        recipe, config = _planned(self.recipe, device)
        recipe = with_micro_tokens(recipe, device)
        print(dry_run(config, recipe.training, device))
        never = unsupported(recipe.model)
        forms = [form for form in FORMATS if form not in never]
        print(f"{'export to':16}{', '.join(forms)}")
        for form, why in never.items():
            print(f"{'no export to':16}{form}: {why}")


def _planned(
    recipe: Recipe, device: str
) -> tuple[Recipe, TransformerConfig]:
    """A recipe as it would be trained here, and its model."""
    if recipe.fit:
        try:
            return foreseen(recipe, device)
        except DataError as error:
            print(
                f"{error}\nThis recipe is fitted to its corpus: below is "
                "what it would be without that",
                file=sys.stderr,
            )
    recipe = with_precision(recipe, device)
    return recipe, recipe.config()


def _started_again(out: Path) -> bool:
    """Whether a launcher has restarted this command on an existing run."""
    counts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    again = any(os.environ.get(name, "0") != "0" for name in counts)
    return again and (out / "recipe.json").is_file()


def _recipe(
    args: list[str],
) -> tuple[str, Recipe, dict[str, Any], list[str]]:
    """The recipe that a command line names, or else its file; the fields
    of the file; and the options.
    """
    name, *rest = args
    first = name.partition("=")[0]
    named = None if first == "--config" else name
    if named is None:
        rest = args
    elif name.startswith("-"):
        raise UsageError(f"train: the recipe comes first, before {name}")
    elif name not in RECIPES:
        listed = "annotated recipes lists them"
        raise UsageError(unknown("recipe", name, RECIPES, listed))
    file = _config_file(rest)
    if file is None:
        return name, RECIPES[name], {}, rest
    base, fields = _recipe_in(file, named)
    if base:
        return base, RECIPES[base], fields, rest
    if not {"about", "data"} <= fields.keys():
        raise UsageError(
            f'{file} names no recipe: say recipe = "pair" in it, or train '
            f"pair --config {file}"
        )
    about, data = fields["about"], fields["data"]
    return "RECIPE", Recipe(about=about, data=data), fields, rest


def train(args: list[str]) -> None:
    """annotated train RECIPE …"""
    if not args or args[0] in ("-h", "--help"):
        print("usage: annotated train RECIPE --out RUN")
        print("       annotated train --config FILE --out RUN\n")
        Recipes().act()
        return
    name, recipe, fields, rest = _recipe(args)

    options = (word.partition("=")[0] for word in rest)
    typed = {option.lstrip("-").replace("-", "_") for option in options}

    def options_over(recipe: Recipe) -> Train:
        try:
            recipe = recipe.changed(**fields)
        except ValueError as error:
            raise UsageError(f"{_config_file(rest)}: {error}") from None
        fit = tuple(field for field in recipe.fit if field not in typed)
        default = Train(recipe=recipe.changed(fit=fit))
        return parse(Train, f"train {name}", rest, default=default)

    asked = options_over(recipe)
    if asked.resume and asked.out is not None:
        # options not given default to the run's values, not the recipe's
        begun = read_recipe(asked.out)
        if begun.about != asked.recipe.about:
            raise RunError(
                f"{asked.out} was started as {begun.about!r}, not as "
                f"{asked.recipe.about!r}"
            )
        # what was fitted when it began is the run's as well
        for field in ("fit", *asked.recipe.fit):
            fields.pop(field, None)
        asked = options_over(begun)
        begun = asked.recipe.changed(fit=())  # which may be typed, too
        asked = dataclasses.replace(asked, recipe=begun)
    elif asked.recipe.init is not None:
        # they default to what the other run has
        other = Path(asked.recipe.init)
        asked = options_over(fine_tuning(recipe, other))
    asked.act()
