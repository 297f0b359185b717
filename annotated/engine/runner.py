"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import dataclasses
import filecmp
import importlib.util
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
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from annotated.batches import Corpus
from annotated.checkpoints import average_weights
from annotated.costs import kept_bytes, state_bytes
from annotated.engine.checkpoints import DamagedError, checkpoints, restore
from annotated.engine.distributed import (
    all_gather,
    own_part,
    rank,
    rank_zero_first,
    rank_zero_only,
    world_size,
)
from annotated.engine.errors import RunError, Stopped
from annotated.engine.files import (
    check_new,
    replacing,
    write_json,
    write_text,
)
from annotated.engine.lock import locked
from annotated.engine.machine import memory_bytes, pick_device, set_up
from annotated.engine.packing import check_compiler
from annotated.engine.recipes import Recipe
from annotated.engine.runs import (
    FIRST,
    Run,
    begin_run,
    best_step,
    old_corpus,
    read_metrics,
    read_recipe,
    resume_run,
    validations,
)
from annotated.engine.tensors import write_tensors
from annotated.engine.trainer import Trainer
from annotated.training import Progress

__all__ = [
    "train_recipe", "Sets", "LOGITS", "with_micro_tokens", "token_entropy",
    "BOUND", "WINDOW", "FALLING",
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
    end, model.safetensors is the mean of the last keep checkpoints (§6.1),
    or the last one alone if its validation nll is lower; best.safetensors
    has the weights of the lowest validation nll during training.
    Raises DataError, RunError, TrainingError or ValueError.
    """
    if shard and world_size() == 1:
        raise RunError("shard needs several processes: use torchrun")
    device = pick_device(device)
    set_up(device)
    if recipe.training.compile:
        check_compiler(device)
    with _alone(folder, resume):
        return _trained(recipe, folder, resume, device, shard)


@contextmanager
def _alone(folder: Path, resume: bool) -> Iterator[None]:
    """Hold the lock of a run folder. RunError if another process does, or
    if this is no folder to begin or resume in.
    """
    with ExitStack() as stack:

        def enter() -> None:
            if resume:
                read_recipe(folder)
            else:
                check_new(folder)
            stack.enter_context(locked(folder))

        rank_zero_only(enter)
        yield


def _trained(
    recipe: Recipe, folder: Path, resume: bool, device: str, shard: bool
) -> dict[str, Any]:
    """train_recipe, in a folder of which this run holds the lock."""
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
        expected = trainer.rehearse()
        rank_zero_first(lambda: _take_up(trainer, folder, expected))
        trainer.check_same()
        _check_plan(trainer, folder)
        rank_zero_only(lambda: _note_changes(run, folder))
    count = sum(p.numel() for p in model.parameters())
    several = f" in {world_size()} processes" if world_size() > 1 else ""
    _say(
        f"{len(corpus):,} pairs, {len(run.source):,} and "
        f"{len(run.target):,} tokens, {count:,} parameters, on "
        f"{device}{several}"
    )
    old = old_corpus(run.recipe, (run.source, run.target))
    sets = {"valid": valid} | ({} if old is None else {"old": old})
    with closing(_Log(folder, trainer)) as log:
        if trainer.step == 0 and run.first:  # what it begins with
            log.valid(0, _validated(trainer, sets))
        _train(trainer, sets, folder, log)
    return _finish(trainer, sets, folder)


Sets = dict[str, Corpus]  # what to validate on: "valid", perhaps "old"


def _validated(trainer: Trainer, sets: Sets) -> dict[str, Any]:
    return {name: trainer.validate(each) for name, each in sets.items()}


def _check_plan(trainer: Trainer, folder: Path) -> None:
    """RunError if the run is longer already than it is to be."""
    if trainer.step > (most := trainer.planned.max_steps):
        raise RunError(
            f"{folder} has been trained for {trainer.step} steps already, "
            f"more than --max-steps {most}: resume it with as many or more"
        )


def _note_changes(run: Run, folder: Path) -> None:
    """Write the recipe, if it has changed, now that the run goes on."""
    if run.recipe != read_recipe(folder):
        with _written("recipe.json"):
            run.write_recipe(folder)


def _say(line: str) -> None:
    """Print a line above the progress bar, in process 0 only."""
    if rank() == 0:
        tqdm.write(line, file=sys.stderr)


# E10-runner.md: Micro-batches that fit
# bytes of a chunk of logits in the loss
LOGITS = {"cpu": 2**24, "cuda": 2**30, "mps": 2**30}


def with_micro_tokens(recipe: Recipe, device: str) -> Recipe:
    """The recipe, with micro_tokens set if a process's share of a batch
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
def _train(trainer: Trainer, sets: Sets, folder: Path, log: _Log) -> None:
    """Run all steps, with validations and checkpoints, and write a final
    checkpoint. Raises Stopped.
    """
    config, every = trainer.config, trainer.config.save_every

    def validate() -> None:
        """Log the scores of this step, unless they are there."""
        known = rank() == 0 and trainer.step in validations(folder)
        if not all_gather(known)[0]:
            log.valid(trainer.step, _validated(trainer, sets))

    if trainer.step and trainer.step % every == 0:
        validate()  # the signal that stopped it would not wait for this
    # in case the run was killed before it could
    rank_zero_only(lambda: _keep_best(trainer.step, folder))
    saved, seconds = trainer.step, trainer.seconds
    minutes = config.save_minutes or math.inf
    with _stop_signals(trainer) as seen:
        for progress in trainer.steps():
            log.step(progress)
            alone = world_size() == 1
            stopping = trainer.stop if alone else trainer.stopping
            due = trainer.step % every == 0
            late = trainer.seconds - seconds >= 60 * minutes
            if due and not stopping:
                log.valid(trainer.step, _validated(trainer, sets))
            if due or late or stopping:
                _save(trainer, folder)
                saved, seconds = trainer.step, trainer.seconds
            if stopping:
                raise Stopped(trainer.step, [*seen, signal.SIGTERM][0])
        log.note()
        validate()
        if saved != trainer.step:
            _save(trainer, folder)
        else:
            rank_zero_only(lambda: _keep_best(trainer.step, folder))


def _save(trainer: Trainer, folder: Path) -> None:
    """Write a checkpoint; RunError, with nothing lost, if that fails."""
    places = folder / "checkpoints"
    with _written(f"the checkpoint of step {trainer.step}"):
        trainer.save(places)
    rank_zero_only(lambda: _keep_best(trainer.step, folder))


def _keep_best(step: int, folder: Path) -> None:
    """Copy this step's weights to best.safetensors if it is the best."""
    if best_step(folder) == step:
        place = folder / "checkpoints" / f"{step:08d}" / "model.safetensors"
        best = folder / "best.safetensors"
        with _written(best.name), replacing(best) as fresh:
            shutil.copyfile(place if step else folder / FIRST, fresh)


@contextmanager
def _written(what: str) -> Iterator[None]:
    """RunError, saying what to do, if a file cannot be written."""
    try:
        yield
    except OSError as error:
        reason = " ".join(str(error).split())[:160]
        raise RunError(
            f"{what} could not be written ({reason}): what was there is "
            "intact; mend that, then continue with --resume"
        ) from None


# E10-runner.md: A run that only counts tokens
def token_entropy(corpus: Corpus) -> float:
    """The unigram entropy of the target tokens, in nats; ends of sentences
    count as tokens.
    """
    ids = corpus.tgt.ids
    counts = np.zeros(1 + int(ids.max(initial=0)), dtype=np.int64)
    for first in range(0, len(ids), 2**24):  # they may be on disk
        part = ids[first : first + 2**24]
        counts += np.bincount(part, minlength=len(counts))
    counts = np.append(counts[counts > 0], len(corpus))
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


BOUND = 0.9  # of the entropy: a run that learns gets below it
WINDOW = 100  # steps to average over, and to wait after warm-up
FALLING = 0.98  # of the best validation nll: below it, a run has improved


class _Doubt:
    """Whether a run has learned more than the tokens' frequencies; best is
    its lowest validation nll so far.
    """

    def __init__(self, trainer: Trainer, best: float = math.inf):
        config, self.best = trainer.config, best
        self.entropy = token_entropy(trainer.corpus)
        self.due = max(config.warmup, trainer.step) + WINDOW
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.since = trainer.step + 1
        self.said = False
        self.advice = (
            f"guessing words by their frequency gives {self.entropy:.2f}. "
            f"Stop, then --resume with --rate below {config.rate:g} or "
            f"--warmup above {config.warmup}"
        )
        if trainer.model.config.norm == "post":
            self.advice += ", or start a new run with --norm pre"

    def training(self, progress: Progress) -> str | None:
        """The warning after a step, if any."""
        self.recent.append(progress.nll)
        mean = sum(self.recent) / len(self.recent)
        if mean < BOUND * self.entropy:
            self.since = progress.step + 1
        where = f"in training since step {self.since}"
        return self._told(progress.step, mean, where)

    def validation(self, step: int, nll: float) -> str | None:
        """The warning after a validation, if any."""
        falling = nll < FALLING * self.best
        self.best = min(self.best, nll)
        if falling:
            return None
        return self._told(step, self.best, "in the best validation so far")

    def _told(self, step: int, nll: float, where: str) -> str | None:
        if self.said or step < self.due or nll < BOUND * self.entropy:
            return None
        self.said = True
        return (
            f"step {step}: {nll:.2f} nats per token {where}; {self.advice}"
        )


# E10-runner.md: Signals
@contextmanager
def _stop_signals(trainer: Trainer) -> Iterator[list[int]]:
    """The first SIGTERM or SIGINT asks the trainer to stop, and is
    recorded; a second has its usual effect, or none if there are several
    processes, since launchers repeat signals.
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
            # not print: the signal may have interrupted one
            os.write(2, b"\nstopping after this step; repeat to quit now\n")

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, note)
    try:
        yield seen
    finally:
        restore()


# E10-runner.md: The log
def _board(folder: Path, step: int) -> Any:
    """What writes TensorBoard's events from a step on; None without it."""
    if rank() or importlib.util.find_spec("tensorboard") is None:
        return None
    module = importlib.import_module("torch.utils.tensorboard")
    place, after = str(folder / "tensorboard"), step + 1 if step else None
    return module.SummaryWriter(place, purge_step=after, flush_secs=20)


def _scalars(entry: dict[str, Any], start: str = "") -> dict[str, float]:
    """The numbers of a line of the log: {"valid/nll": …}."""
    found: dict[str, float] = {}
    for name, value in entry.items():
        if isinstance(value, dict):
            found |= _scalars(value, f"{start}{name}/")
        elif isinstance(value, (int, float)) and name != "step":
            found[start + name] = value
    return found


class _Log:
    """Writes metrics.jsonl, and shows a progress bar, or plain lines if
    not on a terminal; does nothing outside process 0.
    """

    def __init__(self, folder: Path, trainer: Trainer):
        path, self.trainer = folder / "metrics.jsonl", trainer
        if rank() == 0:
            # a resumed run discards what came after its checkpoint
            notes = read_metrics(folder)
            kept = [e for e in notes if 0 < trainer.step >= e["step"]]
            text = "".join(f"{json.dumps(e)}\n" for e in kept)
            with _written(path.name):
                write_text(path, text)
            nll = validations(folder).values()
            self.doubt = _Doubt(trainer, min(nll, default=math.inf))
        file = Path(os.devnull) if rank() else path
        self.file = file.open("a", buffering=1, encoding="utf-8")  # by line
        most = trainer.config.max_minutes
        self.end = f" of {most:g}" if most else ""
        self.last = trainer.planned.max_steps
        self.bar = tqdm(
            total=self.last,
            initial=trainer.step,
            unit="step",
            dynamic_ncols=True,
            disable=True if rank() else None,
        )
        self.said = time.monotonic()
        self.recent: list[Progress] = []
        self.noted = 0  # the last step whose line is written
        self.board = _board(folder, trainer.step)

    def close(self) -> None:
        self.bar.close()
        self.file.close()
        if self.board is not None:
            self.board.close()

    def step(self, progress: Progress) -> None:
        """Log a step; the file gets first, tenths, last."""
        self.recent = [*self.recent[-9:], progress]
        ends = 1, self.trainer.config.max_steps
        if progress.step % 10 == 0 or progress.step in ends:
            self.note()
        if rank() == 0:
            self._warn(progress.step, self.doubt.training(progress))
        if self.last != (last := self.trainer.config.max_steps):
            self.last = self.bar.total = last
            _say(f"the minutes allow {last} steps: cooling down until then")
        self.bar.set_postfix_str(self._pace(), refresh=False)
        self.bar.update()
        if self.bar.disable and time.monotonic() - self.said > 30:
            self.said = time.monotonic()
            _say(f"step {progress.step}, {self._pace()}")

    def note(self) -> None:
        """Write the latest step's line, unless that has been done."""
        for progress in self.recent[-1:]:
            if progress.step > self.noted:
                self.noted, scaling = progress.step, self.trainer.scaling
                more = {} if scaling is None else vars(scaling)
                self._write(dataclasses.asdict(progress) | more)

    def valid(self, step: int, found: dict[str, Any]) -> None:
        """Log the scores of a validation, by set."""
        self._write({"step": step} | found)
        what = "checkpoint" if step else "before"
        line = f"step {step}: {what}, validation perplexity "
        line += f"{found['valid']['perplexity']:.2f}"
        if "old" in found:
            line += f", on the old data {found['old']['perplexity']:.2f}"
        _say(line)
        if rank() == 0:
            nll = found["valid"]["nll"]
            self._warn(step, self.doubt.validation(step, nll))

    def _warn(self, step: int, warning: str | None) -> None:
        if warning is not None:
            self._write({"step": step, "warning": warning})
            _say(warning)

    def _write(self, entry: dict[str, Any]) -> None:
        with _written("metrics.jsonl"):
            self.file.write(json.dumps(entry) + "\n")
            if self.board is not None:
                for name, value in _scalars(entry).items():
                    self.board.add_scalar(name, value, entry["step"])

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
def _take_up(
    trainer: Trainer, folder: Path, expected: dict[str, Tensor]
) -> None:
    """Load the newest intact checkpoint, and print its step."""
    places = checkpoints(folder / "checkpoints")[::-1]
    for place in places:
        try:
            restore(trainer, place, expected)
        except DamagedError as error:
            damaged = place.with_name(f"damaged-{place.name}")
            shutil.rmtree(damaged, ignore_errors=True)
            place.rename(damaged)
            print(f"{error}: set aside as {damaged.name}", file=sys.stderr)
            continue
        _say(f"resuming at step {trainer.step}")
        if not trainer.same_noise and trainer.model.config.dropout:
            _say(
                "micro-batches, processes or kernels have changed: "
                "dropout's noise will differ from here on"
            )
        return
    if places or _had_checkpoints(folder, trainer.config.save_every):
        raise RunError(
            f"{folder} has been trained, but has no intact checkpoint to "
            "resume from, and is left as it is: put its checkpoints back, "
            "use it as it is, or train anew into another --out"
        )
    _say("no checkpoint yet: starting at step 0")


def _had_checkpoints(folder: Path, save_every: int) -> bool:
    """Whether a run folder without checkpoints shows signs of any."""
    places = folder / "checkpoints"
    names = ["model.safetensors", "summary.json"]
    best, first = folder / "best.safetensors", folder / FIRST
    begun = best.exists() and first.exists()  # from another's weights
    if not (begun and filecmp.cmp(best, first, shallow=False)):
        names.append(best.name)
    steps = [entry["step"] for entry in read_metrics(folder)]
    return (
        any((folder / name).exists() for name in names)
        or any(places.glob("damaged-*"))
        or max(steps, default=0) > save_every
        or bool(steps and not places.is_dir())
    )


# E10-runner.md: The end of a run
def _finish(trainer: Trainer, sets: Sets, folder: Path) -> dict[str, Any]:
    """Choose the last weights or the mean of the last checkpoints; write
    the model and the summary.
    """
    config = trainer.config
    scores, averaged, weights = _chosen(trainer, sets["valid"], folder)
    place = trainer.batch_index / len(trainer.plan(trainer.epoch))
    summary: dict[str, Any] = {
        "steps": trainer.step,
        "epochs": round(trainer.epoch + place, 2),
        "tokens": trainer.tokens,
        "seconds": round(trainer.seconds, 1),
        "processes": world_size(),
        "precision": config.precision,
        "parameters": sum(w.numel() for w in weights.values()),
        "averaged": averaged,  # 1: only the last
        "best": best_step(folder),
        "valid": scores,
    }
    if trainer.scaling:
        summary["overflows"] = trainer.scaling.overflows
    lines = read_metrics(folder)
    if "valid" in lines[0] and lines[0]["step"] == 0:  # it went on
        _put(trainer, weights)
        summary |= _validated(trainer, sets)
        summary["before"] = {name: lines[0][name] for name in sets}
        _say(_compared(summary))
    if warnings := [line["warning"] for line in lines if "warning" in line]:
        summary["warnings"] = warnings
    if cut := trainer.planned.max_steps - trainer.step:
        summary["not_run"] = cut
    rank_zero_only(lambda: _write_model(weights, summary, folder))
    if cut:
        _say(_shortened(trainer, cut))
    return summary


def _chosen(
    trainer: Trainer, valid: Corpus, folder: Path
) -> tuple[dict[str, float], int, dict[str, Tensor]]:
    """The scores of the better weights, the number of checkpoints that
    they are the mean of, and the weights.
    """
    config, places = trainer.config, folder / "checkpoints"
    final = places / f"{trainer.step:08d}"
    regular = checkpoints(places, config.save_every)
    last = [*(p for p in regular if p != final), final][-config.keep :]
    choice = []
    for count in sorted({len(last), 1}, reverse=True):
        files = [p / "model.safetensors" for p in last[-count:]]
        weights = average_weights(files)
        _put(trainer, weights)
        choice.append((trainer.validate(valid), count, weights))
    scores, averaged, weights = min(choice, key=lambda c: c[0]["nll"])
    if averaged < len(last):
        _say(
            f"the last checkpoint is better than the mean of {len(last)}: "
            "using it as the model"
        )
    return scores, averaged, weights


def _put(trainer: Trainer, weights: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in trainer.parameters().items():
            parameter.copy_(own_part(weights[name], parameter))


def _compared(summary: dict[str, Any]) -> str:
    """One line: what a run that went on from another gained and lost."""
    before, parts = summary["before"], []
    for name, what in (("valid", "new"), ("old", "old")):
        if name in before:
            pair = before[name], summary[name]
            was, now = (scores["perplexity"] for scores in pair)
            parts.append(f"on the {what} data from {was:.2f} to {now:.2f}")
    line = f"perplexity {', '.join(parts)}"
    if summary["best"] == 0:
        line += "; no checkpoint is better on the new data than the first"
    return line


def _shortened(trainer: Trainer, cut: int) -> str:
    """One line: what a run that ended with its minutes has left out."""
    config = trainer.config
    line = (
        f"{config.max_minutes:g} minutes allowed {trainer.step} of the "
        f"plan's {trainer.planned.max_steps} steps: {cut} were not run"
    )
    if missing := min(config.cooldown, config.max_steps - trainer.step):
        line += f", and the last {missing} of the cool-down"
    return line


def _write_model(
    weights: dict[str, Tensor], summary: dict[str, Any], folder: Path
) -> None:
    place = folder / "model.safetensors"
    with _written("the model"):
        with replacing(place) as fresh:
            write_tensors(weights, fresh)
        write_json(folder / "summary.json", summary)
