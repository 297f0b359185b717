"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

from annotated.batches import Corpus
from annotated.book.results import entry
from annotated.engine.data import TextData
from annotated.engine.errors import RunError, UsageError, check_whole
from annotated.engine.files import write_json
from annotated.engine.machine import pick_device
from annotated.engine.recipes import RECIPES, Recipe
from annotated.engine.runs import Run, first_model
from annotated.engine.speed import training_speed
from annotated.engine.trainer import Trainer
from annotated.evaluation import score
from annotated.search import SearchConfig
from annotated.tokens import Tokenizer
from annotated.training import greedy_accuracy
from annotated.variations import small_rows

__all__ = ["shared_data", "one_run", "Sweep"]


# E19-sweep.md: One run
_SENTENCES = 300  # of the validation split that are translated
_SNAPSHOTS = 50  # per run; the last KEPT of them are averaged
_KEPT = 5


@dataclass(frozen=True)
class _SharedData:
    """The training and validation data that all runs of a sweep share."""

    tokenizers: tuple[Tokenizer, Tokenizer]
    train: Corpus
    valid: Corpus
    lines: list[str]  # to translate
    references: list[str]


def shared_data(recipe: Recipe) -> _SharedData:
    """The data of a recipe, the same for every seed."""
    data = TextData(recipe.changed(seed=0))
    lines, references = data.text("valid")
    return _SharedData(
        data.tokenizers(),
        data.corpus("train"),
        data.corpus("valid"),
        lines[:_SENTENCES],
        references[:_SENTENCES],
    )


