"""How high a peak a model bears after how long a warm-up (chapter 12).

    python benchmarks/warmup.py --json book/results/warmup.json
    python benchmarks/warmup.py --layers 1 --seeds 1

Every peak, after every warm-up, with the norm behind the sub-layers and
before them: the model of chapter 12, which repeats eight random symbols.
A run that --work has is not made again.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import tyro
from ledger import append, entry_of_runs, make_runs, read

from annotated.book.results import commit
from annotated.model import Transformer, TransformerConfig
from annotated.schedule import make_optimizer, set_learning_rate

NORMS = "post", "pre"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure."""

    peaks: tuple[float, ...] = (3e-4, 6e-4, 1e-3, 2e-3, 3e-3, 6e-3)
    warmups: tuple[int, ...] = (1, 15, 60, 150)
    """steps in which the rate climbs to its peak, where it stays"""
    layers: int = 6
    """of the encoder, and of the decoder"""
    steps: int = 300
    seeds: int = 3
    first: int = 0
    """the first seed, where several processes share the work"""
    work: Path | None = None
    """a file of finished runs, to go on from; unless given, a new one"""
    json: Path | None = None
    """write the result here"""


def learn(
    norm: str, peak: float, warmup: int, layers: int, steps: int, seed: int
) -> float | None:
    """The mean of the last twenty losses; None where it is no number."""
    torch.manual_seed(seed)
    model = Transformer(
        TransformerConfig(
            src_vocab=16,
            tgt_vocab=16,
            d_model=64,
            d_ff=128,
            num_heads=4,
            num_encoder_layers=layers,
            num_decoder_layers=layers,
            dropout=0.0,
            norm=norm,  # type: ignore[arg-type]
        )
    )
    optimizer = make_optimizer(model.parameters())
    losses = []
    for step in range(1, steps + 1):
        ids = torch.randint(4, 16, (32, 8))
        tgt = torch.cat([torch.ones(32, 1).long(), ids[:, :-1]], dim=1)
        logits = model(ids, tgt).flatten(0, 1)
        loss = F.cross_entropy(logits, ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        set_learning_rate(optimizer, peak * min(1, step / warmup))
        optimizer.step()
        losses.append(loss.item())
    last = losses[-20:]
    mean = sum(last) / len(last)
    return mean if math.isfinite(mean) else None


def run(settings: Settings, work: Path) -> None:
    """Make every run that work lacks; a seed of all before the next."""
    here = commit()  # of the code that was loaded
    seeds = range(settings.first, settings.first + settings.seeds)
    for seed, norm, warmup, peak in itertools.product(
        seeds, NORMS, settings.warmups, settings.peaks
    ):
        cell = {"norm": norm, "peak": peak, "warmup": warmup}
        shape = {"layers": settings.layers, "steps": settings.steps}
        name = cell | shape | {"seed": seed}
        if any(name.items() <= one.items() for one in read(work)):
            continue
        begin = time.process_time()
        loss = learn(norm, peak, warmup, **shape, seed=seed)
        seconds = round(time.process_time() - begin, 1)
        append(
            work, name | {"loss": loss, "seconds": seconds, "commit": here}
        )


def result(
    settings: Settings, runs: list[dict[str, Any]]
) -> dict[str, Any]:
    """What the ledger wants to know: the losses of all seeds, by cell."""
    cells: dict[tuple[Any, ...], list[float | None]] = {}
    for one in sorted(runs, key=lambda one: one["seed"]):
        name = tuple(one[key] for key in ("norm", "warmup", "peak"))
        cells.setdefault(name, []).append(one["loss"])
    rows = [
        {"norm": norm, "warmup": warmup, "peak": peak, "losses": losses}
        for (norm, warmup, peak), losses in sorted(cells.items())
    ]
    return entry_of_runs("warmup.py", settings, {"cells": rows}, runs)


def main() -> None:
    make_runs(tyro.cli(Settings), run, result)


if __name__ == "__main__":
    main()
