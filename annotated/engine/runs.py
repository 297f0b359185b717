"""annotated.engine.runs.

Exported from the book; edit the chapter, then run `make export`.

- 18-multi30k.md: Multi30k and IWSLT: real sentences
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from annotated.batches import Corpus
from annotated.checkpoints import checkpoints, load_weights
from annotated.engine.data import (
    encode_pairs,
    load_usable,
    train_tokenizers,
)
from annotated.engine.errors import RunError
from annotated.engine.files import write_json
from annotated.engine.packing import PackedTransformer
from annotated.engine.recipes import Recipe
from annotated.engine.search import search_in_order
from annotated.model import Transformer, TransformerConfig
from annotated.search import Hypothesis, SearchConfig
from annotated.tokens import Tokenizer

__all__ = [
    "read_recipe",
    "MAX_SOURCE",
    "Translation",
    "one_line",
    "Run",
    "read_metrics",
    "best_step",
]


# 18-multi30k.md: A run and its folder
def read_recipe(folder: Path) -> Recipe:
    """The recipe of a run folder. RunError where there is none to use."""
    path = folder / "recipe.json"
    if not path.is_file():
        raise RunError(
            f"{folder} is no run folder, or not a whole one: it has no "
            "recipe.json"
        )
    try:
        values = json.loads(path.read_text("utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it holds no fields")
        known = {f.name for f in dataclasses.fields(Recipe)}
        if strange := values.keys() - known:
            raise ValueError(
                f"this version knows no field {', '.join(sorted(strange))}"
            )
        return Recipe(**values)
    except (TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}") from None


def _first_model(
    recipe: Recipe, source: Tokenizer, target: Tokenizer
) -> Transformer:
    """The model with its first weights, a function of the recipe's seed."""
    config = recipe.model_config(len(source), len(target))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return PackedTransformer(config)


def _check_lengths(recipe: Recipe, corpus: Corpus) -> None:
    """Learned positions are as many as max_len, and no more."""
    longest = 1 + int(
        max(corpus.src.lengths.max(), corpus.tgt.lengths.max())
    )
    if recipe.positions == "learned" and longest > recipe.max_len:
        raise RunError(
            f"{recipe.data} has a sentence of {longest} tokens: max_len "
            f"{recipe.max_len} is too short for it"
        )


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

    @classmethod
    def begin(cls, recipe: Recipe, folder: Path) -> tuple[Run, Corpus]:
        """Make a new run folder; returns the run and its training corpus.

        Raises RunError where the folder has something in it already, and
        writes nothing before all else has gone well.
        """
        if folder.exists() and (
            not folder.is_dir() or any(folder.iterdir())
        ):
            raise RunError(
                f"{folder} is not empty: choose another --out, or --resume"
            )
        pairs = load_usable(recipe, "train")
        source, target = train_tokenizers(recipe, pairs)
        corpus = encode_pairs(pairs, source, target)
        _check_lengths(recipe, corpus)
        run = cls(
            recipe, source, target, _first_model(recipe, source, target)
        )
        folder.mkdir(parents=True, exist_ok=True)
        source.save(folder / "source.json")
        target.save(folder / "target.json")
        # last: a folder that has it is a whole one
        write_json(folder / "recipe.json", dataclasses.asdict(recipe))
        return run, corpus

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
        search = search or self.recipe.search_config()
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
        except RuntimeError as error:
            if "exited unexpectedly" not in str(error):
                raise
            raise RunError(
                "a process that searched has died, for lack of memory "
                "perhaps: fewer workers and batch_tokens need less"
            ) from None
        for i, hypotheses in zip(owner, results, strict=True):
            found[i].append(hypotheses)
        return [self._texts(parts) for parts in found]

    def _texts(self, parts: list[list[Hypothesis]]) -> list[Translation]:
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


# 18-multi30k.md: Stop, and go on
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
