"""How the recipe for captions was found: one decision at a time, each run
to its end, judged on the validation set alone.

    python benchmarks/trials.py       # 30 to 60 minutes a trial
    python benchmarks/trials.py --json book/results/multi30k-trials.json \
        --after "half as long again, rotary positions"

Every trial is `annotated train multi30k` with the options that its line in
TRIALS spells out in full, so that it stays the same trial when the recipe
takes over what was found. No trial reads the test set: that is opened once,
when the recipe is fixed, by run_recipe.py. One thread, so that several
processes can share the trials (--only). The runs are kept in the
folder of --work, for what comes after training: α, averages, greedy search.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro
from decisions import FIRST, bleu, nats_per_character, words
from ledger import annotated, entry_of_runs, keep, rows_of, typed, write
from run_recipe import curves

from annotated.book.results import commit, hardware
from annotated.engine.parts import take_imports

Change = dict[str, Any]

WORDS: Change = FIRST | {"precision": "bfloat16", "vocab": 8000}
# of processors without instructions for bfloat16
SLOWER: Change = WORDS | {"precision": "float32"}
TRIPLE: Change = {
    "max_steps": 24_600, "cooldown": 9900, "save_every": 600,
}  # fmt: skip
LONGER: Change = {"max_steps": 12_300, "cooldown": 4950, "save_every": 300}
NARROW: Change = {
    "num_encoder_layers": 4, "num_decoder_layers": 4, "d_ff": 256,
}  # fmt: skip
TWICE: Change = {
    "import": "benchmarks/r_drop.py", "batching": "twice", "loss": "r-drop",
}  # fmt: skip
FEWER: Change = {
    "import": "benchmarks/word_dropout.py", "parts": ("word-dropout",),
}  # fmt: skip
TRIALS: dict[str, Change] = {
    "vocabulary 8,000": WORDS,
    "BPE-dropout 0.1": WORDS | {"bpe_dropout": 0.1},
    "narrow networks, 4 + 4": WORDS | NARROW,
    "6 + 2 layers": SLOWER
    | {"num_encoder_layers": 6, "num_decoder_layers": 2},
    "dropout inside, too": SLOWER
    | {"attention_dropout": 0.1, "activation_dropout": 0.1},
    "word dropout 0.1": WORDS | FEWER,
    "vocabulary 10,000": WORDS | {"vocab": 10_000},
    "6 + 1 layers": WORDS
    | {"num_encoder_layers": 6, "num_decoder_layers": 1},
    "rotary positions": WORDS | {"positions": "rotary"},
    "relative positions": WORDS | {"positions": "relative"},
    "a rate half as high again": WORDS | {"rate": 1.764},
    "half as long again": WORDS | LONGER,
    "half as long again, dropout 0.3": WORDS | LONGER | {"dropout": 0.3},
    "half as long again, rotary positions": WORDS
    | LONGER
    | {"positions": "rotary"},
    "three times as long": SLOWER | TRIPLE,
    "three times as long, dropout 0.3": SLOWER | TRIPLE | {"dropout": 0.3},
    "R-Drop": WORDS | TWICE,
    # half as many pairs, each twice: a step costs what the recipe's does
    "R-Drop at equal minutes": WORDS
    | LONGER
    | TWICE
    | {"batch_tokens": 750},
    # the peak of the rate stays: rate / sqrt(d_model · warmup)
    "width 192, dropout 0.3": WORDS
    | {"d_model": 192, "rate": 1.44, "dropout": 0.3},
    "width 256, dropout 0.3": WORDS
    | {"d_model": 256, "rate": 1.663, "dropout": 0.3},
}
RECIPE = "half as long again, rotary positions"  # which the recipe is
VALUES = "nats", "valid_bleu", "seconds"  # of a row, means over its seeds
ALPHAS = (0.0, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to run."""

    work: Path = Path("trials")
    """a folder for the runs; those that have finished are not made again"""
    only: tuple[str, ...] = ()
    """these trials, where several processes share the work"""
    seed: int = 0
    """of the trials that are made now"""
    after: tuple[str, ...] = ()
    """trials whose checkpoints are searched and averaged otherwise, too,
    and whose runs vote"""
    json: Path | None = None
    """write the result here"""


def imports(name: str) -> list[str]:
    """What a trial's run is read with, if it has parts of its own; they are
    registered in this process, too.
    """
    options = words(
        {k: v for k, v in TRIALS[name].items() if k == "import"}
    )
    take_imports(options)
    return options


def folder_of(work: Path, name: str, seed: int) -> Path:
    return work / f"{name} {seed}".replace(" ", "-")


