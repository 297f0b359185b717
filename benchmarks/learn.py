"""The training of the running example in JavaScript: what each missing part
does, three seeds each, and the time beside PyTorch's.

    python benchmarks/learn.py                  # needs node; half an hour
    python benchmarks/learn.py --json book/results/learn.json

Page E30 builds its tables from the file.
"""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from ledger import write

from annotated.book.example import reversal_model, train_reversal
from annotated.book.results import commit, entry

HERE = Path(__file__).parent
OFF = False
CHANGES: dict[str, dict[str, Any]] = {
    "unchanged": {},
    "no positions": {"positions": OFF},
    "no mask": {"mask": OFF},
    "no factor, 1 head": {"factor": OFF, "heads": 1},
    "no factor": {"factor": OFF},
    "no networks": {"network": OFF},
    "no residuals": {"residual": OFF},
    "no residuals, 2 layers": {"residual": OFF, "layers": 2},
    "2 layers": {"layers": 2},
    "no warm-up": {"warmup": OFF},
    "rate × 10": {"rate": 10},
    "rate × 0.1": {"rate": 0.1},
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure."""

    seeds: int = 3
    rounds: int = 3
    """of the times, in each of which all take turns"""
    steps: int = 30
    """of a round"""
    json: Path | None = None
    """write the result here"""


def trainings(settings: Settings) -> list[dict[str, Any]]:
    """One entry for each change and seed, from the figure's own engine."""
    command = ["node", HERE / "learn.mjs", json.dumps(CHANGES)]
    runs = []
    with subprocess.Popen(
        [*command, str(settings.seeds)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            runs.append(json.loads(line))
    if process.returncode:
        raise SystemExit(f"node ended with {process.returncode}")
    return runs


def times(settings: Settings) -> dict[str, list[float]]:
    """Milliseconds of the processor for a step, of each round."""
    found: dict[str, list[float]] = {}
    for _ in range(settings.rounds):
        for kind in ("WebAssembly", "JavaScript"):
            command = ["node", HERE / "learn_step.mjs", kind]
            done = subprocess.run(
                [*command, str(settings.steps)],
                check=True,
                capture_output=True,
                text=True,
            )
            found.setdefault(kind, []).append(float(done.stdout))
        model = reversal_model()
        train_reversal(model, 5)
        start = time.process_time()
        train_reversal(model, settings.steps)
        spent = time.process_time() - start
        found.setdefault("PyTorch", []).append(1e3 * spent / settings.steps)
    return found


def main(settings: Settings) -> None:
    torch.set_num_threads(1)
    here, start = commit(), time.time()
    metrics = {"times": times(settings), "runs": trainings(settings)}
    node = subprocess.check_output(["node", "--version"], text=True).strip()
    record = entry(
        "learn",
        "python benchmarks/learn.py",
        metrics,
        wall_seconds=time.time() - start,
        settings={"seeds": settings.seeds, "rounds": settings.rounds},
        threads=1,
    )
    record["commit"] = here
    record["versions"] += f", node {node}"
    if settings.json is None:
        print(json.dumps(record, indent=1, ensure_ascii=False))
    else:
        write(settings.json, record)


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
