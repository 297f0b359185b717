"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from annotated.corpora.fetch import file_hash
from annotated.corpora.sentencepieces import load_tokenizer, same_tokens
from annotated.engine.checkpoints import checkpoints
from annotated.engine.constraints import Guide
from annotated.engine.errors import RunError
from annotated.engine.files import replacing, write_json
from annotated.engine.parts import build, check_sources
from annotated.engine.recipes import Recipe
from annotated.engine.tensors import load_weights, write_tensors
from annotated.engine.translate import Engine, Translation, translated
from annotated.model import Transformer
from annotated.search import SearchConfig
from annotated.tokens import Tokenizer

__all__ = [
    "read_recipe", "run_folder", "read_metrics", "validations",
    "results_of", "SCORES", "writing", "FIRST", "Run", "first_model",
]  # fmt: skip


# E9-recipes.md: A run and its folder
_FORMAT = 2  # of a run folder; 1, the first, had no number


def read_recipe(folder: Path) -> Recipe:
    """The recipe of a run folder. RunError if it is missing, damaged or
    of another format.
    """
    recipe, _ = _read(folder)
    return recipe


def run_folder(name: Path) -> Path:
    """name, or, where there is no such folder, that of the run of this
    name that comes with the package.
    """
    inside = Path(str(resources.files("annotated"))) / "runs" / name
    shipped = len(name.parts) == 1 and inside.is_dir()
    return inside if shipped and not name.exists() else name


def _read(folder: Path) -> tuple[Recipe, dict[str, Any]]:
    """What recipe.json holds: the recipe, and the other fields of Run."""
    path = folder / "recipe.json"
    if not path.is_file():
        if (folder / "generation_config.json").is_file():
            raise RunError(
                f"{folder} is a model of transformers, not a run: try "
                f"`annotated import marian {folder} --out RUN`"
            )
        raise RunError(
            f"{folder} is not a run folder, or is incomplete: it has no "
            "recipe.json"
        )
    try:
        values = json.loads(path.read_text("utf-8-sig"))
        if (form := values.pop("format", 1)) != _FORMAT:
            raise RunError(
                f"{folder} has format {form}, but this version reads "
                f"format {_FORMAT}: use the version that made it"
            )
        about = {
            "fingerprints": dict(values.pop("fingerprints", {})),
            "kernels": dict(values.pop("kernels", {})),
            "first": str(values.pop("first", "")),
        }
        check_sources(folder, dict(values.pop("imports", {})))
        return Recipe.of(values), about
    except RunError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error!r}") from None


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """What a run has logged, in order: {"step": …, "loss": …, …} for steps,
    {"step": …, "valid": {…}} for validations.
    """
    path, entries = folder / "metrics.jsonl", []
    if path.exists():
        for line in path.read_text("utf-8", errors="replace").split("\n"):
            with suppress(ValueError):  # cut off when a run was killed
                entries.append(json.loads(line))
    return [e for e in entries if isinstance(e, dict) and "step" in e]


def validations(folder: Path) -> dict[int, float]:
    """A run's validation nll, by step, where it is a number."""
    entries = [e for e in read_metrics(folder) if "valid" in e]
    nll = {e["step"]: e["valid"]["nll"] for e in entries}
    return {step: x for step, x in nll.items() if math.isfinite(x)}


def results_of(folder: Path) -> dict[str, dict[str, Any]]:
    """What a run folder knows of its scores, by split: those of the end
    of training, and those that evaluate --keep has left. RunError if one
    of the files is damaged.
    """
    results: dict[str, dict[str, Any]] = {}
    for name, key in (("summary.json", "valid"), (SCORES, None)):
        path = folder / name
        if not path.is_file():
            continue
        try:
            values = json.loads(path.read_text("utf-8-sig"))
            parts = values if key is None else {key: values.get(key, {})}
            for split, scores in parts.items():
                results[split] = results.get(split, {}) | dict(scores)
        except (AttributeError, TypeError, ValueError) as error:
            raise RunError(f"{path} is damaged: {error}") from None
    return {split: scores for split, scores in results.items() if scores}


SCORES = "scores.json"


@contextmanager
def writing(what: str) -> Iterator[None]:
    """RunError, saying what to do, if a file cannot be written."""
    try:
        yield
    except OSError as error:
        reason = " ".join(str(error).split())[:160]
        raise RunError(
            f"{what} could not be written ({reason}): what was there is "
            "intact; mend that, then continue with --resume"
        ) from None


FIRST = "first.safetensors"


