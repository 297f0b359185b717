"""What the vote of draws gains: runs of one recipe, each searched with its
beam and by least Bayes risk (page E6).

    python benchmarks/mbr.py --runs RUN0 RUN1 RUN2 --json F
    python benchmarks/mbr.py --runs RUN0 RUN1 RUN2 --json F --test 64

On the validation set with every number of --draws. The test set stays closed
unless --test says with how many draws it is to be opened: once, when the
validation set has decided. The file says at which hour that was; all
translations of it are kept, beside what BLEU counts in each. What the file
has already is not made again. In float32, on all cores: a minute or two for
1,000 sentences and 64 draws of a small model.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import tyro
from ledger import typed, write
from run_recipe import kept

from annotated.book.results import entry
from annotated.engine.data import open_data
from annotated.engine.machine import cores
from annotated.engine.mbr import by_risk
from annotated.engine.runs import Run
from annotated.engine.search import Sampling
from annotated.evaluation import score


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to search."""

    runs: tuple[str, ...] = ()
    """folders of runs that have finished"""
    draws: tuple[int, ...] = (16, 64)
    """for the validation set"""
    test: int | None = None
    """open the test set, too, with so many draws"""
    json: Path | None = None
    """write the result here"""


def searched(
    run: Run, src: list[str], draws: tuple[int, ...]
) -> tuple[dict[str, list[str]], dict[str, float]]:
    """The translations by the beam and by the vote of so many draws, and
    the seconds that each takes."""
    search = run.recipe.search
    shape = {"extra": search.extra, "limit": search.limit}
    started = time.perf_counter()
    wide = replace(search, nbest=search.beam)
    found = run.translate(src, wide, workers=cores())
    beam = time.perf_counter() - started
    texts = {"beam": [one[0].text for one in found]}
    seconds = {"beam": beam}
    for number in draws:
        started = time.perf_counter()
        draw = Sampling(nbest=number, **shape)
        drawn = run.translate(src, draw, workers=cores())
        ordered = by_risk(found, drawn)
        seconds[f"{number}"] = beam + time.perf_counter() - started
        texts[f"{number}"] = [one[0].text for one in ordered]
    return texts, seconds


def judged(
    folder: Path, settings: Settings, known: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    """What comes of one run; what is known of its seed stays."""
    run = Run.open(folder)
    data, seed = open_data(run.recipe), run.recipe.training.seed
    found: dict[str, Any] = known.get(seed, {"seed": seed})
    if found.get("valid", {}).keys() != {"beam", *map(str, settings.draws)}:
        src, ref = data.text("valid")
        texts, seconds = searched(run, src, settings.draws)
        found |= {
            "valid": {how: score(made, ref) for how, made in texts.items()},
            "valid_seconds": seconds,
        }
    number = settings.test
    if number is not None and f"{number}" not in found.get("test", {}):
        if "test" in found:
            sys.exit(
                f"seed {seed}: its test set was opened for other draws"
            )
        opened = datetime.now(timezone.utc)
        src, ref = data.text("test")
        texts, seconds = searched(run, src, (number,))
        found |= {
            "opened": opened.isoformat(timespec="minutes"),
            "test": {
                how: score(made, ref) | kept((src, ref, made))
                for how, made in texts.items()
            },
            "test_seconds": seconds,
        }
    return found


def main(settings: Settings) -> None:
    if not settings.runs:
        sys.exit("no --runs: name the folders of runs that have finished")
    torch.set_num_threads(1)
    started, before = time.perf_counter(), 0.0
    first = Run.open(Path(settings.runs[0])).recipe
    about = {
        "data": str(first.data), "beam": first.search.beam,
        "alpha": first.search.alpha, "max_steps": first.training.max_steps,
    }  # fmt: skip
    known: dict[int, dict[str, Any]] = {}
    if settings.json and settings.json.exists():
        content = json.loads(settings.json.read_text(encoding="utf-8"))
        if content["settings"] != about:
            sys.exit(
                f"{settings.json} is of other runs: {content['settings']}"
            )
        known = {one["seed"]: one for one in content["metrics"]["runs"]}
        before = content["wall_seconds"]
    for run in settings.runs:
        one = judged(Path(run), settings, known)
        known[one["seed"]] = one
        for split in ("valid", "test"):
            bleu = {h: s["bleu"] for h, s in one.get(split, {}).items()}
            print(one["seed"], split, bleu)
        if settings.json is None:
            continue
        runs = [known[seed] for seed in sorted(known)]
        names = tuple(f"RUN{i}" for i in range(len(runs)))
        made = entry(
            about["data"],
            typed("mbr.py", replace(settings, runs=names)),
            {"runs": runs},
            wall_seconds=before + time.perf_counter() - started,
            settings=about,
            packages=("numpy", "tokenizers", "sacrebleu"),
            threads=cores(),
        )
        write(settings.json, made)


if __name__ == "__main__":
    main(tyro.cli(Settings))
