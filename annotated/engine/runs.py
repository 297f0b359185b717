"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from annotated.batches import Corpus
from annotated.checkpoints import checkpoints, load_weights
from annotated.engine.data import Data, open_data
from annotated.engine.errors import RunError
from annotated.engine.files import check_new, write_json
from annotated.engine.machine import pick_precision
from annotated.engine.packing import PackedTransformer
from annotated.engine.recipes import Recipe, described, fitted, recipe_of
from annotated.engine.search import Guide, WorkerError, search_in_order
from annotated.engine.trainer import training_speed
from annotated.model import Transformer, TransformerConfig
from annotated.search import Hypothesis, SearchConfig
from annotated.tokens import Tokenizer

__all__ = [
    "read_recipe", "read_metrics", "validations", "best_step", "Run",
    "first_model", "with_precision", "begin_run", "FREE", "resume_run",
    "MAX_SOURCE", "Translation", "one_line",
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
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error!r}") from None


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """What a run has noted, in order: {"step": …, "loss": …, …} for steps,
    {"step": …, "valid": {…}} for validations.
    """
    path, found = folder / "metrics.jsonl", []
    if path.exists():
        for line in path.read_text("utf-8", errors="replace").split("\n"):
            with suppress(ValueError):  # the end of a run that was killed
                found.append(json.loads(line))
    return [e for e in found if isinstance(e, dict) and "step" in e]


def validations(folder: Path) -> dict[int, float]:
    """A run's validation nll, by step."""
    notes = [e for e in read_metrics(folder) if "valid" in e]
    return {e["step"]: e["valid"]["nll"] for e in notes}


def best_step(folder: Path) -> int | None:
    """The step of a run's lowest validation nll; None if there is none."""
    nll = validations(folder)
    return min(nll, key=nll.__getitem__, default=None)


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
        RunError where a part is missing, damaged or does not fit.
        """
        recipe = read_recipe(folder)
        try:
            source = Tokenizer.load(folder / "source.json")
            target = Tokenizer.load(folder / "target.json")
            model = first_model(recipe, source, target)
        except ValueError as error:
            raise RunError(f"{folder} is damaged: {error}") from None
        return cls(recipe, source, target, model)

    @classmethod
    def open(cls, folder: Path, *others: Path, device: str = "cpu") -> Run:
        """Read a run folder, with the weights of its model.safetensors, or
        of its newest checkpoint where training has not finished; and those
        of others, whose models vote. RunError where a part is missing or
        does not fit.
        """
        run = cls.as_begun(folder)
        places = [folder, *checkpoints(folder / "checkpoints")[::-1]]
        files = [p / "model.safetensors" for p in places]
        found = next((file for file in files if file.exists()), None)
        if found is None:
            raise RunError(f"{folder} has no weights yet: train it first")
        load_weights(run.model, found)
        run.model.to(device).eval()
        for path in others:
            other = cls.open(path, device=device)
            for side in ("source", "target"):
                one, two = (getattr(r, side).inner for r in (run, other))
                if one.to_str() != two.to_str():
                    raise RunError(
                        f"{path} and {folder} cannot vote together: they "
                        "need the same vocabulary"
                    )
            voting = (*run.others, other.model)
            run = dataclasses.replace(run, others=voting)
        return run

    # E9-recipes.md: Translating lines
    def translate(
        self,
        lines: Sequence[str],
        search: SearchConfig | None = None,
        batch_tokens: int = 2000,
        workers: int = 1,
        guide: Guide | None = None,
    ) -> list[list[Translation]]:
        """The nbest translations of each line, the best first (see
        search_in_order). A blank line gives a blank one; of a line of more
        than MAX_SOURCE tokens the best of its pieces are put together.
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
                models, pieces, search, batch_tokens,
                workers=workers, guide=guide,
            )  # fmt: skip
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
        ranks = list(zip(*parts))
        found = []
        for pieces in ranks if len(parts) == 1 else ranks[:1]:
            texts = self.target.decode([piece.ids for piece in pieces])
            score = sum(piece.score for piece in pieces) / len(pieces)
            total = sum(piece.log_probability for piece in pieces)
            text = " ".join(map(one_line, texts))
            found.append(Translation(text, score, total))
        return found


