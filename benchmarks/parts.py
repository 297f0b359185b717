"""What each part of the model is for: small trainings, three seeds each.

    python benchmarks/parts.py                  # an hour of one core
    python benchmarks/parts.py --json book/results/parts.json
    python benchmarks/parts.py --only heads --seeds 5

Chapters 02 to 08 build their tables from the file. A run that
--work has is not made again.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
import tyro
from ledger import append, entry_of_runs, make_runs, read
from torch import Tensor, nn

from annotated.attention import MultiHeadAttention
from annotated.book import example
from annotated.book.example import (
    LETTERS,
    exact,
    reversal_model,
    train_reversal,
    write,
)
from annotated.book.results import commit
from annotated.embeddings import sinusoids
from annotated.engine.hooks import replace
from annotated.layers import EncoderLayer, FeedForward
from annotated.model import Transformer

Found = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure."""

    only: (
        Literal["example", "heads", "networks", "depth", "places"] | None
    ) = None
    """one of the studies, unless all"""
    seeds: int = 3
    first: int = 0
    """the first seed, where several processes share the work"""
    steps: int = 400
    """of the running example"""
    head_steps: int = 800
    network_steps: int = 1500
    work: Path | None = None
    """a file of finished runs, to go on from; unless given, a new one"""
    json: Path | None = None
    """write the result here"""


def ending(losses: list[float]) -> Found:
    """What is kept of a curve: the mean of its last ten losses, the first
    step below 0.1, and every tenth part. What is no number is null.
    """
    every = max(1, len(losses) // 40)
    means = [
        sum(losses[i : i + every]) / every
        for i in range(0, len(losses) - every + 1, every)
    ]
    below = (i for i, loss in enumerate(losses, 1) if loss < 0.1)
    return {
        "loss": number(sum(losses[-10:]) / len(losses[-10:])),
        "learned_at": next(below, None),
        "curve": [number(mean) for mean in means],
    }


def number(value: float) -> float | None:
    return value if math.isfinite(value) else None


# --- the running example, one part changed --------------------------------

TWO = {"num_encoder_layers": 2, "num_decoder_layers": 2}
FOUR = {"num_encoder_layers": 4, "num_decoder_layers": 4}


class BatchNorm(nn.Module):
    """Normalises each feature over all positions of all sentences."""

    def __init__(self, norm: nn.LayerNorm):
        super().__init__()
        self.norm = nn.BatchNorm1d(norm.normalized_shape[0])

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.flatten(0, 1)).view_as(x)


def batch_norms(model: Transformer) -> None:
    replace(model, nn.LayerNorm, BatchNorm)


Change = tuple[dict[str, Any], Callable[[Transformer], Any] | None]
EXAMPLE: dict[str, Change] = {
    "whole": ({}, None),
    "whole, 2+2 layers": (TWO, None),
    "without the factor, one head": (
        {"num_heads": 1},
        partial(example.without, part="factor"),
    ),
    "without the factor": ({}, partial(example.without, part="factor")),
    "without the mask": ({}, partial(example.without, part="mask")),
    "one head": ({"num_heads": 1}, None),
    "without networks": ({}, partial(example.without, part="networks")),
    "without residuals": ({}, partial(example.without, part="residuals")),
    "without residuals, 2+2 layers": (
        TWO,
        partial(example.without, part="residuals"),
    ),
    "without norms": ({}, partial(example.without, part="norms")),
    "without norms, 2+2 layers": (
        TWO,
        partial(example.without, part="norms"),
    ),
    "pre-norm": ({"norm": "pre"}, None),
    "batch norm": ({}, batch_norms),
    "without the root": ({}, partial(example.without, part="root")),
    "without positions": ({}, partial(example.without, part="positions")),
    "learned positions": ({"positions": "learned"}, None),
}
DEPTH: dict[str, tuple[Change, float]] = {
    "post-norm": ((FOUR, None), 1.0),
    "pre-norm": ((FOUR | {"norm": "pre"}, None), 1.0),
    "post-norm, a third of the rate": ((FOUR, None), 1 / 3),
    "without norms": ((FOUR, partial(example.without, part="norms")), 1.0),
}


