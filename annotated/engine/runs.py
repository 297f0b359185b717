"""Exported from the book; edit the chapter, then run `make export`.

- E9-recipes.md: Recipes, their data, and runs
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from annotated.batches import Corpus
from annotated.checkpoints import checkpoints, load_weights
from annotated.engine.data import open_data
from annotated.engine.errors import RunError
from annotated.engine.files import write_json
from annotated.engine.machine import matmul_speed, pick_precision
from annotated.engine.packing import PackedTransformer
from annotated.engine.recipes import Recipe, described, fitted, recipe_of
from annotated.engine.search import WorkerError, search_in_order
from annotated.model import Transformer, TransformerConfig
from annotated.search import Hypothesis, SearchConfig
from annotated.tokens import Tokenizer

__all__ = [
    "read_recipe", "read_metrics", "best_step", "Run", "with_precision",
    "begin_run", "FREE", "resume_run", "MAX_SOURCE", "Translation",
    "one_line",
]  # fmt: skip


# E9-recipes.md: A run and its folder
def read_recipe(folder: Path) -> Recipe:
    """The recipe of a run folder. RunError where there is none to use."""
    path = folder / "recipe.json"
    if not path.is_file():
        raise RunError(
            f"{folder} is no run folder, or not a whole one: it has no "
            "recipe.json"
        )
    try:
        return recipe_of(json.loads(path.read_text("utf-8")))
    except (TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}") from None


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """What a run has noted, in order: {"step": …, "loss": …, …} for steps,
    {"step": …, "valid": {…}} for validations.
    """
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    found = []
    for line in path.read_text("utf-8", errors="replace").split("\n"):
        try:
            entry = json.loads(line)
        except ValueError:  # the end of a run that was killed
            continue
        if isinstance(entry, dict) and "step" in entry:
            found.append(entry)
    return found


def best_step(folder: Path) -> int | None:
    """The step of a run's lowest validation nll; None if there is none."""
    notes = [e for e in read_metrics(folder) if "valid" in e]
    if not notes:
        return None
    return int(min(notes, key=lambda e: e["valid"]["nll"])["step"])


@dataclass(frozen=True)
class Run:
    """A run folder in memory: recipe, tokenizers, model; and the models of
    other runs, where there are any, that vote when it translates.
    """

    recipe: Recipe
    source: Tokenizer
    target: Tokenizer
    model: Transformer
    others: tuple[Transformer, ...] = ()

    def write(self, folder: Path) -> None:
        """Write tokenizers and recipe; the recipe last, for a folder that
        has it is a whole one.
        """
        self.source.save(folder / "source.json")
        self.target.save(folder / "target.json")
        recipe = dataclasses.asdict(self.recipe)
        write_json(folder / "recipe.json", recipe)

    @classmethod
    def as_begun(cls, folder: Path) -> Run:
        """The run as begin left it: the model has its first weights.

        Raises RunError where a part is missing, damaged or does not fit.
        """
        recipe = read_recipe(folder)
        try:
            source = Tokenizer.load(folder / "source.json")
            target = Tokenizer.load(folder / "target.json")
            model = _first_model(recipe, source, target)
        except ValueError as error:
            raise RunError(f"{folder} is damaged: {error}") from None
        return cls(recipe, source, target, model)

    @classmethod
    def open(cls, folder: Path, weights: Path | None = None) -> Run:
        """Read a run folder, with the weights of its model.safetensors, or
        of its newest checkpoint where training has not finished.

        Raises RunError where a part is missing or does not fit.
        """
        run = cls.as_begun(folder)
        places = [folder, *checkpoints(folder / "checkpoints")[::-1]]
        found = [p / "model.safetensors" for p in places]
        found = [weights] if weights else [p for p in found if p.exists()]
        if not found:
            raise RunError(f"{folder} has no weights yet: train it first")
        try:
            load_weights(run.model, found[0])
        except ValueError as error:
            raise RunError(str(error)) from None
        run.model.eval()
        return run

    def with_votes_of(self, other: Run) -> Run:
        """This run, where the model of another votes as well. ValueError
        where it has other words.
        """
        ours, theirs = (
            [tokens.inner.to_str() for tokens in (run.source, run.target)]
            for run in (self, other)
        )
        if ours != theirs:
            raise ValueError("models that vote need the same vocabulary")
        return dataclasses.replace(self, others=(*self.others, other.model))

    # E9-recipes.md: Translating lines
    def translate(
        self,
        lines: Sequence[str],
        search: SearchConfig | None = None,
        batch_tokens: int = 2000,
        workers: int = 1,
    ) -> list[list[Translation]]:
        """The nbest translations of each line, the best first; at most
        batch_tokens tokens of source are searched at once, by so many
        workers (see search_in_order).

        A blank line gives a blank one; a line of more than MAX_SOURCE
        tokens is translated in pieces, whose best are put together.
        RunError where a worker dies.
        """
        search = search or self.recipe.search
        models = [self.model, *self.others]
        most = min(_most_source(m.config, search) for m in models)
        pieces, owner = [], []
        for i, ids in enumerate(self.source.encode(lines)):
            end = len(ids) if lines[i].strip() else 0
            for first in range(0, end, most):
                pieces.append(ids[first : first + most])
                owner.append(i)
        found: list[list[list[Hypothesis]]] = [[] for _ in lines]
        try:
            results = search_in_order(
                models, pieces, search, batch_tokens, workers=workers
            )
        except WorkerError as error:
            raise RunError(
                f"a process that searched gave up ({error}), for lack of "
                "memory perhaps: fewer workers and batch_tokens need less"
            ) from None
        for i, hypotheses in zip(owner, results, strict=True):
            found[i].append(hypotheses)
        return [self._texts(parts) for parts in found]

    def _texts(self, parts: list[list[Hypothesis]]) -> list[Translation]:
        """The translations of a line that was cut into parts."""
        if not parts:
            return [Translation("", 0.0, 0.0)]
        if len(parts) == 1:
            texts = self.target.decode([h.ids for h in parts[0]])
            return [
                Translation(one_line(text), h.score, h.log_probability)
                for text, h in zip(texts, parts[0], strict=True)
            ]
        texts = self.target.decode([p[0].ids for p in parts])
        score = sum(p[0].score for p in parts) / len(parts)
        total = sum(p[0].log_probability for p in parts)
        text = " ".join(one_line(text) for text in texts)
        return [Translation(text, score, total)]


