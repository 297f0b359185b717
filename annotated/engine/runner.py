"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import filecmp
import gc
import math
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from annotated.batches import Corpus
from annotated.checkpoints import average_weights
from annotated.engine.checkpoints import DamagedError, checkpoints, restore
from annotated.engine.compiler import check_compiler
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
    locked,
    move,
    replacing,
    write_json,
)
from annotated.engine.fit import tokens_that_fit, with_micro_tokens
from annotated.engine.log import Log, say
from annotated.engine.machine import out_of_memory
from annotated.engine.recipes import Recipe
from annotated.engine.runs import (
    FIRST,
    SCORES,
    Run,
    read_metrics,
    read_recipe,
    validations,
    writing,
)
from annotated.engine.speed import training_device
from annotated.engine.start import begin_run, resume_run
from annotated.engine.tensors import write_tensors
from annotated.engine.trainer import Trainer

__all__ = ["train_recipe"]


# E10-runner.md: From the command to the optimiser's step
def train_recipe(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    device: str | None = None,
    shard: bool = False,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Train a recipe into a run folder; returns the run's summary. notes
    are lines to print once it is known that training begins.

    On SIGTERM or SIGINT it writes a checkpoint and raises Stopped. At the
    end, model.safetensors is the mean of the last keep checkpoints (§6.1),
    or the last one alone if its validation nll is lower; best.safetensors
    has the weights of the lowest validation nll during training.
    Raises DataError, RunError, TrainingError or ValueError.
    """
    if shard and world_size() == 1:
        raise RunError("shard needs several processes: use torchrun")
    device = training_device(recipe, device)
    if recipe.training.compile:
        precision = recipe.training.precision
        check_compiler(recipe.config(), precision, device)
    with _alone(folder, resume):
        return _trained(recipe, folder, resume, device, shard, notes)


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
    recipe: Recipe,
    folder: Path,
    resume: bool,
    device: str,
    shard: bool,
    notes: Sequence[str],
) -> dict[str, Any]:
    """train_recipe, in a folder of which this run holds the lock."""
    run, corpus, sets = rank_zero_first(
        lambda: (
            resume_run(recipe, folder, device)
            if resume or rank() > 0
            else begin_run(recipe, folder, device)
        )
    )
    model = run.model.to(device)
    training = with_micro_tokens(run.recipe, device, shard).training
    trainer = Trainer(model, corpus, training, shard)
    if trainer.padded:
        say(f"on padded batches, which takes longer: {trainer.padded}")
    if resume:
        expected = trainer.rehearse()
        rank_zero_first(lambda: _take_up(trainer, folder, expected))
        trainer.check_same()
        _check_plan(trainer, folder)
        rank_zero_only(lambda: _note_changes(run, folder))
    count = sum(p.numel() for p in model.parameters())
    several = f" in {world_size()} processes" if world_size() > 1 else ""
    say(
        f"{len(corpus):,} pairs, {len(run.source):,} and "
        f"{len(run.target):,} tokens, {count:,} parameters, on "
        f"{device}{several}"
    )
    for line in notes:
        say(line)
    with Log(folder, trainer) as log, _enough_memory(trainer):
        if trainer.step == 0 and run.first:  # what it begins with
            log.validation(0, _validated(trainer, sets))
        _train(trainer, sets, folder, log)
    return _finish(trainer, sets, folder)


_Sets = dict[str, Corpus]  # what to validate on: see begin_run


def _validated(trainer: Trainer, sets: _Sets) -> dict[str, Any]:
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
    if run.differs(folder):
        with writing("recipe.json"):
            run.write_recipe(folder)


# E10-runner.md: Micro-batches that fit
@contextmanager
def _enough_memory(trainer: Trainer) -> Iterator[None]:
    """RunError, naming what would fit, where there is not."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        at = f"out of memory at step {trainer.step + 1}"
        raise RunError(f"{at}: {_advice(trainer)}") from error


def _advice(trainer: Trainer) -> str:
    """The numbers that fit, by what a token keeps, and are at most half of
    those that did not.
    """
    config, device = trainer.config, str(trainer.device)
    share = max(1, config.batch_tokens // world_size())
    half = max(1, min(share, config.micro_tokens or share) // 2)
    fits = tokens_that_fit(trainer.model.config, config, device)
    few = min(half, int(fits)) if fits >= 1 else half
    advice = "" if fits >= 1 else "the model alone nearly fills it: "
    return (
        f"{advice}try --micro-tokens {few}, with which the gradient stays "
        f"the same, or steps of --batch-tokens {few * world_size()}"
    )


# E10-runner.md: The loop
def _train(trainer: Trainer, sets: _Sets, folder: Path, log: Log) -> None:
    """Run all steps, with validations and checkpoints, and write a final
    checkpoint. Raises Stopped.
    """
    config, every = trainer.config, trainer.config.save_every

    def validate() -> None:
        """Log the scores of this step, unless they are there."""
        if not all_gather(trainer.step in log.validated)[0]:
            log.validation(trainer.step, _validated(trainer, sets))

    if trainer.step and trainer.step % every == 0:
        validate()  # the signal that stopped it would not wait for this
    # in case the run was killed before it could
    rank_zero_only(lambda: _keep_best(trainer.step, folder))
    saved, seconds = trainer.step, trainer.seconds
    minutes = config.save_minutes or math.inf
    with _stop_signals(trainer) as seen, _collector_frozen():
        for progress in trainer.steps():
            log.step(progress)
            alone = world_size() == 1
            stopping = trainer.stop if alone else trainer.stopping
            due = trainer.step % every == 0
            late = trainer.seconds - seconds >= 60 * minutes
            if due and not stopping:
                log.validation(trainer.step, _validated(trainer, sets))
            if due or late or stopping:
                log.look()
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


@contextmanager
def _collector_frozen() -> Iterator[None]:
    """Let Python's collector pass over what exists now."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


_END = "model.safetensors", "summary.json"  # of a run that has finished


def _save(trainer: Trainer, folder: Path) -> None:
    """Write a checkpoint; RunError, with nothing lost, if that fails."""
    with writing(f"the checkpoint of step {trainer.step}"):
        trainer.save(folder / "checkpoints")

    def look_after() -> None:
        _set_end_aside(folder)
        _keep_best(trainer.step, folder)

    rank_zero_only(look_after)


def _set_end_aside(folder: Path) -> None:
    """Rename model, summary and scores of a finished run that goes on:
    its newest checkpoint is ahead of them now.
    """
    if not any((folder / name).exists() for name in _END):
        return
    # weights first, summary last: after a kill, the next save goes on
    for name in (_END[0], SCORES, _END[1]):
        path = folder / name
        if path.exists():
            with writing(name):
                move(path, folder / f"discarded-{name}")
    say(
        "this run had finished before: the model that it had then is set "
        f"aside as discarded-{_END[0]}"
    )


def _best_step(folder: Path) -> int | None:
    """The step of a run's lowest validation nll; None if there is none."""
    nll = validations(folder)
    return min(nll, key=nll.__getitem__, default=None)


def _keep_best(step: int, folder: Path) -> None:
    """Copy this step's weights to best.safetensors if it is the best."""
    if _best_step(folder) == step:
        best = folder / "best.safetensors"
        with writing(best.name), replacing(best) as fresh:
            shutil.copyfile(_weights(step, folder), fresh)


def _weights(step: int, folder: Path) -> Path:
    """The weights of a checkpoint, or those that the run began with."""
    saved = folder / "checkpoints" / f"{step:08d}" / "model.safetensors"
    return saved if step else folder / FIRST


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


# E10-runner.md: Resuming
def _take_up(
    trainer: Trainer, folder: Path, expected: dict[str, Tensor]
) -> None:
    """Load the newest intact checkpoint, and print its step."""
    newest_first = checkpoints(folder / "checkpoints")[::-1]
    for checkpoint in newest_first:
        try:
            restore(trainer, checkpoint, expected)
        except DamagedError as error:
            damaged = checkpoint.with_name(f"damaged-{checkpoint.name}")
            shutil.rmtree(damaged, ignore_errors=True)
            move(checkpoint, damaged)
            print(f"{error}: set aside as {damaged.name}", file=sys.stderr)
            continue
        say(f"resuming at step {trainer.step}")
        if names := ", ".join(trainer.changed):
            say(
                f"not as before: {names}. From here on the last bits may "
                "differ from those of the run that was never stopped"
            )
        if rank() == 0:
            _discard_later(trainer.step, folder)
        return
    if newest_first or _had_checkpoints(folder, trainer.config.save_every):
        raise RunError(
            f"{folder} has been trained, but has no intact checkpoint to "
            "resume from, and is left as it is: put its checkpoints back, "
            "use it as it is, or train anew into another --out"
        )
    say("no checkpoint yet: starting at step 0")


def _discard_later(step: int, folder: Path) -> None:
    """Let best.safetensors be of this step or one before it."""
    best = folder / "best.safetensors"
    if not best.exists() or (later := _step_of(best)) <= step:
        return
    kept = best.with_name(f"discarded-{best.name}")
    nll = {s: x for s, x in validations(folder).items() if s <= step}
    with writing(best.name):
        with replacing(kept) as fresh:
            shutil.copyfile(best, fresh)
        before = _weights(min(nll, key=nll.__getitem__, default=0), folder)
        if before.exists():
            with replacing(best) as fresh:
                shutil.copyfile(before, fresh)
        else:
            best.unlink()
    say(f"the best weights are of step {later}: set aside as {kept.name}")


def _step_of(path: Path) -> int:
    """The step that a checkpoint's weights, or a copy of them, are of."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            return int((file.metadata() or {}).get("step", 0))
    except safetensors.SafetensorError as error:
        raise RunError(f"{path} cannot be read: {error}") from None


def _had_checkpoints(folder: Path, save_every: int) -> bool:
    """Whether a run folder without checkpoints shows signs of any."""
    saved = folder / "checkpoints"
    names = [*_END]
    best, first = folder / "best.safetensors", folder / FIRST
    begun = best.exists() and first.exists()  # from another's weights
    if not (begun and filecmp.cmp(best, first, shallow=False)):
        names.append(best.name)
    steps = [entry["step"] for entry in read_metrics(folder)]
    return (
        any((folder / name).exists() for name in names)
        or any(saved.glob("damaged-*"))
        or any(folder.glob("discarded-*"))
        or max(steps, default=0) > save_every
        or bool(steps and not saved.is_dir())
    )


# E10-runner.md: The end of a run
def _finish(trainer: Trainer, sets: _Sets, folder: Path) -> dict[str, Any]:
    """Choose the last weights or the mean of the last checkpoints; write
    the model and the summary.
    """
    config = trainer.config
    scores, averaged, weights = _chosen(trainer, sets["valid"], folder)
    part = trainer.batch_index / len(trainer.plan(trainer.epoch))
    summary: dict[str, Any] = {
        "steps": trainer.step,
        "epochs": round(trainer.epoch + part, 2),
        "tokens": trainer.tokens,
        "seconds": round(trainer.seconds, 1),
        "processes": world_size(),
        "precision": config.precision,
        "parameters": sum(w.numel() for w in weights.values()),
        "averaged": averaged,  # 1: only the last
        "best": _best_step(folder),
        "valid": scores,
    }
    if trainer.scaling:
        summary["overflows"] = trainer.scaling.overflows
    lines = read_metrics(folder)
    if "valid" in lines[0] and lines[0]["step"] == 0:  # it went on
        _put(trainer, weights)
        summary |= _validated(trainer, sets)
        summary["before"] = {  # old_data may have been named later
            name: lines[0][name] for name in sets if name in lines[0]
        }
        say(_compared(summary))
    if warnings := [line["warning"] for line in lines if "warning" in line]:
        summary["warnings"] = warnings
    if cut := trainer.planned.max_steps - trainer.step:
        summary["not_run"] = cut
    rank_zero_only(lambda: _write_model(weights, summary, folder))
    if cut:
        say(_shortened(trainer, cut))
    return summary


def _chosen(
    trainer: Trainer, valid: Corpus, folder: Path
) -> tuple[dict[str, float], int, dict[str, Tensor]]:
    """The scores of the better weights, the number of checkpoints that
    they are the mean of, and the weights.
    """
    config, saved = trainer.config, folder / "checkpoints"
    final = saved / f"{trainer.step:08d}"
    regular = checkpoints(saved, config.save_every)
    last = [*(p for p in regular if p != final), final][-config.keep :]
    choice = []
    for count in sorted({len(last), 1}, reverse=True):
        files = [p / "model.safetensors" for p in last[-count:]]
        weights = average_weights(files)
        _put(trainer, weights)
        choice.append((trainer.validate(valid), count, weights))
    scores, averaged, weights = min(choice, key=_nll)
    if averaged < len(last):
        say(
            f"the last checkpoint is better than the mean of {len(last)}: "
            "using it as the model"
        )
    return scores, averaged, weights


def _nll(chosen: tuple[dict[str, float], Any, Any]) -> float:
    nll = chosen[0]["nll"]
    return math.inf if math.isnan(nll) else nll


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
    with writing("the model"):
        with replacing(folder / "model.safetensors") as fresh:
            write_tensors(weights, fresh)
        write_json(folder / "summary.json", summary)
