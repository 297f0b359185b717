"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from annotated.batches import Corpus
from annotated.checkpoints import (
    average_weights,
    checkpoints,
    load_checkpoint,
    write_weights,
)
from annotated.costs import kept_bytes, state_bytes
from annotated.engine.distributed import (
    own_part,
    rank,
    rank_zero_first,
    rank_zero_only,
    world_size,
)
from annotated.engine.errors import RunError, Stopped
from annotated.engine.files import replacing, write_json, write_text
from annotated.engine.machine import allow_tf32, memory_bytes, pick_device
from annotated.engine.packing import check_compiler
from annotated.engine.recipes import Recipe
from annotated.engine.runs import (
    begin_run,
    best_step,
    read_metrics,
    resume_run,
    validations,
)
from annotated.engine.trainer import Trainer
from annotated.training import Progress

__all__ = [
    "train_recipe", "LOGITS", "with_micro_tokens", "token_entropy", "BOUND",
    "WINDOW", "FALLING",
]  # fmt: skip


# E10-runner.md: From the command to the optimiser's step
def train_recipe(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    device: str | None = None,
    shard: bool = False,
) -> dict[str, Any]:
    """Train a recipe into a run folder; returns the run's summary.

    On SIGTERM or SIGINT it writes a checkpoint and raises Stopped. At the
    end model.safetensors is the mean of the last keep checkpoints (§6.1),
    or the last one, where that has the lower validation nll;
    best.safetensors has the weights of the lowest nll on the way.
    Raises DataError, RunError, TrainingError or ValueError.
    """
    if shard and world_size() == 1:
        raise RunError("shard needs several processes: use torchrun")
    device = pick_device(device)
    allow_tf32(device)
    if recipe.training.compile:
        check_compiler(device)
    run, corpus, valid = rank_zero_first(
        lambda: (
            resume_run(recipe, folder)
            if resume or rank() > 0
            else begin_run(recipe, folder, device)
        )
    )
    model = run.model.to(device)
    training = with_micro_tokens(run.recipe, device).training
    trainer = Trainer(model, corpus, training, shard)
    if resume:
        rank_zero_first(lambda: _take_up(trainer, folder))
        trainer.check_same()
    count = sum(p.numel() for p in model.parameters())
    several = f" in {world_size()} processes" if world_size() > 1 else ""
    _say(
        f"{len(corpus):,} pairs, {len(run.source):,} and "
        f"{len(run.target):,} tokens, {count:,} parameters, on "
        f"{device}{several}"
    )
    with closing(_Log(folder, trainer)) as log:
        _train(trainer, valid, folder, log)
    return _finish(trainer, valid, folder)


def _say(line: str) -> None:
    """One process speaks for all, above the progress bar."""
    if rank() == 0:
        tqdm.write(line, file=sys.stderr)


# E10-runner.md: Micro-batches that fit
# bytes of a chunk, in the loss
LOGITS = {"cpu": 2**24, "cuda": 2**30, "mps": 2**30}


def with_micro_tokens(recipe: Recipe, device: str) -> Recipe:
    """The recipe, with micro_tokens set where a process's share of a batch
    would fill more than two thirds of its device's memory.
    """
    training, config = recipe.training, recipe.config()
    kept = kept_bytes(config, precision=training.precision, device=device)
    room = memory_bytes(device) * 2 / 3 - LOGITS[torch.device(device).type]
    fits = (room - state_bytes(config, training.precision)) / kept
    share = training.batch_tokens / world_size()
    if training.micro_tokens is not None or max(500, fits) >= share:
        return recipe
    return recipe.changed(micro_tokens=int(max(500, fits)))


# E10-runner.md: The loop
def _train(
    trainer: Trainer, valid: Corpus, folder: Path, log: _Log
) -> None:
    """Every step, with validations and checkpoints, and a checkpoint at
    the end. Raises Stopped.
    """
    config = trainer.config
    # of a run that was killed between the two
    rank_zero_only(lambda: _keep_best(trainer.step, folder))
    saved, seconds = trainer.step, trainer.seconds
    minutes = config.save_minutes or math.inf
    with _stop_signals(trainer) as seen:
        for progress in trainer.steps():
            log.step(progress)
            alone = world_size() == 1
            stopping = trainer.stop if alone else trainer.stopping
            due = trainer.step % config.save_every == 0
            late = trainer.seconds - seconds >= 60 * minutes
            if due:
                log.valid(trainer.step, trainer.validate(valid))
            if due or late or stopping:
                _save(trainer, folder)
                saved, seconds = trainer.step, trainer.seconds
            if stopping:
                raise Stopped(trainer.step, [*seen, signal.SIGTERM][0])
        if saved != trainer.step:
            _save(trainer, folder)


