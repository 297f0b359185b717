"""Train a parser on a treebank, score it, write what came of it.

    python benchmarks/parsing.py craft.oneline.mrg.xz --work WORK \
        --json book/results/parse-craft.json

    ... --json book/results/parse-craft-long.json \
        -- --max-steps 10000 --cooldown 5000
    ... --withhold 0.75 --json book/results/parse-craft-quarter.json
    ... --withhold 0.75 --semi --json book/results/parse-craft-semi.json
    ... --withhold 0.75 --semi --json book/results/parse-craft-semi-passes.json
        -- --max-steps 16000 --cooldown 8000
    ... --withhold 0.75 --json book/results/parse-craft-quarter-long.json
        -- --max-steps 16000 --cooldown 8000

It types what a user types: `annotated treebank`, `annotated train
parse-small`, `annotated evaluate`; and scores trees that branch to the
right beside. With --withhold 0.75 it trains on a quarter of the articles
alone; with --semi as well, in the same WORK, it parses the others with what
it has learned, and trains on both. What WORK holds is not made again.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import tyro
from ledger import write
from run_recipe import annotated, curves

from annotated.book.results import entry
from annotated.engine.machine import cores
from annotated.engine.parsing import tree_guide, tree_scores
from annotated.engine.recipes import RECIPES
from annotated.engine.runs import Run, read_recipe
from annotated.engine.search import Guide
from annotated.parsing import linearise, right_branching
from annotated.search import SearchConfig

SHORT = 40  # words: the other line that evalb prints


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def all_and_short(
    name: str, words: list[str], guesses: list[str], gold: list[str]
) -> dict[str, Any]:
    """The scores of all sentences, under name, and of those that have no
    more than SHORT words, under name_short.
    """
    short = [i for i, text in enumerate(words) if text.count(" ") < SHORT]
    some = ([side[i] for i in short] for side in (words, guesses, gold))
    return {
        name: tree_scores(words, guesses, gold),
        f"{name}_short": tree_scores(*some),
    }


def scores(folder: Path, data: Path) -> dict[str, Any]:
    """Of the run by its own search, of greedy search that may write
    anything, and of the baseline; for all sentences and short ones.
    """
    words, gold = (
        lines(data / f"test.{side}") for side in ("words", "tree")
    )
    run = Run.open(folder)

    def parse(search: SearchConfig, guide: Guide | None) -> list[str]:
        found = run.translate(words, search, workers=cores(), guide=guide)
        return [best[0].text for best in found]

    greedy = parse(run.recipe.changed(beam=1).search, None)
    began = time.perf_counter()
    best = parse(run.recipe.search, tree_guide(run))
    took = time.perf_counter() - began
    floor = [
        " ".join(linearise(right_branching(text.split()))[1:-1])
        for text in words
    ]
    return {
        "search_seconds": took,
        **all_and_short("test", words, best, gold),
        **all_and_short("greedy", words, greedy, gold),
        **all_and_short("right_branching", words, floor, gold),
    }


def trained(data: Path, folder: Path, change: tuple[str, ...]) -> None:
    """Train, unless that was done."""
    if not (folder / "summary.json").exists():
        annotated(
            "train", "parse-small", "--data", str(data), "--out",
            str(folder), *change,
        )  # fmt: skip


def silver(run: Path, data: Path, out: Path) -> None:
    """Parse the sentences whose trees are withheld, unless that was done."""
    if out.exists():
        return
    command = [sys.executable, "-m", "annotated", "parse"]
    with (data / "withheld.txt").open("rb") as words:
        done = subprocess.run(
            [*command, "--run", str(run), "--beam", "4"],
            stdin=words,
            stdout=subprocess.PIPE,
            check=True,
        )
    out.write_bytes(done.stdout)


def main(
    bank: Annotated[Path, tyro.conf.Positional],
    /,
    change: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    *,
    work: Path,
    json: Path,
    max_words: int = 40,
    withhold: float = 0.0,
    semi: bool = False,
) -> None:
    """Train a parser, score it, write a ledger file.

    Args:
        bank: a treebank, as `annotated treebank` takes it
        change: options of `annotated train`, after --
        work: a folder for data and runs
        json: the ledger file to write
        max_words: of the longest sentence to train on
        withhold: the share of articles without their trees
        semi: train on silver trees of those articles as well
    """
    data, run = work / "data", work / "run"
    treebank = ["treebank", str(bank), "--max-words", str(max_words)]
    treebank += ["--withhold", str(withhold)] if withhold else []
    if not (data / "test.tree").exists():
        annotated(*treebank, "--out", str(data))
    trained(data, run, change)
    if semi:
        both, second = work / "semi-data", work / "semi-run"
        silver(run, data, work / "silver.mrg")
        if not (both / "test.tree").exists():
            parts = ["--silver", str(work / "silver.mrg")]
            annotated(*treebank, *parts, "--out", str(both))
        trained(both, second, change)
        data, run = both, second
    told, recipe = scores(run, data), read_recipe(run)
    settings = recipe.unlike(RECIPES["parse-small"])
    del settings["data"]
    options = ["--withhold", str(withhold)] if withhold else []
    options += ["--semi"] * semi + ["--", *change] * bool(change)
    typed = ["python", "benchmarks/parsing.py", bank.name, *options]
    write(
        json,
        entry(
            "parse-small",
            shlex.join(typed),
            summary(run) | curves(run) | told,
            seed=recipe.training.seed,
            settings=settings
            | {"max_words": max_words, "withhold": withhold, "semi": semi},
            packages=("numpy", "tokenizers"),
            about=recipe.about,
        ),
    )


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text("utf-8"))


if __name__ == "__main__":
    tyro.cli(main, description=(__doc__ or "").splitlines()[0])