def _first_model(
    recipe: Recipe, source: Tokenizer, target: Tokenizer
) -> Transformer:
    """The model with its first weights, a function of the recipe's seed."""
    config = recipe.model.config(len(source), len(target))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        return PackedTransformer(config)


def _check_lengths(recipe: Recipe, corpus: Corpus) -> None:
    """RunError where a sentence is longer than learned positions reach."""
    longest = 1 + int(
        max(corpus.src.lengths.max(), corpus.tgt.lengths.max())
    )
    most = recipe.model.max_len
    if recipe.model.positions == "learned" and longest > most:
        raise RunError(
            f"{recipe.data} has a sentence of {longest} tokens: max_len "
            f"{most} is too short for it"
        )


def with_precision(recipe: Recipe, device: str) -> Recipe:
    """The recipe with its precision decided for the device, where it is
    auto; and a line on standard error that says how, and why.
    """
    if recipe.training.precision != "auto":
        return recipe
    precision, reason = pick_precision(device)
    print(f"precision {precision} on {device}: {reason}", file=sys.stderr)
    return recipe.changed(precision=precision)


def begin_run(
    recipe: Recipe, folder: Path, device: str = "cpu"
) -> tuple[Run, Corpus, Corpus]:
    """Make a new run folder. The run, with its first weights, and the
    corpora that it is trained and validated on.

    RunError where the folder has something in it already; DataError.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(
            f"{folder} is not empty: choose another --out, or --resume"
        )
    data = open_data(recipe)
    source, target = data.tokenizers()  # fails where there is no data
    recipe = with_precision(data.recipe, device)
    lines = list(data.notes)
    if recipe.fit:
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        speed = matmul_speed(device, recipe.training.precision)
        recipe = fitted(recipe, *data.size(), processes * speed)
        lines.append(described(recipe, *data.size()))
    for line in lines:
        print(line, file=sys.stderr)
    corpora = data.corpus("train"), data.corpus("valid")
    for corpus in corpora:
        _check_lengths(recipe, corpus)
    run = Run(recipe, source, target, _first_model(recipe, source, target))
    folder.mkdir(parents=True, exist_ok=True)
    run.write(folder)
    return run, *corpora


FREE = {"about", "max_steps", "max_minutes", "micro_tokens"} | {
    "save_minutes",
    *(f.name for f in dataclasses.fields(SearchConfig)),
}


def resume_run(recipe: Recipe, folder: Path) -> tuple[Run, Corpus, Corpus]:
    """The run in folder, with its first weights, and the corpora that it
    is trained and validated on. RunError where recipe is another in
    anything but the fields that are FREE.
    """
    run = Run.as_begun(folder)
    if recipe.fit:  # it was fitted when the run began
        recipe = run.recipe
    if recipe.training.precision == "auto":  # and decided
        recipe = recipe.changed(precision=run.recipe.training.precision)
    data = open_data(recipe, (run.source, run.target))
    recipe, begun = data.recipe, run.recipe.flat()
    for name, new in recipe.flat().items():
        if name not in FREE and new != begun[name]:
            raise RunError(
                f"{folder} was begun with {name} {begun[name]!r}: resume "
                f"it with that, not with {new!r}"
            )
    corpora = data.corpus("train"), data.corpus("valid")
    _check_lengths(recipe, corpora[1])
    if recipe != run.recipe:
        run = dataclasses.replace(run, recipe=recipe)
        run.write(folder)
    return run, *corpora


# E9-recipes.md: Translating lines
MAX_SOURCE = 512


@dataclass(frozen=True)
class Translation:
    """A line of text, the score that search gave it, and the logarithm
    of its probability.
    """

    text: str
    score: float
    log_probability: float


def one_line(text: str) -> str:
    """text without line breaks of any kind: one line in, one line out."""
    return " ".join(text.splitlines()).strip()


def _most_source(config: TransformerConfig, search: SearchConfig) -> int:
    """The longest piece, in tokens, that the model can translate."""
    if config.positions == "sinusoidal":
        return MAX_SOURCE
    most = min(MAX_SOURCE, config.max_len - search.extra)
    if most < 1:
        raise RunError(
            f"extra {search.extra} is too much for max_len {config.max_len}"
        )
    return most