def _save(trainer: Trainer, folder: Path) -> None:
    """A checkpoint; RunError, with nothing lost, where it cannot be."""
    places = folder / "checkpoints"
    with _written(f"the checkpoint of step {trainer.step}"):
        try:
            trainer.save(places)
        except OSError:  # of process 0
            for begun in places.glob(".[0-9]*"):
                shutil.rmtree(begun, ignore_errors=True)
            raise
    rank_zero_only(lambda: _keep_best(trainer.step, folder))


def _keep_best(step: int, folder: Path) -> None:
    """best.safetensors becomes this step's weights where it is the best."""
    if best_step(folder) == step:
        place = folder / "checkpoints" / f"{step:08d}"
        best = folder / "best.safetensors"
        with _written(best.name), replacing(best) as fresh:
            shutil.copyfile(place / "model.safetensors", fresh)


@contextmanager
def _written(what: str) -> Iterator[None]:
    """RunError that says what to do, where there is no room."""
    try:
        yield
    except OSError as error:
        reason = " ".join(str(error).split())[:160]
        raise RunError(
            f"{what} could not be written ({reason}): the checkpoints "
            "before it are whole; make room, then --resume"
        ) from None


# E10-runner.md: A run that only counts tokens
def token_entropy(corpus: Corpus) -> float:
    """Of the target tokens, each by itself, in nats; the end of a sentence
    is one of them.
    """
    ids = corpus.tgt.ids
    counts = np.zeros(1 + int(ids.max(initial=0)), dtype=np.int64)
    for first in range(0, len(ids), 2**24):  # they may lie on a disk
        part = ids[first : first + 2**24]
        counts += np.bincount(part, minlength=len(counts))
    counts = np.append(counts[counts > 0], len(corpus))
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


BOUND = 0.9  # of the entropy: a run that learns falls below
WINDOW = 100  # steps: of a mean, and after the warm-up
FALLING = 0.98  # of the best validation: one below it has learned something


class _Doubt:
    """Whether a run has learned more than how often each token comes; best
    is its lowest validation nll so far.
    """

    def __init__(self, trainer: Trainer, best: float = math.inf):
        config, self.best = trainer.config, best
        self.entropy = token_entropy(trainer.corpus)
        self.due = max(config.warmup, trainer.step) + WINDOW
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.since = trainer.step + 1
        self.said = False
        self.advice = (
            f"guessing words by their frequency costs {self.entropy:.2f}. "
            f"Stop, and --resume with a --rate below {config.rate:g} or a "
            f"--warmup above {config.warmup}"
        )
        if trainer.model.config.norm == "post":
            self.advice += ", or begin a new run with --norm pre"

    def training(self, progress: Progress) -> str | None:
        """What to say after a step, if anything."""
        self.recent.append(progress.nll)
        mean = sum(self.recent) / len(self.recent)
        if mean < BOUND * self.entropy:
            self.since = progress.step + 1
        where = f"training, since step {self.since}"
        return self._told(progress.step, mean, where)

    def validation(self, step: int, nll: float) -> str | None:
        """What to say after a validation, if anything."""
        falling = nll < FALLING * self.best
        self.best = min(self.best, nll)
        if falling:
            return None
        return self._told(step, self.best, "validation, at best, so far")

    def _told(self, step: int, nll: float, where: str) -> str | None:
        if self.said or step < self.due or nll < BOUND * self.entropy:
            return None
        self.said = True
        return (
            f"step {step}: {nll:.2f} nats per token in {where}; "
            f"{self.advice}"
        )


# E10-runner.md: Signals
@contextmanager
def _stop_signals(trainer: Trainer) -> Iterator[list[int]]:
    """The first SIGTERM or SIGINT asks the trainer to stop, and is noted;
    a second acts as ever, or not at all where there are several processes:
    launchers repeat them.
    """
    seen: list[int] = []
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: object) -> None:
        seen.append(number)
        trainer.stop = True
        if world_size() == 1:
            restore()
            # not print: the signal may have come in the middle of one
            os.write(2, b"\nstopping after this step; again: at once\n")

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, note)
    try:
        yield seen
    finally:
        restore()


