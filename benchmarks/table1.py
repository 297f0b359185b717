"""The layers of Table 1, timed: exponents in n, d, k and r, and the length
at which self-attention has become slower than a recurrent layer.

Every exponent is the slope of processor time on logarithmic axes, over
four sizes that double; beside it stand the exponent that the paper states
and that of the operations, counted at the same sizes. Chapter 09 shows
the result.

    python benchmarks/table1.py
    python benchmarks/table1.py --json book/results/table1.json

Two or three minutes on one core.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from ledger import typed, write
from torch import nn

from annotated.attention import MultiHeadAttention
from annotated.book.counters import exponent, multiplications
from annotated.book.results import entry
from annotated.complexity import (
    Convolution,
    Recurrent,
    RestrictedSelfAttention,
    SelfAttention,
    SeparableConvolution,
)
from annotated.engine.timing import seconds

LAYERS: dict[str, Callable[[dict[str, int]], nn.Module]] = {
    "self-attention": lambda s: SelfAttention(s["d"]),
    "recurrent": lambda s: Recurrent(s["d"]),
    "convolutional": lambda s: Convolution(s["d"], s["k"]),
    "separable": lambda s: SeparableConvolution(s["d"], s["k"]),
    "restricted": lambda s: RestrictedSelfAttention(s["d"], s["r"]),
    "with projections": lambda s: MultiHeadAttention(s["d"], 8, bias=False),
}


@dataclass(frozen=True)
class Row:
    """One exponent to be measured: sizes doubles along the axis."""

    layer: str
    axis: str
    stated: int  # by Table 1, or by the text of §4
    first: int
    others: dict[str, int]
    batch: int = 1


ROWS = (
    Row("self-attention", "n", 2, 256, {"d": 256}),
    Row("self-attention", "d", 1, 512, {"n": 512}),
    Row("recurrent", "n", 1, 64, {"d": 256}, 16),
    Row("recurrent", "d", 2, 256, {"n": 16}, 64),
    Row("convolutional", "n", 1, 256, {"d": 256, "k": 3}),
    Row("convolutional", "d", 2, 256, {"n": 256, "k": 3}),
    Row("convolutional", "k", 1, 4, {"n": 512, "d": 256}),
    Row("separable", "n", 1, 256, {"d": 512, "k": 3}),
    # its kernels are linear in d: below some thousands they show
    Row("separable", "d", 2, 1024, {"n": 256, "k": 3}),
    Row("restricted", "n", 1, 512, {"d": 256, "r": 33}),
    Row("restricted", "d", 1, 512, {"n": 512, "r": 33}),
    Row("restricted", "r", 1, 32, {"n": 512, "d": 512}),
    Row("with projections", "n", 2, 128, {"d": 256}),
    Row("with projections", "d", 1, 256, {"n": 256}),
)


@dataclass(frozen=True)
class Settings:
    """Time the layers of Table 1."""

    budget: float = 5.0
    """seconds for each exponent, shared by its four sizes"""

    shrink: int = 1
    """divide n and d by this, to try the script"""

    widths: tuple[int, ...] = (64, 128, 256)
    """d, for the crossing of self-attention and the recurrent layer"""

    json: Path | None = None
    """a ledger file to write"""


def measure(row: Row, settings: Settings) -> dict[str, Any]:
    """The exponents of time and of operations, and what they are from."""
    torch.manual_seed(0)
    sizes = [row.first * 2**i for i in range(4)]
    fixed = row.others
    if row.axis in "nd":
        sizes = [size // settings.shrink for size in sizes]
    fixed = {
        name: value // settings.shrink if name in "nd" else value
        for name, value in fixed.items()
    }
    calls, counted = [], []
    for size in sizes:
        shape = fixed | {row.axis: size}
        layer = LAYERS[row.layer](shape)
        x = torch.randn(row.batch, shape["n"], shape["d"])
        counted.append(multiplications(layer, x))
        calls.append(partial(layer, x))
    with torch.no_grad():
        times = seconds(*calls, budget=settings.budget)
    return {
        "layer": row.layer,
        "axis": row.axis,
        "sizes": sizes,
        "fixed": fixed | {"batch": row.batch},
        "stated": row.stated,
        "operations": exponent(sizes, counted),
        "time": exponent(sizes, times),
        "seconds": times,
    }


def crossing(d: int, settings: Settings) -> dict[str, Any]:
    """Times of two layers from n = d / 2 to 16 d, and the length at which
    self-attention takes as long as the recurrent layer; null where it is
    not between them.
    """
    torch.manual_seed(0)
    lengths = [d * 2**i // 2 for i in range(6)]
    times = {}
    for kind in ("recurrent", "self-attention"):
        layer = LAYERS[kind]({"d": d})
        inputs = [torch.randn(8, n, d) for n in lengths]
        with torch.no_grad():
            calls = [partial(layer, x) for x in inputs]
            times[kind] = seconds(*calls, budget=2 * settings.budget)
    ratio = np.log(times["self-attention"]) - np.log(times["recurrent"])
    found = None
    if ratio[0] < 0 < ratio[-1]:
        above = int(np.argmax(ratio > 0))
        part = ratio[above - 1] / (ratio[above - 1] - ratio[above])
        found = lengths[above - 1] * 2 ** float(part)
    return {"d": d, "lengths": lengths, "seconds": times, "crossing": found}


def main(argv: Sequence[str] | None = None) -> int:
    settings = tyro.cli(
        Settings, args=argv, description=(__doc__ or "").splitlines()[0]
    )
    torch.set_num_threads(1)
    start = time.perf_counter()
    rows = []
    for row in ROWS:
        rows.append(measure(row, settings))
        print(
            f"{row.layer:17}{row.axis}  stated {row.stated}  operations "
            f"{rows[-1]['operations']:.2f}  time {rows[-1]['time']:.2f}"
        )
    crossings = [crossing(d, settings) for d in settings.widths]
    for one in crossings:
        print(f"d = {one['d']}: as slow from n = {one['crossing']}")
    if settings.json is not None:
        shape = asdict(settings)
        del shape["json"]
        content = entry(
            "table1",
            typed("table1.py", settings),
            {"exponents": rows, "crossings": crossings},
            seed=0,
            wall_seconds=time.perf_counter() - start,
            settings=shape,
            threads=1,
        )
        write(settings.json, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
