"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from annotated.batches import Corpus
from annotated.engine.distributed import rank
from annotated.engine.errors import RunError
from annotated.engine.files import write_text
from annotated.engine.runs import read_metrics, validations, writing
from annotated.engine.trainer import Trainer
from annotated.training import Progress

__all__ = ["say", "Log"]


# E10-runner.md: The log
def say(line: str) -> None:
    """Print a line above the progress bar, in process 0 only."""
    if rank() == 0:
        tqdm.write(line, file=sys.stderr)


def _board(folder: Path, step: int) -> Any:
    """What writes TensorBoard's events from a step on; None without it."""
    if rank() or importlib.util.find_spec("tensorboard") is None:
        return None
    module = importlib.import_module("torch.utils.tensorboard")
    path, after = str(folder / "tensorboard"), step + 1 if step else None
    return module.SummaryWriter(path, purge_step=after, flush_secs=20)


def _scalars(entry: dict[str, Any], start: str = "") -> dict[str, float]:
    """The numbers of a line of the log: {"valid/nll": …}."""
    scalars: dict[str, float] = {}
    for name, value in entry.items():
        if isinstance(value, dict):
            scalars |= _scalars(value, f"{start}{name}/")
        elif isinstance(value, (int, float)) and name != "step":
            scalars[start + name] = value
    return scalars


class Log:
    """Writes metrics.jsonl, and shows a progress bar, or plain lines if
    not on a terminal; does nothing outside process 0.
    """

    def __init__(self, folder: Path, trainer: Trainer):
        path, self.trainer = folder / "metrics.jsonl", trainer
        validated: list[int] = []
        if rank() == 0:
            # a resumed run discards what came after its checkpoint
            entries = read_metrics(folder)
            before = [e for e in entries if 0 < trainer.step >= e["step"]]
            text = "".join(f"{json.dumps(e)}\n" for e in before)
            with writing(path.name):
                write_text(path, text)
            validated = [e["step"] for e in before if "valid" in e]
            nll = validations(folder).values()
            self.divergence = _DivergenceCheck(trainer, nll)
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
        self.unread: list[Progress] = []  # not checked for divergence
        self.noted = 0  # the last step whose line is written
        self.validated = {*validated}  # steps, also where the folder moves
        self.board = _board(folder, trainer.step)

    def close(self) -> None:
        """RunError if what is left to write cannot be written."""
        self.bar.close()
        with writing("metrics.jsonl"), ExitStack() as stack:
            if self.board is not None:
                stack.callback(self.board.close)
            stack.callback(self.file.close)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except RunError:
            if kind is None:  # else an error has said already what is wrong
                raise

    def step(self, progress: Progress) -> None:
        """Log a step; the file gets first, tenths, last."""
        self.recent = [*self.recent[-9:], progress]
        self.unread.append(progress)
        ends = 1, self.trainer.config.max_steps
        if progress.step % 10 == 0 or progress.step in ends:
            self.note()
            self.bar.set_postfix_str(self._pace(), refresh=False)
        if self.last != (last := self.trainer.config.max_steps):
            self.last = self.bar.total = last
            say(f"the minutes allow {last} steps: cooling down until then")
        self.bar.update()
        if self.bar.disable and time.monotonic() - self.said > 30:
            self.said = time.monotonic()
            say(f"step {progress.step}, {self._pace()}")

    def note(self) -> None:
        """Write the latest step's line, unless that has been done."""
        self.look(self.unread[:-1])
        for progress in self.recent[-1:]:
            if progress.step > self.noted:
                self.noted, scaling = progress.step, self.trainer.scaling
                more = {} if scaling is None else vars(scaling)
                self._write(dataclasses.asdict(progress) | more)
        self.look()

    def look(self, steps: Sequence[Progress] | None = None) -> None:
        """Check for divergence what has not been checked: the numbers of
        these steps, unless given all, are waited for.
        """
        steps = self.unread if steps is None else steps
        self.unread = self.unread[len(steps) :]
        for progress in steps if rank() == 0 else ():
            self._warn(progress.step, self.divergence.training(progress))

    def validation(self, step: int, scores: dict[str, Any]) -> None:
        """Log the scores of a validation, by set."""
        self.look()
        self._write({"step": step} | scores)
        self.validated.add(step)
        what = "checkpoint" if step else "before"
        line = f"step {step}: {what}, validation perplexity "
        line += _short(scores["valid"]["perplexity"])
        if "old" in scores:
            old = _short(scores["old"]["perplexity"])
            line += f", on the old data {old}"
        say(line)
        if rank() == 0:
            nll = scores["valid"]["nll"]
            self._warn(step, self.divergence.validation(step, nll))

    def _warn(self, step: int, warning: str | None) -> None:
        if warning is not None:
            self._write({"step": step, "warning": warning})
            say(warning)

    def _write(self, entry: dict[str, Any]) -> None:
        with writing("metrics.jsonl"):
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


def _short(perplexity: float) -> str:
    """Two digits after the point, or a power of ten if it is huge."""
    return f"{perplexity:.2f}" if perplexity < 1e6 else f"{perplexity:.2g}"


# E10-runner.md: A run that only counts tokens
def _token_entropy(corpus: Corpus) -> float:
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


_BOUND = 0.9  # of the entropy: a run that learns gets below it
_WINDOW = 100  # steps to average over, and to wait after warm-up
_FALLING = 0.98  # of the best validation nll: below it, a run has improved


class _DivergenceCheck:
    """Whether a run has learned more than the tokens' frequencies; nll is
    that of its validations so far.
    """

    def __init__(self, trainer: Trainer, nll: Iterable[float] = ()):
        config, self.best = trainer.config, min(nll, default=math.inf)
        self.entropy = _token_entropy(trainer.corpus)
        self.due = max(config.warmup, trainer.step) + _WINDOW
        self.recent: deque[float] = deque(maxlen=_WINDOW)
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
        if mean < _BOUND * self.entropy:
            self.since = progress.step + 1
        where = f"in training since step {self.since}"
        return self._told(progress.step, mean, where)

    def validation(self, step: int, nll: float) -> str | None:
        """The warning after a validation, if any."""
        falling = nll < _FALLING * self.best
        self.best = min(self.best, nll)
        if falling:
            return None
        return self._told(step, self.best, "in the best validation so far")

    def _told(self, step: int, nll: float, where: str) -> str | None:
        if self.said or step < self.due or nll < _BOUND * self.entropy:
            return None
        self.said = True
        return (
            f"step {step}: {nll:.2f} nats per token {where}; {self.advice}"
        )
