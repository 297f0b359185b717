"""Additive against dot-product attention, by d_k: what they learn.

The running example learns to write a word backwards, with one of three
scores in all its attentions: the paper's scaled dot product, the dot
product without its factor, and additive attention. Everything else is
equal. Chapter 09 draws the result.

    python benchmarks/additive.py
    python benchmarks/additive.py --json book/results/additive.json

Two or three minutes on two cores.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro
from ledger import typed, write
from torch import Tensor, nn

from annotated.attention import MultiHeadAttention
from annotated.book.example import exact, reversal_model, train_reversal
from annotated.book.results import entry
from annotated.engine.hooks import replace
from annotated.model import Transformer

KINDS = ("scaled", "unscaled", "additive")


@dataclass(frozen=True)
class Settings:
    """Train the running example with three kinds of scores."""

    d_k: tuple[int, ...] = (4, 16, 64)
    seeds: int = 3
    steps: int = 400
    num_heads: int = 4
    workers: int = 2
    """processes, of one thread each"""

    json: Path | None = None
    """a ledger file to write"""


class AdditiveAttention(MultiHeadAttention):
    """The same with the scores w · tanh(q + k), one w per head, which
    starts with variance 1 / d_k. Every query needs a key.
    """

    def __init__(self, d_model: int, num_heads: int, d_k: int, d_v: int):
        super().__init__(d_model, num_heads, d_k, d_v)
        start = torch.randn(num_heads, 1, d_k, 1)
        self.w = nn.Parameter(start / math.sqrt(d_k))

    def weights(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        memory = x if memory is None else memory
        q, k = self.split(self.w_q(x)), self.split(self.w_k(memory))
        hidden = torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3))
        scores = (hidden @ self.w).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(dim=-1)


def without_factor(block: MultiHeadAttention) -> None:
    """Multiply the queries by √d_k, which undoes the division."""

    def stretch(linear: nn.Module, x: Any, queries: Tensor) -> Tensor:
        return queries * math.sqrt(block.d_k)

    block.w_q.register_forward_hook(stretch)


def build(kind: str, d_k: int, seed: int, num_heads: int) -> Transformer:
    """The running example with heads of width d_k and such scores."""
    model = reversal_model(seed, num_heads=num_heads, d_k=d_k)
    if kind == "additive":
        replace(
            model,
            MultiHeadAttention,
            lambda part: AdditiveAttention(64, num_heads, d_k, part.d_v),
        )
    if kind == "unscaled":
        for part in model.modules():
            if isinstance(part, MultiHeadAttention):
                without_factor(part)
    return model


def learn(
    settings: Settings, d_k: int, kind: str, seed: int
) -> tuple[float, float]:
    """The mean of the last ten losses, and the share of words right."""
    torch.set_num_threads(1)
    model = build(kind, d_k, seed, settings.num_heads)
    curve = train_reversal(model, settings.steps, seed)
    return statistics.fmean(curve[-10:]), exact(model)


def measure(settings: Settings) -> list[dict[str, Any]]:
    """One row per kind and width: losses and shares, by seed."""
    kinds = list(itertools.product(settings.d_k, KINDS))
    runs = [(*kind, s) for kind in kinds for s in range(settings.seeds)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(settings.workers, context) as pool:
        found = list(pool.map(partial(learn, settings), *zip(*runs)))
    rows = []
    for i, (d_k, kind) in enumerate(kinds):
        seeds = found[i * settings.seeds : (i + 1) * settings.seeds]
        losses, right = map(list, zip(*seeds))
        rows.append(
            {"d_k": d_k, "kind": kind, "loss": losses, "exact": right}
        )
        print(f"d_k {d_k:3} {kind:9}", *(f"{loss:.3f}" for loss in losses))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    settings = tyro.cli(
        Settings, args=argv, description=(__doc__ or "").splitlines()[0]
    )
    start = time.perf_counter()
    rows = measure(settings)
    if settings.json is not None:
        shape = asdict(settings)
        del shape["json"], shape["workers"]
        content = entry(
            "additive",
            typed("additive.py", settings),
            {"rows": rows},
            wall_seconds=time.perf_counter() - start,
            settings=shape,
            threads=settings.workers,
        )
        write(settings.json, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
