"""Put a trained run where it travels with the package.

    python benchmarks/run_recipe.py pocket --out RUN \
        --json book/results/pocket-cpu.json
    python benchmarks/ship.py RUN pocket
    make export

Recipe, tokenizers, summary, log, and the weights in float16, half as large.
It is refused if the smaller weights translate the test set otherwise, or if
the folder is larger than --most bytes. Only pocket is part of the package;
other runs lie in data/runs, with a card of theirs (README.md), which stays.
"""

from __future__ import annotations

import json
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
    "words.txt",  # of a translator of everyday sentences
)
SAME = 0.995  # of the test sentences: rounding may tip a tie


def thin(log: Path, every: int) -> None:
    """Drop all but one in so many of a log's steps; keep the validations."""
    lines = log.read_text("utf-8").splitlines(keepends=True)
    kept = [
        line
        for line in lines
        if "loss" not in (note := json.loads(line))
        or note["step"] % every == 0
    ]
    log.write_text("".join(kept), "utf-8")


def squeeze(path: Path) -> None:
    """The same JSON in one line."""
    told = json.loads(path.read_text("utf-8"))
    text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text, "utf-8")


def main(
    run: Annotated[Path, tyro.conf.Positional],
    name: Annotated[str, tyro.conf.Positional],
    *,
    most: int = 2_000_000,
    every: int = 1,
) -> None:
    """Check a run folder, and copy what one needs to translate with it.

    Args:
        run: the run's folder
        name: its name in data/runs
        most: how many bytes it may have
        every: of the log's steps, keep one in so many
    """
    whole = Run.open(run)
    src, _ = open_data(whole.recipe).text("test")
    with tempfile.TemporaryDirectory() as place:
        small = Path(place, name)
        small.mkdir()
        for file in (*FILES, "README.md"):
            source = run if file in FILES else RUNS / name
            if (source / file).is_file():
                shutil.copy(source / file, small)
        thin(small / "metrics.jsonl", every)
        for side in ("source.json", "target.json"):
            squeeze(small / side)
        weights = read_tensors(run / "model.safetensors")
        half = {n: w.half() for n, w in weights.items()}
        write_tensors(half, small / "model.safetensors")
        size = sum(file.stat().st_size for file in small.iterdir())
        if size > most:
            sys.exit(f"{run}: {size:,} bytes, and {most:,} are allowed")
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
