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
from collections.abc import Sequence
from json import dumps, loads
from pathlib import Path
from typing import Any

import torch
import tyro
from ledger import annotated, keep, write
from run_recipe import told_of

from annotated.book.results import entry
from annotated.corpora.pairs import load_pairs
from annotated.corpora.prepare import Prepared
from annotated.engine.data import open_data
from annotated.engine.recipes import RECIPES
from annotated.engine.runs import Run, read_metrics, read_recipe
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


TUNED = {  # of the runs that go on; what is not here is fitted
    "batch_tokens": 1000, "max_steps": 400, "save_every": 80,
    "dropout": 0.1, "max_minutes": 600.0,
}  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {
    "gentle": {},
    # the peak of a run that begins with nothing, where the other has a tenth
    "full-rate": {"rate": 0.156},
}


def words(fields: dict[str, object]) -> list[str]:
    """Options of the command line."""
    return [
        word
        for name, value in fields.items()
        for word in (f"--{name.replace('_', '-')}", *str(value).split())
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


def bleu(run: Path, data: Path) -> dict[str, Any]:
    return annotated(
        "evaluate", "--run", str(run), "--split", "test", "--data",
        str(data), "--json",
    )  # fmt: skip


def judge(work: Path, name: str, domains: Sequence[str]) -> dict[str, Any]:
    """What a run logged and summed up, and its BLEU on both test sets,
    which is kept beside it.
    """
    run, kept = work / name, work / f"{name}.bleu.json"
    if not kept.exists():
        found = {domain: bleu(run, work / domain) for domain in domains}
        keep(kept, dumps(found))
    notes = read_metrics(run)
    seconds = {e["step"]: e["seconds"] for e in notes if "loss" in e}
    return {
        "curve": [  # step, seconds of training, nats: new data, old data
            [e["step"], seconds.get(e["step"], 0.0)]
            + [e[key]["nll"] for key in ("valid", "old") if key in e]
            for e in notes
            if "valid" in e
        ],
        "summary": loads((run / "summary.json").read_text()),
        "bleu": loads(kept.read_text()),
        "settings": {
            n: Path(v).name
            if n in ("data", "init", "old_data") and v
            else v
            for n, v in read_recipe(run).unlike(RECIPES["pair"]).items()
        },
    }


def samples(
    work: Path, domain: str, runs: Sequence[str], count: int
) -> Any:
    """Test sentences, references, and what each run writes."""
    recipe = read_recipe(work / runs[0]).changed(data=str(work / domain))
    src, ref = open_data(recipe).text("test")
    step = len(src) // count
    src, ref = src[::step][:count], ref[::step][:count]
    rows = [src, ref]
    for name in runs:
        found = Run.open(work / name).translate(src)
        rows.append([best[0].text for best in found])
    return [list(row) for row in zip(*rows, strict=True)]


def main(
    *,
    work: Path,
    only: str | None = None,
    json: Path | None = None,
    commit: str | None = None,
) -> None:
    """Prepare, train, fine-tune, judge, write.

    Args:
        work: the folder of data and runs
        only: train on this data set alone
        json: the ledger file to write
        commit: that made the runs, where it is not this one
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    prepare(work)
    for name in DOMAINS:
        if only in (None, name):
            train(work / f"{name}-alone", work / name, *words(BASE))
    for new, old in (DOMAINS, DOMAINS[::-1]):
        if only not in (None, new) or only == "none":
            continue
        for row, change in ROWS.items():
            train(
                work / f"{new}-{row}", work / new,
                "--init", str(work / f"{old}-alone"),
                *words(TUNED | change),
            )  # fmt: skip
    if json is None:
        return
    metrics: dict[str, Any] = {"alone": {}, "tuned": {}, "samples": {}}
    for new, old in (DOMAINS, DOMAINS[::-1]):
        metrics["alone"][new] = judge(work, f"{new}-alone", DOMAINS)
        metrics["tuned"][new] = {
            row: judge(work, f"{new}-{row}", DOMAINS)
            for row in ROWS
            if (work / f"{new}-{row}" / "summary.json").exists()
        }
        runs = [f"{old}-alone", f"{new}-gentle"]
        metrics["samples"][new] = samples(work, new, runs, 12)
    seconds = sum(
        run["summary"]["seconds"]
        for new in DOMAINS
        for run in (metrics["alone"][new], *metrics["tuned"][new].values())
    )
    corpora = {
        name: told_of(Prepared.open(work / name)) for name in DOMAINS
    }
    write(
        json,
        entry(
            "pair",
            "python benchmarks/fine_tuning.py --work RUNS",
            metrics,
            seed=0,
            threads=1,
            wall_seconds=seconds,
            settings={"alone": BASE, "tuned": TUNED, "rows": ROWS},
            packages=("numpy", "tokenizers", "sacrebleu"),
            about=RECIPES["pair"].about,
            corpora={name: one["corpus"] for name, one in corpora.items()},
            **({"commit": commit} if commit else {}),
        ),
    )


if __name__ == "__main__":
    tyro.cli(main, description=(__doc__ or "").splitlines()[0])