def learn(
    settings: Settings, seed: int, change: Change, factor: float = 1.0
) -> Found:
    """Train the running example so changed."""
    changes, take_out = change
    model = reversal_model(seed, **changes)
    if take_out is not None:
        take_out(model)
    losses = train_reversal(model, settings.steps, seed, factor=factor)
    return {
        **ending(losses),
        "exact": exact(model),
        "word": write(model, "attention"),
    }


def learn_example(settings: Settings, name: str, seed: int) -> Found:
    return learn(settings, seed, EXAMPLE[name])


def learn_deep(settings: Settings, name: str, seed: int) -> Found:
    return learn(settings, seed, *DEPTH[name])


# --- where positions are, and how fast their clocks run -------------------


class Clocks(nn.Module):
    """Sinusoids of width d with another base than 10,000, in the last
    columns of a vector of 64 numbers.
    """

    def __init__(self, base: float = 10_000.0, width: int = 64):
        super().__init__()
        even = torch.arange(0, width, 2) / width
        angle = torch.arange(64.0)[:, None] / base**even
        table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
        self.register_buffer("table", F.pad(table, (64 - width, 0)))

    def forward(self, length: int) -> Tensor:
        return self.table[:length]


def other_clocks(base: float) -> Callable[[Transformer], None]:
    def change(model: Transformer) -> None:
        model.src_positions = model.tgt_positions = Clocks(base)

    return change


def beside(width: int) -> Callable[[Transformer], None]:
    """Positions not added to the token's vector but set beside it: they
    have the last columns, of `width`, for themselves.
    """

    def change(model: Transformer) -> None:
        clocks = Clocks(width=width)
        model.src_positions = model.tgt_positions = clocks
        tokens = torch.ones(64)
        tokens[64 - width :] = 0
        embeddings = model.embeddings
        for name in ("read_source", "read_target"):
            setattr(
                embeddings, name, cut(getattr(embeddings, name), tokens)
            )

    def cut(read: Callable[[Tensor], Tensor], tokens: Tensor) -> Any:
        return lambda ids: read(ids) * tokens

    return change


PLACES: dict[str, Change] = {
    "beside, 48 + 16": ({}, beside(16)),
    "beside, 32 + 32": ({}, beside(32)),
    "base 1": ({}, other_clocks(1.0)),
    "base 10": ({}, other_clocks(10.0)),
    "base 100": ({}, other_clocks(100.0)),
    "base 1000000": ({}, other_clocks(1e6)),
}


def learn_places(settings: Settings, name: str, seed: int) -> Found:
    return learn(settings, seed, PLACES[name])


# --- several questions about a letter, and the heads to ask them ----------

OFFSETS = {2: (-1, 1), 4: (-2, -1, 1, 2)}  # of the letters asked for


class Questions(nn.Module):
    """Reads off the letters around each, by attention alone or by a whole
    encoder layer, which has a network behind it.
    """

    def __init__(self, num_heads: int, asked: int, network: bool):
        super().__init__()
        attention: nn.Module = MultiHeadAttention(64, num_heads)
        if network:
            attention = EncoderLayer(attention, FeedForward(64, 256))
        self.letters = nn.Embedding(len(LETTERS), 64)
        self.layer = attention
        self.read = nn.Linear(64, asked * len(LETTERS))
        self.positions = sinusoids(12, 64)

    def forward(self, letters: Tensor) -> Tensor:
        """(words, n) -> logits of each answer, (words, n, asked, 26)."""
        x = self.layer(self.letters(letters) + self.positions)
        return self.read(x).unflatten(-1, (-1, len(LETTERS)))


def answers(letters: Tensor, offsets: tuple[int, ...]) -> Tensor:
    """The letters asked for, where all of them are in the word."""
    far = max(offsets)
    asked = [letters.roll(-offset, dims=1) for offset in offsets]
    return torch.stack(asked, dim=-1)[:, far:-far]


