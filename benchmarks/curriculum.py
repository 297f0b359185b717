"""Does it pay to begin with short sentences?

    annotated data prepare pair --src europarl.it-en.it.xz \
        --tgt europarl.it-en.en.xz --source it --target en --out DATA
    python benchmarks/curriculum.py DATA      # 20 minutes of one core

The model that the recipe pair chooses on a processor is trained twice from
each seed, for the same steps on the same batches: with short ones first for
half of the steps, and as they come. What counts is the likelihood of 1,000
held-out pairs of all lengths.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import tyro
from ledger import append, entry_of_runs, make_runs, read

from annotated.book.results import commit
from annotated.engine.data import open_data
from annotated.engine.fit import fitted
from annotated.engine.recipes import RECIPES
from annotated.engine.runs import first_model
from annotated.engine.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure."""

    data: Annotated[str, tyro.conf.Positional]
    """a folder that `annotated data prepare` has made"""
    steps: int = 1500
    """of 1,500 tokens on either side"""
    d_model: int = 128
    layers: int = 2
    seeds: int = 1
    first: int = 0
    """the first seed, where several processes share the work"""
    only: int | None = None
    """the steps of the curriculum; unless given, half of all, and none"""
    work: Path | None = None
    """a file of finished runs, to go on from; unless given, a new one"""
    json: Path | None = None
    """write the result here"""


def run(settings: Settings, work: Path) -> None:
    """Make the runs that work lacks."""
    steps = settings.steps
    recipe = RECIPES["pair"].changed(
        data=settings.data,
        d_model=settings.d_model,
        d_ff=4 * settings.d_model,
        dropout=0.0,
        batch_tokens=1500,
        max_steps=steps,
        precision="float32",
        num_encoder_layers=settings.layers,
        num_decoder_layers=settings.layers,
    )
    data = open_data(recipe)
    tokenizers = data.tokenizers()
    train = data.corpus("train")
    valid = data.corpus("valid").first(recipe.valid_pairs or 1000)
    done = {(one["curriculum"], one["seed"]) for one in read(work)}
    ways = [steps // 2, 0] if settings.only is None else [settings.only]
    for seed in range(settings.first, settings.first + settings.seeds):
        for curriculum in ways:
            if (curriculum, seed) in done:
                continue
            made = data.recipe.changed(seed=seed, curriculum=curriculum)
            # the schedule that pair chooses, whatever the speed
            tokens = int(train.tgt.lengths.sum())
            made = fitted(made, len(train), tokens, lambda _: 1.0)
            model = first_model(made, *tokenizers)
            trainer, curve = Trainer(model, train, made.training), []
            began = time.process_time()
            for progress in trainer.steps():
                if progress.step % max(1, steps // 5) == 0:
                    nll = trainer.validate(valid)["nll"]
                    curve.append((progress.step, nll))
            one = {
                "curriculum": curriculum,
                "seed": seed,
                "nll": trainer.validate(valid)["nll"],
                "curve": curve,
                "seconds": time.process_time() - began,
                "tokens": trainer.tokens,
                "commit": commit(),
            }
            append(work, one)


def result(settings: Settings, runs: list[dict[str, Any]]) -> Any:
    """The ledger's entry: the mean of the seeds, and every run."""
    found: dict[str, list[float]] = {}
    for one in runs:
        way = "short first" if one["curriculum"] else "as they come"
        found.setdefault(way, []).append(one["nll"])
    perplexity = {way: math.exp(mean(nll)) for way, nll in found.items()}
    shown = replace(settings, data=Path(settings.data).name)
    metrics = {"perplexity": perplexity, "runs": runs}
    return entry_of_runs("curriculum.py", shown, metrics, runs)


def main() -> None:
    make_runs(tyro.cli(Settings), run, result)


if __name__ == "__main__":
    main()
