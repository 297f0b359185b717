"""Judge a translator of everyday sentences by what people say.

    annotated train everyday --out RUN
    python benchmarks/everyday.py RUN --json book/results/everyday-en-de.json

It scores RUN on the test set and translates the hundred sentences of
everyday.txt into everyday-LANGUAGE.tsv, and the thirty of typed.txt likewise:
the sentence, whether it stands in the training text word for word, the
translation, and the verdicts of two who read the language, neither of whom
sees the other's: right, understandable or wrong. The first reader's count. A
second call keeps the verdicts of translations that have not changed, and puts
all of it into the ledger. RUN/words.txt gets the words of the training text,
so that the figure `say` can name others.
"""

from __future__ import annotations

import csv
import json
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import tyro
from ledger import write
from run_recipe import curves, samples

from annotated.book.portable import WORDS, words_of
from annotated.book.results import entry
from annotated.engine.data import open_data
from annotated.engine.recipes import RECIPES
from annotated.engine.runs import Run
from annotated.evaluation import score

HERE = Path(__file__).resolve().parent
VERDICTS = "right", "understandable", "wrong"
COLUMNS = "sentence", "in training", "translation", "verdict", "second"


def judged(path: Path) -> dict[tuple[str, str], tuple[str, str]]:
    """The verdicts of a file, by sentence and translation."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return {
        (r["sentence"], r["translation"]): (r["verdict"], r["second"])
        for r in rows
    }


def translated(run: Run, name: str) -> list[dict[str, str]]:
    """The sentences of a file, translated; written beside it."""
    lines = (HERE / f"{name}.txt").read_text("utf-8").splitlines()
    path = HERE / f"{name}-{run.recipe.target}.tsv"
    seen = set(open_data(run.recipe).text("train")[0])
    known, rows = judged(path), []
    for line, [best] in zip(lines, run.translate(lines), strict=True):
        row = line, "yes" if line in seen else "no", best.text
        verdicts = known.get((line, best.text), ("", ""))
        rows.append(dict(zip(COLUMNS, (*row, *verdicts), strict=True)))
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(
            file, COLUMNS, delimiter="\t", lineterminator="\n"
        )
        out.writeheader()
        out.writerows(rows)
    return rows


def counted(
    rows: list[dict[str, str]], reader: str = "verdict"
) -> dict[str, Any]:
    """How many of the sentences have each of a reader's verdicts, and how
    many of those stand in the training text.
    """
    verdicts = Counter(row[reader] for row in rows)
    if odd := set(verdicts) - {*VERDICTS}:
        return {"not judged": sum(verdicts[v] for v in odd)}
    both = Counter(
        row[reader] for row in rows if row["in training"] == "yes"
    )
    return {v: [verdicts[v], both[v]] for v in VERDICTS}


def all_verdicts(
    hundred: list[dict[str, str]], typed: list[dict[str, str]]
) -> dict[str, Any]:
    """What the ledger has of both files and both readers."""
    return {
        "verdicts": counted(hundred),
        "second": counted(hundred, "second"),
        "agreed": sum(row["verdict"] == row["second"] for row in hundred),
        "typed": counted(typed),
        "typed_second": counted(typed, "second"),
        "hundred": [[row[c] for c in COLUMNS] for row in hundred],
    }


def main(
    run: Annotated[Path, tyro.conf.Positional],
    *,
    json_: Annotated[Path, tyro.conf.arg(name="json")],
    command: str = "annotated train everyday --out RUN",
) -> None:
    """Score a run, translate both files, write a ledger file.

    Args:
        run: its folder
        json_: the ledger file to write
        command: how it was trained
    """
    started, opened = time.perf_counter(), Run.open(run)
    recipe = opened.recipe
    files = [translated(opened, name) for name in ("everyday", "typed")]
    data = open_data(recipe)
    words = words_of(data.text("train")[0])
    (run / WORDS).write_text("\n".join([*words, ""]), "utf-8")
    src, ref = data.text("test")
    made = [best[0].text for best in opened.translate(src)]
    metrics = json.loads((run / "summary.json").read_text("utf-8"))
    metrics |= curves(run) | {"test": score(made, ref)}
    metrics |= all_verdicts(*files)
    write(
        json_,
        entry(
            "everyday",
            command,
            metrics,
            seed=recipe.training.seed,
            wall_seconds=metrics["seconds"] + time.perf_counter() - started,
            settings=recipe.unlike(RECIPES["everyday"]),
            packages=("numpy", "tokenizers", "sacrebleu"),
            about=recipe.about,
            samples=samples((src, ref, made), 40),
        ),
    )
    print(metrics["test"], metrics["verdicts"])


if __name__ == "__main__":
    tyro.cli(main, description=(__doc__ or "").splitlines()[0])
