"""Put a trained run where it travels with the package.

    python benchmarks/run_recipe.py pocket --out RUN \
        --json book/results/pocket-cpu.json
    python benchmarks/ship.py RUN pocket
    make export

Recipe, tokenizers, summary, log, and the weights in float16, half as large.
It is refused if the smaller weights translate the test set otherwise, or if
the folder is larger than two megabytes.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import tyro

from annotated.engine.data import open_data
from annotated.engine.runs import Run
from annotated.engine.tensors import read_tensors, write_tensors

RUNS = Path(__file__).resolve().parents[1] / "data" / "runs"
FILES = (
    "recipe.json",
    "source.json",
    "target.json",
    "summary.json",
    "metrics.jsonl",
)
MOST = 2_000_000  # bytes
SAME = 0.995  # of the test sentences: rounding may tip a tie


def main(
    run: Annotated[Path, tyro.conf.Positional],
    name: Annotated[str, tyro.conf.Positional],
) -> None:
    """Check a run folder, and copy what one needs to translate with it."""
    whole = Run.open(run)
    src, _ = open_data(whole.recipe).text("test")
    with tempfile.TemporaryDirectory() as place:
        small = Path(place, name)
        small.mkdir()
        for file in FILES:
            shutil.copy(run / file, small)
        weights = read_tensors(run / "model.safetensors")
        half = {n: w.half() for n, w in weights.items()}
        write_tensors(half, small / "model.safetensors")
        size = sum(file.stat().st_size for file in small.iterdir())
        if size > MOST:
            sys.exit(f"{run}: {size:,} bytes, and {MOST:,} are allowed")
        two = [r.translate(src) for r in (whole, Run.open(small))]
        same = sum(
            a[0].text == b[0].text for a, b in zip(*two, strict=True)
        )
        if same < SAME * len(src):
            sys.exit(
                f"{run}: only {same} of {len(src)} sentences are the same"
            )
        shutil.rmtree(RUNS / name, ignore_errors=True)
        shutil.copytree(small, RUNS / name)
    print(f"{RUNS / name}: {size:,} bytes; {same} of {len(src)} the same")


if __name__ == "__main__":
    tyro.cli(main, description=(__doc__ or "").splitlines()[0])
