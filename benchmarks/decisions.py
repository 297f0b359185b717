"""What each decision of the first recipe for captions is worth.

    python benchmarks/decisions.py --work RUNS.jsonl   # 10 minutes per row
    python benchmarks/decisions.py --work RUNS.jsonl \
        --json book/results/multi30k-decisions.json

The recipe multi30k came of it, and of benchmarks/trials.py. The first one,
spelled out in FIRST, is run in short (a fifth of its steps, with warm-up and
cool-down shortened alike, and the same peak of the rate), and again with one
decision taken differently; every run types the two commands that a user
types. From the run of the recipe itself come three things more: averages of
the last checkpoints, greedy search, and other values of α. One thread, so
that several processes can share the rows (--only).
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro
from ledger import (
    annotated,
    append,
    entry_of_runs,
    make_runs,
    read,
    rows_of,
    typed,
)
from run_recipe import curves

from annotated.book.results import commit
from annotated.engine.data import open_data
from annotated.engine.recipes import RECIPES, Recipe
from annotated.engine.runs import Run

ROWS: dict[str, dict[str, Any]] = {
    "recipe": {},
    "post-norm": {"norm": "post"},
    "width 64": {"d_model": 64},
    "width 192": {"d_model": 192},
    "width 256, dropout 0.3": {"d_model": 256, "dropout": 0.3},
    "no dropout": {"dropout": 0.0},
    "dropout 0.3": {"dropout": 0.3},
    "vocabulary 2,000": {"vocab": 2000},
    "vocabulary 8,000": {"vocab": 8000},
    "no smoothing": {"label_smoothing": 0.0},
    "no cool-down": {"cooldown": 0},
    "one head": {"num_heads": 1},
    "learned positions": {"positions": "learned"},
    "1,000 pairs": {"train_pairs": 1000},
    "3,000 pairs": {"train_pairs": 3000},
    "10,000 pairs": {"train_pairs": 10_000},
    "wider, 8,000": {"d_model": 192, "vocab": 8000},
    "wider, 8,000, no dropout": {
        "d_model": 192, "vocab": 8000, "dropout": 0.0,
    },
}  # fmt: skip
ALPHAS = (0.0, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8)
SPLITS = "valid", "test"
FIRST: dict[str, Any] = {
    "vocab": 4000, "num_encoder_layers": 3, "num_decoder_layers": 3,
    "d_model": 128, "d_ff": 512, "dropout": 0.2, "bpe_dropout": 0.0,
    "warmup": 1200, "max_steps": 8200, "cooldown": 3300, "save_every": 200,
    "keep": 4, "alpha": 1.2, "positions": "sinusoidal",
}  # fmt: skip
NOW = RECIPES["multi30k"]
BASE = NOW.changed(**FIRST)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to run."""

    share: float = 0.2
    """of the recipe's steps"""
    seeds: int = 1
    """0: only tell what has been found"""
    first: int = 0
    """the first seed"""
    only: tuple[str, ...] = ()
    """these rows, where several processes share the work"""
    work: Path | None = None
    """a file of finished runs, to go on from; unless given, a new one"""
    json: Path | None = None
    """write the result here"""


def varied(share: float, change: dict[str, Any], seed: int) -> Recipe:
    """A share of the recipe's steps, and of all that is counted in steps,
    with another decision. The rate peaks at rate / sqrt(d_model · warmup),
    and its peak stays.
    """
    how = BASE.training
    steps = {
        name: round(share * getattr(how, name))
        for name in ("max_steps", "warmup", "cooldown", "save_every")
    }
    made = BASE.changed(**{"seed": seed} | steps | change)
    longer = made.training.warmup / how.warmup
    wider = made.model.d_model / BASE.model.d_model
    rate = how.rate * math.sqrt(longer * wider)
    return made.changed(rate=round(rate, 3))


def words(changes: dict[str, Any]) -> list[str]:
    """Options of the command line."""
    return [
        str(word)
        for name, value in changes.items()
        for word in (
            f"--{name.replace('_', '-')}",
            *(value if isinstance(value, tuple) else (value,)),
        )
    ]