def first_model(
    recipe: Recipe, source: Tokenizer, target: Tokenizer
) -> PackedTransformer:
    """The model with its first weights, a function of the recipe's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        return PackedTransformer(recipe.config(len(source), len(target)))


def _corpora(data: Data) -> tuple[Corpus, Corpus]:
    """To train and to validate on. RunError where a sentence is longer
    than learned positions reach.
    """
    corpora = data.corpus("train"), data.corpus("valid")
    if count := data.recipe.valid_pairs:
        corpora = corpora[0], corpora[1].first(count)
    model = data.recipe.model
    sides = [
        side for corpus in corpora for side in (corpus.src, corpus.tgt)
    ]
    longest = 1 + max(int(side.lengths.max()) for side in sides)
    if model.positions == "learned" and longest > model.max_len:
        raise RunError(
            f"{data.recipe.data} has a sentence of {longest} tokens: "
            f"max_len {model.max_len} is too short for it"
        )
    return corpora


def with_precision(recipe: Recipe, device: str) -> Recipe:
    """The recipe with its precision decided, where it is auto, and said."""
    if recipe.training.precision != "auto":
        if (recipe.training.precision, device) == ("float16", "cpu"):
            print(
                "float16 on a processor is emulated, slowly: what a GPU "
                "would do can be tried so",
                file=sys.stderr,
            )
        return recipe
    precision, reason = pick_precision(device)
    print(f"precision {precision} on {device}: {reason}", file=sys.stderr)
    return recipe.changed(precision=precision)


def _fitted(
    recipe: Recipe,
    corpus: Corpus,
    source: Tokenizer,
    target: Tokenizer,
    device: str,
) -> Recipe:
    """fitted to the corpus by what this machine can do, and said."""

    def speed(recipe: Recipe) -> float:
        model = first_model(recipe, source, target).to(device)
        alone = training_speed(model, corpus, recipe.training)
        return alone * int(os.environ.get("WORLD_SIZE", "1"))

    tokens = int(corpus.tgt.lengths.sum())
    made = fitted(recipe, len(corpus), tokens, speed)
    if made != recipe.changed(fit=()):
        print(described(made, recipe), file=sys.stderr)
    return made


def begin_run(
    recipe: Recipe, folder: Path, device: str = "cpu"
) -> tuple[Run, Corpus, Corpus]:
    """Make a new run folder. The run, with its first weights, and the
    corpora that it is trained and validated on.

    RunError where the folder has something in it already; DataError.
    """
    check_new(folder)
    data = open_data(recipe)
    source, target = data.tokenizers()  # fails where there is no data
    recipe = with_precision(data.recipe, device)
    for line in data.notes:
        print(line, file=sys.stderr)
    corpora = _corpora(data)
    if recipe.fit:
        recipe = _fitted(recipe, corpora[0], source, target, device)
    run = Run(recipe, source, target, first_model(recipe, source, target))
    folder.mkdir(parents=True, exist_ok=True)
    run.write(folder)
    return run, *corpora


FREE = {f.name for f in dataclasses.fields(SearchConfig)} | {
    *("about", "max_steps", "max_minutes", "micro_tokens", "save_minutes"),
    *("rate", "warmup", "cooldown", "clip", "precision", "compile"),
    *("dropout", "attention_dropout", "activation_dropout"),
    "label_smoothing",
}


def resume_run(recipe: Recipe, folder: Path) -> tuple[Run, Corpus, Corpus]:
    """As begin_run, of a run that was begun. RunError where recipe is
    another in anything but the fields that are FREE.
    """
    run = Run.as_begun(folder)
    if recipe.fit:  # it was fitted when the run began
        recipe = run.recipe
    if recipe.training.precision == "auto":  # and decided
        recipe = recipe.changed(precision=run.recipe.training.precision)
    tokenizers = run.source, run.target
    data = open_data(recipe, tokenizers)
    recipe, begun = data.recipe, run.recipe.flat()
    for name, new in recipe.unlike(run.recipe).items():
        if name not in FREE:
            raise RunError(
                f"{folder} was begun with {name} {begun[name]!r}: resume "
                f"it with that, not with {new!r}, which takes a new run"
            )
    if recipe != run.recipe:
        line = described(recipe, run.recipe, "resuming with")
        print(line, file=sys.stderr)
        run = dataclasses.replace(
            run, recipe=recipe, model=first_model(recipe, *tokenizers)
        )
        run.write(folder)
    return run, *_corpora(data)


# E9-recipes.md: Translating lines
MAX_SOURCE = 512


@dataclass(frozen=True)
class Translation:
    """A line of text, its score, and the log of its probability."""

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
