"""Five ways to read a word, each from several seeds.

    python benchmarks/readers.py --work RUNS.jsonl \
        --json book/results/readers.json       # ten minutes of one core

Chapter 01 trains one of each: a recurrent network and an LSTM without and
with attention, convolutions with attention, and a Transformer learn to
write words of four to nine letters backwards. Here each is trained from
several seeds, and judged by the share of words of 3 to 12 letters that come
out without a mistake.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import tyro
from ledger import Settings, entry_of_runs, make_each, make_runs
from torch import nn

from annotated.book.example import (
    VOCAB,
    exact,
    reversal_model,
    train_reversal,
)
from annotated.seq2seq import LSTM, RNN, Convolutions, EncoderDecoder

READERS = {  # what reads, and whether the decoder has attention
    "RNN": (lambda: RNN(64, 64), False),
    "LSTM": (lambda: LSTM(64, 64), False),
    "LSTM, attention": (lambda: LSTM(64, 64), True),
    "convolutions, attention": (lambda: Convolutions(64, layers=2), True),
}
TRANSFORMER = "Transformer"
LEARNED, JUDGED = range(4, 10), range(3, 13)


def train(name: str, seed: int, steps: int) -> nn.Module:
    """A reader as chapter 01 builds and trains it."""
    torch.manual_seed(seed)
    if name == TRANSFORMER:
        model: nn.Module = reversal_model(seed)
    else:
        make, attention = READERS[name]
        model = EncoderDecoder(make(), VOCAB, 64, attention)
    train_reversal(model, steps=steps, lengths=LEARNED, seed=seed)
    return model


def run(settings: Settings, work: Path) -> None:
    """Make the runs that work lacks."""

    def make(name: str, seed: int) -> dict[str, Any]:
        model = train(name, seed, settings.steps)
        return {
            "exact": {n: round(exact(model, n), 3) for n in JUDGED},
            "parameters": sum(p.numel() for p in model.parameters()),
        }

    names = (*READERS, TRANSFORMER)
    make_each(work, settings.seeds, "reader", names, make)


def result(settings: Settings, runs: list[dict[str, Any]]) -> Any:
    return entry_of_runs("readers.py", settings, {"runs": runs}, runs)


def main() -> None:
    make_runs(tyro.cli(Settings, description=__doc__), run, result)


if __name__ == "__main__":
    main()
