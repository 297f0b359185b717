"""What positions do beyond the longest word, from several seeds.

    python benchmarks/lengths.py --work RUNS.jsonl \
        --json book/results/lengths.json       # five minutes of one core

Chapter 07's model learns to copy words of one to nine letters, with
sinusoids, with learned positions and without any, and is then given words
of 18 letters. What counts is, position by position, in how many words the
letter is right after a right prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ledger
import torch
import tyro
from ledger import entry_of_runs, make_each, make_runs
from torch import Tensor

from annotated.book.example import (
    reversal_batch,
    reversal_model,
    train_reversal,
)
from annotated.embeddings import SinusoidalPositions
from annotated.engine.hooks import replace
from annotated.model import Transformer
from annotated.since import NoPositions

KINDS = "sinusoidal", "learned", "none"
LEARNED, JUDGED = range(1, 10), 18


@dataclass(frozen=True, kw_only=True)
class Settings(ledger.Settings):
    """What to run."""

    steps: int = 600


def copy_batch(
    length: int,
    words: int = 64,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Like reversal_batch, but the target is a copy of the source."""
    src, tgt, labels = reversal_batch(length, words, generator)
    tgt[:, 1:], labels[:, :-1] = src[:, :-1], src[:, :-1]
    return src, tgt, labels


def trained(kind: str, seed: int, steps: int) -> Transformer:
    """A model as chapter 07 builds and trains it."""
    positions = "learned" if kind == "learned" else "sinusoidal"
    model = reversal_model(seed, positions=positions, max_len=64)
    if kind == "none":
        replace(model, SinusoidalPositions, lambda old: NoPositions())
    train_reversal(model, steps, seed, LEARNED, batch=copy_batch)
    return model


@torch.no_grad()
def right_letters(model: Transformer, words: int = 200) -> list[float]:
    """By position, the share that is right; without the end."""
    draw = torch.Generator().manual_seed(2017)
    src, tgt, labels = copy_batch(JUDGED, words, draw)
    right = model(src, tgt).argmax(-1) == labels
    return [round(x, 3) for x in right.double().mean(0)[:JUDGED].tolist()]


def run(settings: Settings, work: Path) -> None:
    """Make the runs that work lacks."""

    def make(kind: str, seed: int) -> dict[str, Any]:
        return {"right": right_letters(trained(kind, seed, settings.steps))}

    make_each(work, settings.seeds, "positions", KINDS, make)


def result(settings: Settings, runs: list[dict[str, Any]]) -> Any:
    return entry_of_runs("lengths.py", settings, {"runs": runs}, runs)


def main() -> None:
    make_runs(tyro.cli(Settings, description=__doc__), run, result)


if __name__ == "__main__":
    main()