def bleu(folder: Path, split: str, *options: str) -> float:
    given = ["--run", str(folder), "--split", split, "--json", *options]
    return annotated("evaluate", *given)["bleu"]


def nats_per_character(folder: Path, nll: float) -> float:
    """Of the validation text: comparable whatever a token is."""
    run = Run.open(folder)
    data = open_data(run.recipe)
    _, lines = data.text("valid")
    # each line's end is a token too
    tokens = int(data.corpus("valid").tgt.lengths.sum()) + len(lines)
    return nll * tokens / sum(map(len, lines))


def run(settings: Settings, work: Path) -> None:
    """Make the runs that work lacks."""
    done = {(one["row"], one["seed"]) for one in read(work)}
    runs = work.with_suffix(f".{settings.share}")
    wrong = set(settings.only) - ROWS.keys()
    if wrong:
        sys.exit(f"no row {wrong.pop()!r}; there are {', '.join(ROWS)}")
    for seed in range(settings.first, settings.first + settings.seeds):
        for row in settings.only or ROWS:
            if (row, seed) not in done:
                folder = runs / f"{row} {seed}".replace(" ", "-") / "run"
                append(work, one_run(settings.share, row, seed, folder))
                shutil.rmtree(folder.parent)


def one_run(
    share: float, row: str, seed: int, folder: Path
) -> dict[str, Any]:
    """Train and judge a row; a folder that an interruption has left is gone
    on with. The seconds are those that its metrics count.
    """
    made = varied(share, ROWS[row], seed)
    told = annotated(
        "train", "multi30k", "--out", str(folder), *words(made.unlike(NOW)),
        *["--resume"] * (folder / "recipe.json").exists(),
    )  # fmt: skip
    nll = told["valid"]["nll"]
    found = {
        "row": row,
        "options": " ".join(words(ROWS[row])),
        "seed": seed,
        "parameters": told["parameters"],
        "epochs": told["epochs"],
        "nats": nats_per_character(folder, nll),
        "valid_bleu": bleu(folder, SPLITS[0]),
        "bleu": bleu(folder, SPLITS[1]),
        "seconds": curves(folder)["curve"][-1][1],
    }
    if row == "recipe":
        found |= more_of(folder)
    return found | {"commit": commit()}


def more_of(folder: Path) -> dict[str, Any]:
    """What the run of the recipe can say of search and averaging."""

    def both(place: Path, *options: str) -> list[float]:
        return [bleu(place, split, *options) for split in SPLITS]

    averages = {}
    for last in (1, BASE.training.keep):
        mean = folder.with_name(f"last-{last}")
        annotated(
            "average", "--run", str(folder), "--out", str(mean),
            "--last", str(last),
        )  # fmt: skip
        averages[last] = both(mean)
    return {
        "averages": averages,
        "greedy": both(folder, "--beam", "1"),
        "alpha": [
            [alpha, bleu(folder, "valid", "--alpha", str(alpha))]
            for alpha in ALPHAS
        ],
    }


def result(settings: Settings, runs: list[dict[str, Any]]) -> Any:
    """The ledger's entry: a row for each decision, the mean of its seeds,
    and every run; a command for the rows of each number of seeds.
    """
    values = "nats", "valid_bleu", "bleu"
    rows = rows_of(runs, "row", ROWS, values)
    counts = sorted({row["seeds"] for row in rows.values()})
    commands = []
    for seeds in counts:
        only = tuple(n for n, row in rows.items() if row["seeds"] == seeds)
        again = replace(
            settings, work=None, first=0, seeds=seeds, only=only
        )
        commands.append(typed("decisions.py", again))
    made = entry_of_runs(
        "decisions.py", replace(settings, seeds=max(counts)),
        {"rows": rows, "runs": runs}, runs,
        packages=("numpy", "tokenizers", "sacrebleu"),
    )  # fmt: skip
    return made | {"command": "; ".join(commands)}


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # of the commands that are typed
    make_runs(tyro.cli(Settings), run, result)


if __name__ == "__main__":
    main()