def one_run(
    recipe: Recipe, data: _SharedData, device: str = "cpu"
) -> dict[str, Any]:
    """Train one row and measure the result on the validation split.

    perplexity, accuracy and bleu are those of the last weights. Prefixes:
    greedy_ and alpha0_ for other searches, mean_ for averaged weights.
    """
    model = first_model(recipe, *data.tokenizers).to(device)
    run = Run(recipe, *data.tokenizers, model)
    trainer = Trainer(model, data.train, recipe.training)
    last = recipe.training.max_steps
    every, losses = max(1, last // _SNAPSHOTS), []
    total: dict[str, torch.Tensor] = {}
    for progress in trainer.steps():
        if progress.step > last - last // 10:
            losses.append(progress.nll)
        left = last - progress.step
        if left % every == 0 and left < _KEPT * every:
            for name, weight in trainer.weights().items():
                total[name] = total.get(name, 0) + weight / _KEPT
    search = recipe.search
    greedy = dataclasses.replace(search, beam=1)
    unpenalised = dataclasses.replace(search, alpha=0.0)
    result = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": trainer.seconds,
        "train_nll": sum(losses) / len(losses),
        **_judged(trainer, data),
        **_bleu(run, data, search),
        "greedy_bleu": _bleu(run, data, greedy)["bleu"],
        "alpha0_bleu": _bleu(run, data, unpenalised)["bleu"],
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(total[name])
    result |= {f"mean_{k}": v for k, v in _judged(trainer, data).items()}
    return result | {"mean_bleu": _bleu(run, data, search)["bleu"]}


def _judged(trainer: Trainer, data: _SharedData) -> dict[str, float]:
    accuracy, _ = greedy_accuracy(trainer.model, data.valid)
    perplexity = trainer.validate(data.valid)["perplexity"]
    return {"perplexity": perplexity, "accuracy": 100 * accuracy}


def _bleu(
    run: Run, data: _SharedData, search: SearchConfig
) -> dict[str, Any]:
    said = [best[0].text for best in run.translate(data.lines, search)]
    scores = score(said, data.references)
    return {name: scores[name] for name in ("bleu", "signature")}


# E19-sweep.md: All of them
_LEAST = 20  # fewest steps that a run may have
_TRAINING = 0.75  # share of the minutes; the rest is for evaluation


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Train scaled-down versions of a table's rows, with several seeds."""

    experiment: tyro.conf.Positional[Literal["table3"]]  # what to run
    minutes: float  # no run starts after this many minutes
    seeds: int = 3  # number of seeds; each has its own file
    first_seed: int = 0  # the first of them
    only: tuple[str, ...] = ()  # only these rows; unless given, all
    # steps in each run; unless given, as many as fit
    steps: int | None = None
    # folder of the results; runs already in it are not repeated
    out: Path = Path("book/results")
    # cpu, cuda or mps; unless given, a GPU where there is one
    device: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.minutes < math.inf:
            raise UsageError(
                f"minutes must be positive, not {self.minutes:g}"
            )
        least = {"seeds": 1, "first_seed": 0, "steps": _LEAST}
        for name, bound in least.items():
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), bound)
        known = small_rows(_LEAST)
        if strange := set(self.only) - known.keys():
            raise UsageError(
                f"no row {min(strange)!r}; there are {', '.join(known)}"
            )
        if self.out.exists() and not self.out.is_dir():
            raise UsageError(f"{self.out} is not a folder")

    def file(self, seed: int) -> Path:
        """The path of a seed's ledger file."""
        return self.out / f"{self.experiment}-small-{seed}.json"

    def kept(self, seed: int) -> dict[str, Any] | None:
        """The contents of a seed's ledger file, None if there is none.
        RunError if it is damaged or was made with another base recipe.
        """
        path = self.file(seed)
        if not path.exists():
            return None
        try:
            file = json.loads(path.read_text("utf-8"))
            base = small_rows(file["settings"]["steps"], seed)["base"]
            file["metrics"]["runs"].items()
        except (AttributeError, KeyError, TypeError, ValueError):
            raise RunError(
                f"{path} is not a sweep: move it, or choose another --out"
            ) from None
        unlike = base.unlike(RECIPES["table3-base"])
        if file["settings"].get("base") != unlike:
            raise RunError(
                f"{path} was made with another base recipe: choose another "
                "--out"
            )
        return file

    def steps_of_files(self) -> int | None:
        """The number of steps in existing runs, else the command line's;
        None if there are none. RunError if they differ.
        """
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        files = [file for seed in seeds if (file := self.kept(seed))]
        steps = {file["settings"]["steps"] for file in files}
        steps |= {self.steps} - {None}
        if len(steps) > 1:
            raise RunError(
                f"runs of {' and '.join(map(str, sorted(steps)))} steps "
                f"cannot be compared: choose an --out other than {self.out}"
            )
        return steps.pop() if steps else None

    def steps_that_fit(self, data: _SharedData, device: str) -> int:
        """How many steps each run can have. UsageError if too few."""
        rows, each = small_rows(_LEAST), 0.0
        for row in dict.fromkeys(self.only) or rows:
            model = first_model(rows[row], *data.tokenizers).to(device)
            speed, _ = training_speed(model, data.train, rows[row].training)
            each += 1 / speed
        per_minute = 60 * _TRAINING / (each * self.seeds)
        fit = int(self.minutes * per_minute)
        if fit < _LEAST:
            raise UsageError(
                f"{self.minutes:g} minutes allow only {fit} steps per run: "
                f"give at least {math.ceil(_LEAST / per_minute)} minutes"
            )
        return fit

    def run(self) -> dict[str, Any]:
        """Make the missing runs until the minutes are used up. Returns
        the steps per run, and how many runs are done and still open.
        """
        end = time.monotonic() + 60 * self.minutes
        device = pick_device(self.device)
        steps = self.steps_of_files()
        data = shared_data(small_rows(_LEAST)["base"])
        self.out.mkdir(parents=True, exist_ok=True)
        steps = steps or self.steps_that_fit(data, device)
        done = total = 0
        for seed in range(self.first_seed, self.first_seed + self.seeds):
            rows, file = small_rows(steps, seed), self.kept(seed)
            runs = file["metrics"]["runs"] if file else {}
            for row in dict.fromkeys(self.only) or rows:
                total += 1
                if row in runs:
                    done += 1
                elif time.monotonic() < end:
                    start = time.perf_counter()
                    result = one_run(rows[row], data, device)
                    spent = time.perf_counter() - start
                    self.note(row, rows["base"], result, spent, device)
                    done += 1
        return {"steps": steps, "runs": done, "open": total - done}

    def act(self) -> None:
        print(json.dumps(self.run()))

    def note(
        self,
        row: str,
        base: Recipe,
        result: dict[str, Any],
        spent: float,
        device: str,
    ) -> None:
        """Add a run to the ledger file of its seed."""
        seed, steps = base.training.seed, base.training.max_steps
        file = self.kept(seed) or {"metrics": {}}
        fresh = entry(
            self.experiment,
            f"annotated sweep {self.experiment} --minutes {self.minutes:g} "
            f"--first-seed {seed} --seeds 1 --steps {steps}",
            {"runs": file["metrics"].get("runs", {}) | {row: result}},
            seed=seed,
            wall_seconds=spent + file.get("wall_seconds", 0.0),
            settings={
                "steps": steps,
                "sentences": _SENTENCES,
                "base": base.unlike(RECIPES["table3-base"]),
            },
            packages=("numpy", "sacrebleu"),
            device=device,
        )
        before = (file.get("commit") or "").split(", ")
        commits = dict.fromkeys([*before, fresh["commit"]])
        fresh["commit"] = ", ".join(filter(None, commits)) or None
        write_json(self.file(seed), fresh)
        print(
            f"seed {seed}, {row}: perplexity {result['perplexity']:.2f}, "
            f"BLEU {result['bleu']:.1f}, {spent:.0f} s",
            file=sys.stderr,
        )
