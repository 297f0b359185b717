"""A translator of everyday sentences meets 5,000 captions of photographs.

    python benchmarks/adapt.py --work WORK --json book/results/adapt.json

annotated adapt does all of it: it trains data/runs/everyday-en-de further on
Multi30k's first captions, scores it before and after on other captions and on
Tatoeba's test sentences, and trains a model from nothing for the same
minutes. ANNOTATED_DATA has multi30k/ and tatoeba/. One thread.
"""

from __future__ import annotations

import json as coding
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from ledger import typed, write

from annotated.book.results import entry
from annotated.corpora.pairs import load_pairs

RUN = Path("data/runs/everyday-en-de")


@dataclass(frozen=True)
class Settings:
    """Write the texts, adapt, keep the scores."""

    work: Path | None = None  # a folder for texts and runs; again: goes on
    pairs: int = 5000  # captions to learn from
    sentences: int = 500  # to score, of each text
    minutes: float = 4.0
    json: Path | None = None  # the ledger file to write


def texts(folder: Path, name: str, split: str, count: int) -> list[str]:
    """Two files with the first sentences of a split: their paths."""
    paths = []
    for side, lines in zip(
        ("en", "de"), load_pairs(name, split, "en", "de")
    ):
        path = folder / f"{name}-{split}.{side}"
        path.write_text(
            "".join(f"{line}\n" for line in lines[:count]), "utf-8"
        )
        paths.append(str(path))
    return paths


def main(settings: Settings) -> None:
    work = settings.work or Path("adapt-work")
    work.mkdir(parents=True, exist_ok=True)
    own = texts(work, "multi30k", "train", settings.pairs)
    valid = texts(work, "multi30k", "valid", settings.sentences)
    test = texts(work, "multi30k", "test", settings.sentences)
    old = texts(work, "tatoeba", "test", settings.sentences)
    begin, before = time.perf_counter(), os.times()
    done = subprocess.run(
        [
            sys.executable, "-m", "annotated", "adapt", "--run", str(RUN),
            "--src", own[0], "--tgt", own[1], "--valid", *valid, "--test", *test,
            "--old", *old, "--out", str(work / "adapted"), "--nothing",
            "--minutes", str(settings.minutes), "--json",
        ],
        stdout=subprocess.PIPE, text=True, check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    seconds, after = time.perf_counter() - begin, os.times()
    spent = after.children_user + after.children_system
    spent -= before.children_user + before.children_system
    found = coding.loads(done.stdout)
    metrics = {
        "scores": found["new"],
        "old": found["old"],
        "sentences": settings.sentences,
        "minutes": settings.minutes,
        "share": spent / seconds,
    }
    print(metrics)
    if settings.json:
        chosen = {
            "run": RUN.name,
            "pairs": settings.pairs,
            "minutes": settings.minutes,
        }
        write(
            settings.json,
            entry(
                "adapt", typed("adapt.py", settings).replace(str(work), "WORK"),
                metrics, seed=0, threads=1, wall_seconds=seconds, settings=chosen,
                packages=("numpy", "tokenizers", "sacrebleu"),
            ),
        )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Settings, description=(__doc__ or "").splitlines()[0]))