def made(
    work: Path,
    name: str,
    seed: int,
    device: str = "cpu",
    change: Change | None = None,
) -> dict[str, Any]:
    """Train a trial, changed where it shall be small, and judge it; a run
    that was stopped is resumed.
    """
    folder = folder_of(work, name, seed)
    note = folder / "trial.json"
    if note.exists():
        return json.loads(note.read_text(encoding="utf-8"))
    options, own = words(TRIALS[name] | (change or {})), imports(name)
    told = annotated(
        "train", "multi30k", "--out", str(folder), *options,
        "--device", device, "--seed", str(seed),
        *["--resume"] * (folder / "recipe.json").exists(),
    )  # fmt: skip
    found = {
        "trial": name,
        "seed": seed,
        "options": " ".join(options),
        "parameters": told["parameters"],
        "epochs": told["epochs"],
        "nats": nats_per_character(folder, told["valid"]["nll"]),
        "valid_bleu": bleu(folder, "valid", "--device", device, *own),
        "seconds": curves(folder)["curve"][-1][1],
        "commit": commit(),
        "hardware": hardware(device, threads=1),
    }
    keep(note, json.dumps(found))
    print(found, flush=True)
    return found


def after(work: Path, name: str, seed: int) -> dict[str, Any]:
    """What else one run's checkpoints say of the validation set."""
    folder = folder_of(work, name, seed)
    note = folder / "after.json"
    if note.exists():
        return json.loads(note.read_text(encoding="utf-8"))
    averages, own = {}, imports(name)
    for last in (1, 2, 4):
        place = folder / f"last-{last}"
        annotated(
            "average", "--run", str(folder), "--out", str(place),
            "--last", str(last), *own,
        )  # fmt: skip
        averages[last] = bleu(place, "valid", *own)
    found = {
        "trial": name,
        "seed": seed,
        "averages": averages,
        "beams": {b: bleu(folder, "valid", "--beam", str(b), *own)
                  for b in (1, 2, 4, 8)},
        "alpha": [[a, bleu(folder, "valid", "--alpha", str(a), *own)]
                  for a in ALPHAS],
    }  # fmt: skip
    keep(note, json.dumps(found))
    print(found, flush=True)
    return found


def together(work: Path, name: str) -> float:
    """What the runs of a trial reach as an ensemble, validation."""
    first, *others = sorted(
        note.parent for note in work.glob("*/trial.json")
        if json.loads(note.read_text(encoding="utf-8"))["trial"] == name
    )  # fmt: skip
    options = [*map(str, others), *imports(name)]
    return bleu(first, "valid", "--ensemble", *options)


def every(work: Path, file: str) -> list[dict[str, Any]]:
    """The notes of that name, in the order of the trials and seeds."""
    notes = []
    for path in work.glob(f"*/{file}"):
        note = json.loads(path.read_text(encoding="utf-8"))
        if file == "trial.json":
            note["valid_curve"] = curves(path.parent)["valid_curve"]
        notes.append(note)
    order = [*TRIALS]
    return sorted(notes, key=lambda n: (order.index(n["trial"]), n["seed"]))


def result(settings: Settings) -> dict[str, Any]:
    """The ledger's entry: each trial's mean, every run, what came after."""
    runs = every(settings.work, "trial.json")
    rows = rows_of(runs, "trial", TRIALS, VALUES)
    metrics = {
        "rows": rows, "runs": runs,
        "after": every(settings.work, "after.json"),
        "ensembles": {
            name: together(settings.work, name)
            for name in settings.after if rows[name]["seeds"] > 1
        },
    }  # fmt: skip
    again = replace(settings, work=Path("trials"), only=tuple(rows))
    made = entry_of_runs(
        "trials.py", settings, metrics, runs,
        packages=("numpy", "tokenizers", "sacrebleu"),
    )  # fmt: skip
    return made | {"command": typed("trials.py", again)}


def main(settings: Settings) -> None:
    wrong = {*settings.only, *settings.after} - TRIALS.keys()
    if wrong:
        sys.exit(f"no trial {wrong.pop()!r}; there are {', '.join(TRIALS)}")
    os.environ["OMP_NUM_THREADS"] = "1"  # of the commands that are typed
    settings.work.mkdir(parents=True, exist_ok=True)
    for name in settings.only or ([] if settings.after else TRIALS):
        made(settings.work, name, settings.seed)
    for name in settings.after:
        after(settings.work, name, settings.seed)
    if settings.json:
        write(settings.json, result(settings))


if __name__ == "__main__":
    main(tyro.cli(Settings))