# E10-runner.md: The log
class _Log:
    """metrics.jsonl, and a progress bar, or plain lines without one; in
    other processes than the first, nothing.
    """

    def __init__(self, folder: Path, trainer: Trainer):
        path, self.trainer = folder / "metrics.jsonl", trainer
        if rank() == 0:
            # a resumed run forgets what came after its checkpoint
            notes = read_metrics(folder)
            kept = [e for e in notes if e["step"] <= trainer.step]
            write_text(path, "".join(f"{json.dumps(e)}\n" for e in kept))
            nll = validations(folder).values()
            self.doubt = _Doubt(trainer, min(nll, default=math.inf))
        file = Path(os.devnull) if rank() else path
        self.file = file.open("a", buffering=1, encoding="utf-8")  # by line
        most = trainer.config.max_minutes
        self.end = f" of {most:g}" if most else ""
        self.bar = tqdm(
            total=trainer.config.max_steps,
            initial=trainer.step,
            unit="step",
            dynamic_ncols=True,
            disable=True if rank() else None,
        )
        self.said = time.monotonic()
        self.recent: list[Progress] = []

    def close(self) -> None:
        self.bar.close()
        self.file.close()

    def step(self, progress: Progress) -> None:
        """Note a step; every tenth and the first go to the file."""
        self.recent = [*self.recent[-9:], progress]
        if progress.step % 10 == 0 or progress.step == 1:
            scaling = self.trainer.scaling
            more = {} if scaling is None else vars(scaling)
            self._write(dataclasses.asdict(progress) | more)
        if rank() == 0:
            self._warn(progress.step, self.doubt.training(progress))
        self.bar.set_postfix_str(self._pace(), refresh=False)
        self.bar.update()
        if self.bar.disable and time.monotonic() - self.said > 30:
            self.said = time.monotonic()
            _say(f"step {progress.step}, {self._pace()}")

    def valid(self, step: int, scores: dict[str, float]) -> None:
        """Note what validation found."""
        self._write({"step": step, "valid": scores})
        _say(
            f"step {step}: checkpoint, validation perplexity "
            f"{scores['perplexity']:.2f}"
        )
        if rank() == 0:
            self._warn(step, self.doubt.validation(step, scores["nll"]))

    def _warn(self, step: int, warning: str | None) -> None:
        if warning is not None:
            self._write({"step": step, "warning": warning})
            _say(warning)

    def _write(self, entry: dict[str, Any]) -> None:
        self.file.write(json.dumps(entry) + "\n")

    def _pace(self) -> str:
        first, last = self.recent[0], self.recent[-1]
        loss = sum(p.loss for p in self.recent) / len(self.recent)
        seconds = last.seconds - first.seconds
        speed = (last.tokens - first.tokens) / seconds if seconds else 0.0
        return (
            f"epoch {last.epoch}, loss {loss:.3f}, {speed:,.0f} tokens/s, "
            f"{last.seconds / 60:.1f}{self.end} min"
        )


# E10-runner.md: Resuming
def _take_up(trainer: Trainer, folder: Path) -> None:
    """Load the newest checkpoint that is whole, and say which."""
    places = checkpoints(folder / "checkpoints")[::-1]
    for place in places:
        try:
            load_checkpoint(trainer, place)
        except RunError as error:
            aside = place.with_name(f"damaged-{place.name}")
            shutil.rmtree(aside, ignore_errors=True)
            place.rename(aside)
            print(f"{error}: set aside as {aside.name}", file=sys.stderr)
            continue
        _say(f"resuming at step {trainer.step}")
        if not trainer.same_noise and trainer.model.config.dropout:
            _say(
                "with other micro-batches, processes or kernels than "
                "before: dropout's noise will be another from here on"
            )
        return
    if places:
        raise RunError(f"{folder} has no checkpoint that is whole")
    _say("no checkpoint yet: starting at step 0")


# E10-runner.md: The end of a run
def _finish(
    trainer: Trainer, valid: Corpus, folder: Path
) -> dict[str, Any]:
    """Choose the last weights or the mean of the last checkpoints; write
    the model and the summary.
    """
    config, places = trainer.config, folder / "checkpoints"
    final = places / f"{trainer.step:08d}"
    regular = checkpoints(places, config.save_every)
    last = [*(p for p in regular if p != final), final][-config.keep :]
    choice = []
    for count in sorted({len(last), 1}, reverse=True):
        files = [p / "model.safetensors" for p in last[-count:]]
        weights = average_weights(files)
        with torch.no_grad():
            for name, parameter in trainer.model.named_parameters():
                parameter.copy_(own_part(weights[name], parameter))
        choice.append((trainer.validate(valid), count, weights))
    scores, averaged, weights = min(choice, key=lambda c: c[0]["nll"])
    if averaged < len(last):
        _say(
            f"the last checkpoint is better than the mean of {len(last)}: "
            "it is the model"
        )
    place = trainer.place / len(trainer.plan(trainer.epoch))
    summary: dict[str, Any] = {
        "steps": trainer.step,
        "epochs": round(trainer.epoch + place, 2),
        "tokens": trainer.tokens,
        "seconds": round(trainer.seconds, 1),
        "processes": world_size(),
        "precision": config.precision,
        "parameters": sum(w.numel() for w in weights.values()),
        "averaged": averaged,  # 1: the last alone
        "best": best_step(folder),
        "valid": scores,
    }
    if trainer.scaling:
        summary["overflows"] = trainer.scaling.overflows
    lines = read_metrics(folder)
    if warnings := [line["warning"] for line in lines if "warning" in line]:
        summary["warnings"] = warnings
    rank_zero_only(lambda: _write_model(weights, summary, folder))
    return summary


def _write_model(
    weights: dict[str, Tensor], summary: dict[str, Any], folder: Path
) -> None:
    place = folder / "model.safetensors"
    with _written("the model"), replacing(place) as fresh:
        write_weights(weights, fresh)
    write_json(folder / "summary.json", summary)