def learn_heads(
    settings: Settings, num_heads: int, asked: int, network: bool, seed: int
) -> Found:
    """Train it on random words; the share right, and of each question."""
    torch.manual_seed(seed)
    model, offsets = Questions(num_heads, asked, network), OFFSETS[asked]
    far = max(offsets)
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(settings.head_steps):
        letters = torch.randint(len(LETTERS), (64, 12))
        logits = model(letters)[:, far:-far].flatten(0, 2)
        loss = F.cross_entropy(logits, answers(letters, offsets).flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    with torch.no_grad():
        letters = torch.randint(len(LETTERS), (500, 12))
        found = model(letters)[:, far:-far].argmax(-1)
    right = (found == answers(letters, offsets)).float().mean(dim=(0, 1))
    return {
        **ending(losses),
        "right": right.mean().item(),
        "by_question": [round(share, 4) for share in right.tolist()],
        "parameters": parameters(model),
    }


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


# --- any rule of two letters needs a network ------------------------------


class Rule(nn.Module):
    """Yes or no at each letter, by one encoder layer."""

    def __init__(self, d_model: int, d_ff: int, length: int = 12):
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), d_model)
        attention = MultiHeadAttention(d_model, 2)
        self.layer = EncoderLayer(
            attention, FeedForward(d_model, d_ff or 1)
        )
        if not d_ff:
            example.without(self, "networks")
        self.read = nn.Linear(d_model, 1)
        self.positions = sinusoids(length, d_model)

    def forward(self, letters: Tensor) -> Tensor:
        """(words, n) -> (words, n): above 0 means yes."""
        x = self.letters(letters) + self.positions
        return self.read(self.layer(x)).squeeze(-1)


# width of the model and of its networks; the last five have as many
# parameters as the first, as nearly as an even width allows
SHAPES = [(16, 64), (16, 0), (26, 0), (24, 11), (20, 34), (12, 108)]


def learn_networks(
    settings: Settings, d_model: int, d_ff: int, seed: int
) -> Found:
    """Train it on a table of yes and no for every pair of letters, drawn
    at random; the share of right answers. (Half of all are yes.)
    """
    torch.manual_seed(seed)
    table = torch.rand(len(LETTERS), len(LETTERS)).round()
    model = Rule(d_model, d_ff)
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(settings.network_steps):
        letters = torch.randint(len(LETTERS), (64, 12))
        answers = table[letters[:, :-1], letters[:, 1:]]
        logits = model(letters)[:, 1:]
        loss = F.binary_cross_entropy_with_logits(logits, answers)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    with torch.no_grad():
        letters = torch.randint(len(LETTERS), (1000, 12))
        found = model(letters)[:, 1:] > 0
    right = found == table[letters[:, :-1], letters[:, 1:]].bool()
    return {
        **ending(losses),
        "right": right.float().mean().item(),
        "parameters": parameters(model),
    }


# --- all of them ----------------------------------------------------------

STUDIES: dict[str, tuple[Callable[..., Found], list[dict[str, Any]]]] = {
    "heads": (
        learn_heads,
        [
            {"num_heads": heads, "asked": asked, "network": network}
            for asked, network, most in (
                (2, False, (1, 2, 4)),
                (2, True, (1,)),
                (4, True, (1, 2, 4)),
            )
            for heads in most
        ],
    ),
    "networks": (
        learn_networks,
        [{"d_model": d, "d_ff": d_ff} for d, d_ff in SHAPES],
    ),
    "example": (learn_example, [{"name": name} for name in EXAMPLE]),
    "depth": (learn_deep, [{"name": name} for name in DEPTH]),
    "places": (learn_places, [{"name": name} for name in PLACES]),
}


def run(settings: Settings, work: Path) -> None:
    """Make every run that work lacks; a seed of a study before the next."""
    here = commit()  # of the code that was loaded
    seeds = range(settings.first, settings.first + settings.seeds)
    for study, (learn_one, cells) in STUDIES.items():
        if settings.only not in (None, study):
            continue
        for seed, cell in itertools.product(seeds, cells):
            name = {"study": study, **cell, "seed": seed}
            if any(name.items() <= one.items() for one in read(work)):
                continue
            begin = time.process_time()
            found = learn_one(settings, **cell, seed=seed)
            seconds = round(time.process_time() - begin, 1)
            told = {"seconds": seconds, "commit": here}
            append(work, name | found | told)


def result(settings: Settings, runs: list[Found]) -> Found:
    """What the ledger wants to know."""
    metrics: dict[str, Any] = {study: [] for study in STUDIES}
    left = ("study", "commit", "hardware", "curve")
    for one in runs:
        kept = {k: v for k, v in one.items() if k not in left}
        metrics[one["study"]].append(kept)
    return entry_of_runs("parts.py", settings, metrics, runs)


def main() -> None:
    make_runs(tyro.cli(Settings), run, result)


if __name__ == "__main__":
    main()