@dataclass(frozen=True)
class Run:
    """A run folder in memory: recipe, tokenizers and model; and the models
    of other runs, if any, that vote when it translates. fingerprints are
    those of the corpora that it trains and validates on, kernels what was
    chosen for the machine that it trains on, first the SHA-256 of
    first.safetensors, if it went on from another run, and engine searches
    in place of the models.
    """

    recipe: Recipe
    source: Tokenizer
    target: Tokenizer
    model: Transformer
    others: tuple[Transformer, ...] = ()
    fingerprints: Mapping[str, int] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)
    first: str = ""
    engine: Engine | None = None

    def write(self, folder: Path) -> None:
        """Write the tokenizers, then the recipe, whose presence marks the
        folder as complete.
        """
        self.source.save(folder / "source.json")
        self.target.save(folder / "target.json")
        self.write_recipe(folder)

    def write_recipe(self, folder: Path) -> None:
        """Write recipe.json alone, in place of the one that is there."""
        imports = self.recipe.imports()
        values = {
            "format": _FORMAT,
            "fingerprints": dict(self.fingerprints),
            "kernels": dict(self.kernels),
            **({"first": self.first} if self.first else {}),
            **({"imports": imports} if imports else {}),
            **dataclasses.asdict(self.recipe),
        }
        write_json(folder / "recipe.json", values)

    def differs(self, folder: Path) -> bool:
        """Whether the folder's recipe.json says something else."""
        recipe, about = _read(folder)
        return (self.recipe, self.kernels) != (recipe, about["kernels"])

    def begin(self, folder: Path, first: Transformer | None = None) -> Run:
        """Write a new run, with the weights that it has or those of first,
        into a new folder, which after an error is new again; returns it.
        """
        # where it is missing later, somebody has deleted it
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        run = self
        try:
            if first is not None:
                path = folder / FIRST
                with replacing(path) as fresh:
                    write_tensors(dict(first.named_parameters()), fresh)
                run = dataclasses.replace(self, first=file_hash(path))
                load_weights(run.model, path)
            run.write(folder)
        except BaseException:  # a full disk, say
            names = "recipe.json", "source.json", "target.json", FIRST
            for name in names:
                (folder / name).unlink(missing_ok=True)
            (folder / "checkpoints").rmdir()
            raise
        return run

    @classmethod
    def as_begun(cls, folder: Path) -> Run:
        """The run as it was begun, with its initial weights. RunError if
        a part is missing, damaged or inconsistent.
        """
        run = cls._drawn(folder)
        if run.first:
            path = folder / FIRST
            load_weights(run.model, path)
            if file_hash(path) != run.first:
                raise RunError(
                    f"{path} is not what {folder} began with: by its "
                    "checksum, it has changed"
                )
        return run

    @classmethod
    def _drawn(cls, folder: Path) -> Run:
        """The run with weights drawn by its seed, wherever it began."""
        recipe, about = _read(folder)
        try:
            source = load_tokenizer(folder / "source.json")
            target = load_tokenizer(folder / "target.json")
            model = first_model(recipe, source, target)
        except ValueError as error:
            raise RunError(f"{folder} is damaged: {error}") from None
        return cls(recipe, source, target, model, **about)

    @classmethod
    def open(cls, folder: Path, *others: Path, device: str = "cpu") -> Run:
        """Read a run folder, with the weights of its model.safetensors, or
        of its newest checkpoint if training has not finished; and those of
        others, whose models vote. The run "pocket" comes with the package.
        RunError if a part is missing or inconsistent.
        """
        folder = run_folder(folder)
        run = cls._drawn(folder)
        folders = [folder, *checkpoints(folder / "checkpoints")[::-1]]
        files = [f / "model.safetensors" for f in folders]
        weights = next((file for file in files if file.exists()), None)
        if weights is None:
            raise RunError(f"{folder} has no weights yet: train it first")
        load_weights(run.model, weights)
        run.model.to(device).eval()
        for path in others:
            other = cls.open(path, device=device)
            for side in ("source", "target"):
                one, two = (getattr(r, side) for r in (run, other))
                if not same_tokens(one, two):
                    raise RunError(
                        f"{path} and {folder} cannot vote together: their "
                        "vocabularies differ"
                    )
            voting = (*run.others, other.model)
            run = dataclasses.replace(run, others=voting)
        return run

    # E9-recipes.md: Translating lines
    def translate(
        self,
        lines: Sequence[str],
        search: SearchConfig | None = None,
        batch_tokens: int | None = None,
        workers: int = 1,
        guide: Guide | None = None,
        prefixes: Sequence[str] | None = None,
        required: Sequence[Sequence[str]] | None = None,
    ) -> list[list[Translation]]:
        """translated, by this run's models or engine: by default with its
        recipe's search.
        """
        return translated(
            (self.model, *self.others), (self.source, self.target), lines,
            search or self.recipe.search, batch_tokens, workers, guide,
            self.engine, prefixes, required,
        )  # fmt: skip


def first_model(
    recipe: Recipe, source: Tokenizer, target: Tokenizer
) -> Transformer:
    """The model with its initial weights, drawn with the recipe's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        return build(recipe.config(len(source), len(target)))
