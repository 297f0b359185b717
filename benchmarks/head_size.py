"""One head or eight, 8 numbers wide or 64: which of the two matters?

    python benchmarks/head_size.py --work RUNS.jsonl \
        --json book/results/head-size.json      # 15 minutes of one core

Chapter 23's small models change the number of heads and their width at
once, as rows (A) of Table 3 do. Two rows more take them apart: eight heads
as wide as the single one, and a single head as narrow as the eight. The
other two of the four are rows of the ledger's sweep, `base` and `A-h1`,
which has as many steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tyro
from ledger import Settings, entry_of_runs, make_each, make_runs

from annotated.book.sweep import one_run, shared_data
from annotated.variations import small_rows

ROWS: dict[str, dict[str, Any]] = {
    "8 heads of 64": {"num_heads": 8, "d_k": 64, "d_v": 64},
    "1 head of 8": {"num_heads": 1, "d_k": 8, "d_v": 8},
}


def run(settings: Settings, work: Path) -> None:
    """Make the runs that work lacks, a seed of both rows at a time."""
    base = small_rows(settings.steps)["base"]
    data = shared_data(base)

    def make(row: str, seed: int) -> dict[str, Any]:
        return one_run(base.changed(seed=seed, **ROWS[row]), data)

    make_each(work, settings.seeds, "row", ROWS, make)


def result(settings: Settings, runs: list[dict[str, Any]]) -> Any:
    return entry_of_runs(
        "head_size.py", settings, {"runs": runs}, runs,
        packages=("numpy", "sacrebleu"),
    )  # fmt: skip


def main() -> None:
    make_runs(tyro.cli(Settings), run, result)


if __name__ == "__main__":
    main()
