"""annotated.engine.runner.

Exported from the book; edit the chapter, then run `make export`.

- E10-runner.md: A run from its first step to its last
"""

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
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from annotated.batches import Corpus
from annotated.checkpoints import (
    average_weights,
    checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from annotated.engine.errors import RunError, Stopped
from annotated.engine.files import write_json, write_text
from annotated.engine.machine import pick_device
from annotated.engine.recipes import Recipe
from annotated.engine.runs import (
    Run,
    begin_run,
    best_step,
    read_metrics,
    resume_run,
)
from annotated.training import Progress, Team, Trainer, validate

__all__ = ["train_recipe"]


# E10-runner.md: Stop, and go on
class _StopSignals:
    """The first SIGTERM or SIGINT is noted; a second acts as ever, or not
    at all where there are several processes: launchers repeat them.
    """

    def __init__(self, team: Team):
        self.alone = team.size == 1

    def __enter__(self) -> _StopSignals:
        self.number = 0
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.number = number
        if self.alone:
            self.__exit__()
            # not print: the signal may have come in the middle of one
            os.write(2, b"\nstopping after this step; again: at once\n")


class _Log:
    """metrics.jsonl, and a progress bar, or plain lines without one."""

    def __init__(self, folder: Path, trainer: Trainer):
        self.trainer = trainer
        path = folder / "metrics.jsonl"
        # a resumed run forgets what came after its checkpoint
        kept = [
            e for e in read_metrics(folder) if e["step"] <= trainer.step
        ]
        write_text(path, "".join(json.dumps(e) + "\n" for e in kept))
        self.file = path.open("a", encoding="utf-8")
        self.bar = tqdm(
            total=trainer.config.max_steps,
            initial=trainer.step,
            unit="step",
            dynamic_ncols=True,
            disable=None,
        )
        self.said = time.monotonic()
        self.recent: list[Progress] = []

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        self.file.close()

    def step(self, progress: Progress) -> None:
        """Note a step; every tenth and the first go to the file."""
        self.recent = [*self.recent[-9:], progress]
        if progress.step % 10 == 0 or progress.step == 1:
            self._write(dataclasses.asdict(progress))
        self.bar.set_postfix_str(self._state(), refresh=False)
        self.bar.update()
        if self.bar.disable and time.monotonic() - self.said > 30:
            self.said = time.monotonic()
            self._say(f"step {progress.step}, {self._state()}")

    def valid(self, step: int, scores: dict[str, float]) -> None:
        """Note what validation found."""
        self._write({"step": step, "valid": scores})
        self._say(
            f"step {step}: checkpoint, validation perplexity "
            f"{scores['perplexity']:.2f}"
        )

    def _state(self) -> str:
        first, last = self.recent[0], self.recent[-1]
        loss = sum(p.loss for p in self.recent) / len(self.recent)
        seconds = last.seconds - first.seconds
        speed = (last.tokens - first.tokens) / seconds if seconds else 0.0
        most = self.trainer.config.max_minutes
        end = f" of {most:g}" if most else ""
        return (
            f"epoch {last.epoch}, loss {loss:.3f}, {speed:,.0f} tokens/s, "
            f"{last.seconds / 60:.1f}{end} min"
        )

    def _write(self, entry: dict[str, Any]) -> None:
        self.file.write(json.dumps(entry) + "\n")
        self.file.flush()

    def _say(self, line: str) -> None:
        tqdm.write(line, file=sys.stderr)


class _NoLog:
    """What the other processes note: nothing."""

    def __enter__(self) -> _NoLog:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to close."""

    def step(self, progress: Progress) -> None:
        """Process 0 notes it."""

    def valid(self, step: int, scores: dict[str, float]) -> None:
        """Process 0 notes it."""


def _save(trainer: Trainer, folder: Path) -> None:
    """A checkpoint; RunError, with nothing lost, where it cannot be."""
    config, places = trainer.config, folder / "checkpoints"
    try:
        save_checkpoint(trainer, places, config.keep, config.save_every)
    except (OSError, RuntimeError, SafetensorError) as error:
        for begun in places.glob(".[0-9]*"):
            shutil.rmtree(begun, ignore_errors=True)
        what = f"the checkpoint of step {trainer.step}"
        raise _unwritten(what, error) from None


def _unwritten(what: str, error: Exception) -> RunError:
    reason = " ".join(str(error).split())[:160]
    return RunError(
        f"{what} could not be written ({reason}): the checkpoints before "
        "it are whole; make room, then --resume"
    )


def _take_up(trainer: Trainer, folder: Path) -> None:
    """Load the newest checkpoint that is whole, and say which."""
    trainer.team.in_turn(lambda: _take_newest(trainer, folder))
    trainer.check_team()


def _take_newest(trainer: Trainer, folder: Path) -> None:
    loud = trainer.team.rank == 0
    places = checkpoints(folder / "checkpoints")[::-1]
    for place in places:
        try:
            load_checkpoint(trainer, place)
        except (KeyError, TypeError, ValueError) as error:
            aside = place.with_name(f"damaged-{place.name}")
            shutil.rmtree(aside, ignore_errors=True)
            place.rename(aside)
            print(f"{error}: set aside as {aside.name}", file=sys.stderr)
            continue
        if loud:
            print(f"resuming at step {trainer.step}", file=sys.stderr)
        return
    if places:
        raise RunError(f"{folder} has no checkpoint that is whole")
    if loud:
        print("no checkpoint yet: starting at step 0", file=sys.stderr)


# E10-runner.md: Training a recipe
def train_recipe(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    device: str | None = None,
    team: Team | None = None,
) -> dict[str, Any]:
    """Train a recipe into a run folder; returns the run's summary.

    On SIGTERM or SIGINT it writes a checkpoint and raises Stopped. At the
    end model.safetensors is the mean of the last keep checkpoints (§6.1),
    or the last one, where that has the lower validation nll;
    best.safetensors has the weights of the lowest nll on the way.
    Raises DataError, RunError, TrainingError or ValueError.
    """
    team = team or Team()
    device = pick_device(device)
    run, corpus, valid = team.in_turn(
        lambda: (
            resume_run(recipe, folder)
            if resume or team.rank
            else begin_run(recipe, folder, device)
        )
    )
    model = run.model.to(device)
    trainer = Trainer(model, corpus, run.recipe.training, team)
    if resume:
        _take_up(trainer, folder)
    _say_what(run, corpus, device, team)
    quiet = team.rank > 0
    with (
        _StopSignals(team) as stop,
        _NoLog() if quiet else _Log(folder, trainer) as log,
    ):
        _train(trainer, valid, folder, stop, log)
    return _finish(run, trainer, valid, folder)


def _train(
    trainer: Trainer,
    valid: Corpus,
    folder: Path,
    stop: _StopSignals,
    log: _Log | _NoLog,
) -> None:
    """Every step, with checkpoints and validations, and a checkpoint at
    the end. Raises Stopped.
    """
    config, team = trainer.config, trainer.team
    saved, seconds = trainer.step, trainer.seconds
    minutes = config.save_minutes or math.inf
    for progress in trainer.steps():
        log.step(progress)
        # looked at once, for a signal may come at any time, and together,
        # for it may have come to any process
        wish = int(team.sum(torch.tensor(stop.number)).item())
        due = trainer.step % config.save_every == 0
        late = trainer.seconds - seconds >= 60 * minutes
        if due or late or wish:
            _save(trainer, folder)
            saved, seconds = trainer.step, trainer.seconds
        if wish:
            raise Stopped(trainer.step, stop.number or signal.SIGTERM)
        if due:
            scores = validate(
                trainer.model, valid, config, team, trainer.loss
            )
            log.valid(trainer.step, scores)
            team.first(partial(_keep_best, trainer.step, folder))
    if saved != trainer.step:
        _save(trainer, folder)


def _keep_best(step: int, folder: Path) -> None:
    """best.safetensors becomes this step's weights where it is the best."""
    if best_step(folder) != step:
        return
    place = folder / "checkpoints" / f"{step:08d}" / "model.safetensors"
    fresh = folder / f".best.safetensors.{os.getpid()}"
    try:
        try:
            fresh.hardlink_to(place)
        except OSError:  # not every file system can
            shutil.copyfile(place, fresh)
        fresh.replace(folder / "best.safetensors")
    except OSError as error:
        raise _unwritten("best.safetensors", error) from None
    finally:
        fresh.unlink(missing_ok=True)


def _say_what(run: Run, corpus: Corpus, device: str, team: Team) -> None:
    if team.rank:
        return
    count = sum(p.numel() for p in run.model.parameters())
    several = f" in {team.size} processes" if team.size > 1 else ""
    print(
        f"{len(corpus):,} pairs, {len(run.source):,} and "
        f"{len(run.target):,} tokens, {count:,} parameters, on "
        f"{device}{several}",
        file=sys.stderr,
    )


def _finish(
    run: Run, trainer: Trainer, valid: Corpus, folder: Path
) -> dict[str, Any]:
    """Choose the last weights or the mean of the last checkpoints; write
    the model and the summary.
    """
    config, team = trainer.config, trainer.team
    places = folder / "checkpoints"
    final = places / f"{trainer.step:08d}"
    regular = checkpoints(places, config.save_every)
    last = [*(p for p in regular if p != final), final][-config.keep :]
    choice = []
    for count in dict.fromkeys((len(last), 1)):
        files = [p / "model.safetensors" for p in last[-count:]]
        mean = average_weights(files)
        with torch.no_grad():
            for name, parameter in run.model.named_parameters():
                here = mean[name].to(parameter.device)
                parameter.copy_(team.part(here, parameter))
        found = validate(run.model, valid, config, team, trainer.loss)
        choice.append((found, count, mean))
    scores, averaged, weights = min(choice, key=lambda c: c[0]["nll"])
    if averaged < len(last) and team.rank == 0:
        print(
            f"the last checkpoint is better than the mean of {len(last)}: "
            "it is the model",
            file=sys.stderr,
        )
    plan = trainer.corpus.plan(
        config.batch_tokens, config.seed, trainer.epoch
    )
    summary = {
        "steps": trainer.step,
        "epochs": round(trainer.epoch + trainer.batch / len(plan), 2),
        "tokens": trainer.tokens,
        "seconds": round(trainer.seconds, 1),
        "processes": team.size,
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "averaged": averaged,  # 1: the last alone
        "best": best_step(folder),
        "valid": scores,
    }
    team.first(lambda: _write_model(weights, summary, folder))
    return summary


def _write_model(
    weights: dict[str, Tensor], summary: dict[str, Any], folder: Path
) -> None:
    fresh = folder / f".model.safetensors.{os.getpid()}"
    try:
        save_file(weights, fresh)
        fresh.replace(folder / "model.safetensors")
        write_json(folder / "summary.json", summary)
    except (OSError, SafetensorError) as error:
        raise _unwritten("the model", error) from None
    finally:
        fresh.unlink(missing_ok=True)
