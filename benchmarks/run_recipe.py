"""Train a recipe, score it on its test set, write what came of it.

    python benchmarks/run_recipe.py multi30k --out RUN \
        --json book/results/multi30k-cpu.json

It types the two commands that a user types, `annotated train` and
`annotated evaluate`, and puts what they printed into a file of the
results ledger, with the curves and some translations. Fields of the
recipe may be changed as on the command line: `-- --max-steps 300`. With
--keep, every translation is kept, beside what BLEU counts in each of them,
so that two runs can be compared without the test set.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import tyro
from ledger import annotated, write
from sacrebleu.metrics import BLEU

from annotated.book.baselines import words
from annotated.book.results import entry
from annotated.corpora.prepare import Prepared
from annotated.engine.data import TextData, open_data, prepared_data
from annotated.engine.recipes import RECIPES
from annotated.engine.runs import Run, read_metrics, read_recipe
from annotated.evaluation import score

POINTS = 1000  # of the curve that a ledger file keeps, at most


def curves(folder: Path) -> dict[str, list[list[float]]]:
    """The loss over time, thinned, and all validations."""
    notes = read_metrics(folder)
    steps = [e for e in notes if "loss" in e]
    steps = steps[:: max(1, -(-len(steps) // POINTS))]
    return {
        "curve": [
            [e["step"], e["seconds"], e["loss"], e["nll"]] for e in steps
        ],
        "valid_curve": [
            [e["step"], e["valid"]["perplexity"]]
            for e in notes
            if "valid" in e
        ],
    }


Texts = tuple[list[str], list[str], list[str]]


def translated(folder: Path, split: str) -> Texts:
    """Sources, references and translations of a split."""
    run = Run.open(folder)
    src, ref = open_data(run.recipe).text(split)
    return src, ref, [best[0].text for best in run.translate(src)]


def samples(texts: Texts, count: int) -> list[list[str]]:
    """Translations from all over a split, beside their references."""
    step = max(1, len(texts[0]) // count)
    return [list(row) for row in list(zip(*texts, strict=True))[::step]]


def kept(texts: Texts) -> dict[str, Any]:
    """The translations, what BLEU counts in each of them (the lengths of
    hypothesis and reference, then for runs of one to four words how many
    match and how many there are), and their BLEU as they are written and
    on lower-cased words, as much of the literature has it. They are searched
    in float32, whatever evaluate found faster here.
    """
    _, references, made = texts
    ways = {"as_written": BLEU(), "lower_case": BLEU(lowercase=True)}
    totals = {
        name: {
            "bleu": round(way.corpus_score(made, [references]).score, 2),
            "signature": str(way.get_signature()),
        }
        for name, way in ways.items()
    }
    return {
        "translations": made,
        "counts": [
            [one.sys_len, one.ref_len, *one.counts, *one.totals]
            for one in (
                BLEU().corpus_score([ours], [[theirs]])
                for ours, theirs in zip(made, references, strict=True)
            )
        ],
        **totals,
    }


def cuts(texts: Texts, train: list[str]) -> dict[str, list[list[Any]]]:
    """chrF by the length of the source, and by how often the rarest word
    of the reference stands in the training text.
    """
    seen = Counter(word for line in train for word in words(line))
    kinds = {
        "length": ([0, 9, 14], [len(words(s)) for s in texts[0]]),
        "frequency": (
            [-1, 0, 9, 99],
            [min(map(seen.__getitem__, words(r))) for r in texts[1]],
        ),
    }
    found: dict[str, list[list[Any]]] = {}
    for kind, (edges, values) in kinds.items():
        found[kind] = []
        for low, high in zip(edges, [*edges[1:], None]):
            rows = [
                i
                for i, value in enumerate(values)
                if value > low and (high is None or value <= high)
            ]
            if rows:
                first = f"{low + 1}"
                name = f"{first} or more" if high is None else first
                name += f" to {high}" if high and high > low + 1 else ""
                ref, made = ([t[i] for i in rows] for t in texts[1:])
                chrf = score(made, ref)["chrf"]
                found[kind].append([name, len(rows), chrf])
    return found


def corpus(folder: Path) -> dict[str, Any]:
    """What the run was trained on, where that was prepared before."""
    found = prepared_data(Run.open(folder).recipe)
    return {} if found is None else told_of(found)


def told_of(found: Prepared) -> dict[str, Any]:
    """How a corpus was prepared, and its fingerprint."""
    made = ("source", "target", "cleaning", "vocab", "tokenizer", "shared")
    return {
        "corpus": {name: found.settings[name] for name in made}
        | {
            "splits": found.manifest["splits"],
            "fingerprint": found.fingerprint,
        }
    }


def main(
    recipe: Annotated[str, tyro.conf.Positional],
    /,
    change: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    *,
    out: Path,
    json: Path,
    split: str = "test",
    count: int = 40,
    keep: bool = False,
    score: bool = True,
) -> None:
    """Train a recipe, score it, write a ledger file.

    Args:
        recipe: one of `annotated recipes`
        change: options of `annotated train`, after --
        out: the run's folder; one that has finished is only scored
        json: the ledger file to write
        split: what to score on
        count: sample translations to keep
        keep: keep all of them
        score: --no-score only times the run, and leaves the test set closed
    """
    if recipe not in RECIPES:
        sys.exit(f"no recipe {recipe!r}; there are {', '.join(RECIPES)}")
    started = time.perf_counter()
    if not (out / "summary.json").exists():
        annotated("train", recipe, "--out", str(out), *change)
    began, ended = (
        (out / name).stat().st_mtime
        for name in ("recipe.json", "summary.json")
    )
    earlier = max(0.0, (ended - began) - (time.perf_counter() - started))
    metrics = json_of(out / "summary.json") | curves(out)
    trained, shown = read_recipe(out), []
    if score:
        metrics["test"] = annotated(
            "evaluate", "--run", str(out), "--split", split, "--json"
        )
        texts = translated(out, split)
        data = open_data(trained)
        if isinstance(data, TextData):
            metrics["cuts"] = cuts(texts, data.text("train")[1])
        if keep:
            metrics |= kept(texts)
        shown = samples(texts, count)
    words = ["annotated", "train", recipe, "--out", "RUN", *change]
    write(
        json,
        entry(
            recipe,
            shlex.join(words),
            metrics,
            seed=trained.training.seed,
            wall_seconds=earlier + time.perf_counter() - started,
            settings=trained.unlike(RECIPES[recipe]),
            packages=("numpy", "tokenizers", "sacrebleu"),
            about=trained.about,
            samples=shown,
            **corpus(out),
        ),
    )


def json_of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8"))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONIOENCODING", "utf-8")
    tyro.cli(main, description=(__doc__ or "").splitlines()[0])
