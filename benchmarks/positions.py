"""Do rotary positions help with text of any kind, as they do with captions?

    python benchmarks/positions.py DATA DATA …     # 45 minutes a folder

Each DATA is a folder that `annotated data prepare` has made of a corpus
whose run of the recipe pair is in the ledger. The model and the schedule
that pair chose there are trained twice on the same batches, for a part of
the steps: with sinusoidal positions and with rotary ones, whose first
weights of self-attention are another draw. Judged on the validation pairs
alone. One thread, so that two processes can share the work (--only).
"""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from decisions import bleu, nats_per_character, words
from ledger import annotated, each, entry_of_runs, keep, typed, write
from run_recipe import curves
from trials import folder_of

from annotated.book.results import commit, hardware, ledger

WAYS = "sinusoidal", "rotary"
# what pair fits to corpus, minutes and machine
SHAPE = (
    "d_model", "d_ff", "num_encoder_layers", "num_decoder_layers", "dropout",
    "batch_tokens",
)  # fmt: skip
STEPS = "max_steps", "warmup", "cooldown", "curriculum"
VALUES = "nats", "valid_bleu", "seconds"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to run."""

    data: Annotated[tuple[str, ...], tyro.conf.Positional]
    """folders that `annotated data prepare` has made"""
    work: Path = Path("positions")
    """a folder for the runs; those that have finished are not made again"""
    only: tuple[str, ...] = WAYS
    """these positions, where two processes share the work"""
    share: float = 0.75
    """of the steps that pair chose in the ledger's run"""
    seed: int = 0
    """of the runs that are made now"""
    precision: str = "bfloat16"
    """of the runs; float32 for processors without its instructions"""
    json: Path | None = None
    """write the result here"""


def chosen(corpus: str, share: float) -> dict[str, Any]:
    """What pair chose for the ledger's run on a corpus, its schedule made
    shorter; the peak of the rate, rate / sqrt(d_model · warmup), stays.
    """
    for entry in ledger().values():
        own = entry.get("settings", {})
        if entry.get("recipe") == "pair" and own.get("data") == corpus:
            break
    else:
        sys.exit(f"the ledger has no run of pair on {corpus!r}")
    shape = {name: own[name] for name in SHAPE if name in own}
    steps = {
        name: round(share * own[name]) for name in STEPS if name in own
    }
    rate = round(own["rate"] * math.sqrt(share), 3)
    return shape | steps | {"rate": rate}


def run(settings: Settings, data: Path, way: str) -> dict[str, Any]:
    """Train with these positions, and judge; a run that was stopped is
    resumed.
    """
    folder = folder_of(settings.work, f"{data.name} {way}", settings.seed)
    note = folder / "trial.json"
    if note.exists():
        return json.loads(note.read_text(encoding="utf-8"))
    options = words(
        chosen(data.name, settings.share)
        | {"positions": way, "precision": settings.precision}
        | {"max_minutes": 600}  # the steps are given
    )
    told = annotated(
        "train", "pair", "--data", str(data), "--out", str(folder),
        *options, "--fit", "--device", "cpu", "--seed", str(settings.seed),
        *["--resume"] * (folder / "recipe.json").exists(),
    )  # fmt: skip
    found = {
        "corpus": data.name,
        "positions": way,
        "seed": settings.seed,
        "options": " ".join(options),
        "epochs": told["epochs"],
        "nats": nats_per_character(folder, told["valid"]["nll"]),
        "valid_bleu": bleu(folder, "valid"),
        "seconds": curves(folder)["curve"][-1][1],
        "commit": commit(),
        "hardware": hardware("cpu", threads=1),
    }
    keep(note, json.dumps(found))
    print(found, flush=True)
    return found


def result(settings: Settings) -> dict[str, Any]:
    """The ledger's entry: every run that has finished."""
    notes = sorted(settings.work.glob("*/trial.json"))
    runs = [json.loads(note.read_text(encoding="utf-8")) for note in notes]
    shown = replace(
        settings,
        data=tuple(each(runs, "corpus")),
        work=Path("positions"),
        only=WAYS,
    )
    made = entry_of_runs(
        "positions.py", shown, {"runs": runs}, runs,
        packages=("numpy", "tokenizers", "sacrebleu"),
    )  # fmt: skip
    return made | {"command": typed("positions.py", shown)}


def main(settings: Settings) -> None:
    if wrong := {*settings.only} - {*WAYS}:
        sys.exit(
            f"no positions {wrong.pop()!r}; there are {', '.join(WAYS)}"
        )
    folders = [*map(Path, settings.data)]
    for data in folders:  # said now, and not when all is done
        chosen(data.name, settings.share)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the commands that are typed
    settings.work.mkdir(parents=True, exist_ok=True)
    for data in folders:
        for way in settings.only:
            run(settings, data, way)
    if settings.json:
        write(settings.json, result(settings))


if __name__ == "__main__":
    main(tyro.cli(Settings))
