"""A translator goes on learning on another kind of text, and back.

    python benchmarks/fine_tuning.py --work RUNS \
        --json book/results/fine-tuning.json      # an hour of one core

Tatoeba's short sentences and Multi30k's captions, English to German, with one
vocabulary learned on both. A translator is trained on each, from nothing; then
each is fine-tuned on the other's text, and what it loses of its own is
measured at every checkpoint. Each run goes on where its folder in RUNS has
stopped. One thread; ANNOTATED_DATA has tatoeba/ and multi30k/.
"""

from __future__ import annotations

import os
from pathlib import Path

import tyro
from ledger import annotated

from annotated.engine.data import load_pairs
from annotated.tokens import Tokenizer

DOMAINS = "tatoeba", "multi30k"
LANGUAGES = "en", "de"
VOCAB = 4000
BASE = {  # of the runs that begin with nothing
    "num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 128,
    "d_ff": 512, "dropout": 0.1, "batch_tokens": 1000, "max_steps": 1200,
    "warmup": 200, "rate": 0.48, "cooldown": 480, "curriculum": 0,
    "save_every": 120, "max_minutes": 600.0,
}  # fmt: skip


def words(fields: dict[str, object]) -> list[str]:
    """Options of the command line."""
    return [
        word
        for name, value in fields.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def prepare(work: Path) -> None:
    """Learn one vocabulary on both training texts, encode both with it."""
    tokens = work / "tokens"
    if not tokens.exists():
        texts = [load_pairs(name, "train", *LANGUAGES) for name in DOMAINS]
        lines = [line for pair in texts for side in pair for line in side]
        made = Tokenizer.train(lines, VOCAB)
        tokens.mkdir(parents=True)
        for side in ("source", "target"):
            made.save(tokens / f"{side}.json")
    for name in DOMAINS:
        if not (work / name).exists():
            annotated(
                "data", "prepare", name, "--source", LANGUAGES[0],
                "--target", LANGUAGES[1], "--tokens", str(tokens),
                "--out", str(work / name), "--json",
            )  # fmt: skip


def train(run: Path, data: Path, *options: str) -> None:
    """Train a run, or what it lacks."""
    if not (run / "summary.json").exists():
        annotated(
            "train", "pair", "--data", str(data), "--out", str(run),
            "--source", LANGUAGES[0], "--target", LANGUAGES[1], *options,
            *["--resume"] * (run / "recipe.json").exists(),
        )  # fmt: skip


def main(*, work: Path, only: str | None = None) -> None:
    """Prepare, train.

    Args:
        work: the folder of data and runs
        only: train this one alone
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    prepare(work)
    for name in DOMAINS:
        if only in (None, name):
            train(work / f"{name}-alone", work / name, *words(BASE))


if __name__ == "__main__":
    tyro.cli(main, description=(__doc__ or "").splitlines()[0])
