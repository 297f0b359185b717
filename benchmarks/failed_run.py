"""Chapter 20's failed run once more, and with one thing changed.

    annotated data prepare pair --src nc11.es-en.es.xz --tgt nc11.es-en.en.xz \
        --valid newstest2012.en-es.es newstest2012.en-es.en \
        --test newstest2013.en-es.es newstest2013.en-es.en --source es \
        --target en --max-words 60 --ratio 3 --unescape --out DATA
    python benchmarks/failed_run.py DATA --work RUNS \
        --json book/results/news-failed.json        # an hour of one core

Three trainings with the fields of `news-commentary-cpu`: as it was, with the
norm before the sub-layers, with half the rate. Each goes on where its folder
in RUNS has stopped; --steps 0 trains no further and writes what there is.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import tyro
from ledger import annotated, write
from run_recipe import corpus, curves

from annotated.book.results import entry
from annotated.engine.data import open_data
from annotated.engine.recipes import RECIPES
from annotated.engine.runs import Run, read_recipe

AS_IT_WAS = {
    "norm": "post", "rate": 0.8, "warmup": 600, "batch_tokens": 800,
    "num_encoder_layers": 3, "num_decoder_layers": 3, "d_model": 192,
    "d_ff": 512, "dropout": 0.0, "cooldown": 0, "curriculum": 0,
    "save_every": 274, "alpha": 0.6, "precision": "float32",
    "max_minutes": 600.0,
}  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {
    "as it was": {},
    "norm before": {"norm": "pre"},
    "half the rate": {"rate": 0.4},
}
STEPS = 2466  # as many as the failed run had
SAMPLES = 6
LENGTHS = 6, 10  # words of a sentence that is shown


def words(fields: dict[str, Any]) -> list[str]:
    """Options of the command line."""
    return [
        word
        for name, value in fields.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def short_translations(folder: Path) -> list[list[str]]:
    """What a run makes of the test set's first short sentences: source,
    reference, translation.
    """
    run = Run.open(folder)
    src, ref = open_data(run.recipe).text("test")
    short = [
        pair
        for pair in zip(src, ref, strict=True)
        if LENGTHS[0] <= len(pair[0].split()) <= LENGTHS[1]
    ][:SAMPLES]
    said = run.translate([source for source, _ in short])
    return [
        [*pair, best[0].text]
        for pair, best in zip(short, said, strict=True)
    ]


def main(
    data: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    work: Path,
    json: Path | None = None,
    steps: int = STEPS,
    commit: str | None = None,
) -> None:
    """Train all rows to this step, write how far each has got.

    Args:
        data: the prepared corpus
        work: the folder of the runs, one per row
        json: the ledger file to write
        steps: of each run
        commit: that made the runs, where it is not this one
    """
    made, folder = {}, work
    for row, change in ROWS.items():
        run = work / row.replace(" ", "-")
        if steps:
            annotated(
                "train", "pair", "--data", str(data), "--out", str(run),
                "--source", "es", "--target", "en",
                *words(AS_IT_WAS | change | {"max_steps": steps}),
                *["--resume"] * (run / "recipe.json").exists(),
            )  # fmt: skip
        if (run / "recipe.json").exists():
            made[row] = curves(run) | {"samples": short_translations(run)}
            folder = run
    if json is None or not made:
        return
    recipe = read_recipe(folder)
    typed = ["python", "benchmarks/failed_run.py", data.name]
    if steps not in (0, STEPS):
        typed += ["--steps", str(steps)]
    seconds = [one["curve"][-1][1] for one in made.values()]
    write(
        json,
        entry(
            "pair",
            shlex.join([*typed, "--work", "RUNS"]),
            {"runs": made},
            seed=recipe.training.seed,
            threads=1,
            wall_seconds=sum(seconds),
            settings=AS_IT_WAS | {"rows": ROWS},
            packages=("numpy", "tokenizers"),
            about=RECIPES["pair"].about,
            **({"commit": commit} if commit else {}),
            **corpus(folder),
        ),
    )


if __name__ == "__main__":
    tyro.cli(main, description=(__doc__ or "").splitlines()[0])
