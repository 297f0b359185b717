"""annotated.training.

Exported from the book; edit the chapter, then run `make export`.

- 14-training.md: Training, and the copy task
"""

import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from annotated.batches import Batch, Corpus, Sentences
from annotated.loss import smoothed_loss
from annotated.model import Transformer
from annotated.schedule import (
    cooldown_factor,
    learning_rate,
    make_optimizer,
    set_learning_rate,
)
from annotated.tokens import PAD, SPECIALS

__all__ = [
    "TrainingConfig",
    "batch_loss",
    "Progress",
    "TrainingError",
    "Trainer",
    "copy_corpus",
    "evaluating",
    "validate",
    "save_weights",
    "load_weights",
    "save_checkpoint",
    "checkpoints",
    "load_checkpoint",
    "greedy_accuracy",
]


# 14-training.md: The loss of a batch, the fast way
@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How to train; the defaults are the paper's base model (§5).

    batch_tokens counts each side; rate multiplies equation 3, and over
    the cooldown steps before max_steps it falls to 0 in a line; a run
    ends at max_steps or after max_minutes of training, whichever comes
    first; clip bounds the gradient's norm; every save_every steps a
    checkpoint is written and the last keep are kept. ValueError names a
    wrong field.
    """

    batch_tokens: int = 25_000
    max_steps: int = 100_000
    max_minutes: float | None = None
    warmup: int = 4000
    rate: float = 1.0
    cooldown: int = 0
    label_smoothing: float = 0.1
    clip: float | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0
    save_every: int = 1000
    keep: int = 5

    def __post_init__(self) -> None:
        least = dict.fromkeys(
            ("batch_tokens", "max_steps", "warmup", "save_every", "keep"), 1
        )
        for name, low in (least | {"seed": 0, "cooldown": 0}).items():
            value = getattr(self, name)
            if type(value) is not int or value < low:
                raise ValueError(
                    f"{name} must be a whole number, at least {low}, "
                    f"not {value!r}"
                )
        for name in ("max_minutes", "rate", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value!r}")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(
                "label_smoothing must lie in [0, 1), "
                f"not {self.label_smoothing!r}"
            )
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(
                "precision must be float32 or bfloat16, "
                f"not {self.precision!r}"
            )


def batch_loss(
    model: Transformer, batch: Batch, config: TrainingConfig
) -> tuple[Tensor, Tensor, int]:
    """The loss and the negative log-likelihood of a batch, each summed
    over its target tokens, and how many those are.
    """
    half = config.precision == "bfloat16"
    device = batch.src.device.type
    with torch.autocast(device, torch.bfloat16, enabled=half):
        x, packing = model.hidden(batch.src, batch.tgt)
    if half:
        x = x.bfloat16()
    loss, nll = smoothed_loss(
        x,
        model.embeddings.output,
        packing.pack(batch.labels),
        config.label_smoothing,
    )
    return loss, nll, len(x)


# 14-training.md: A loop that survives
@dataclass(frozen=True)
class Progress:
    """What one step did. loss and nll are nats per target token."""

    step: int
    epoch: int
    loss: float
    nll: float
    rate: float
    gradient_norm: float  # before it was clipped
    tokens: int  # target tokens so far
    seconds: float  # of training so far


class TrainingError(RuntimeError):
    """Training cannot go on; the message says where it stopped, and why."""


class Trainer:
    """Trains a model on a corpus, a step at a time (§5).

    What happens is a function of (model, corpus, config) alone, and
    state / load_state carry all of it: a run that is stopped and taken up
    again ends with the weights of one that never stopped.
    """

    def __init__(
        self, model: Transformer, corpus: Corpus, config: TrainingConfig
    ):
        if not len(corpus):
            raise ValueError("the training corpus is empty")
        self.model, self.corpus, self.config = model, corpus, config
        self.device = next(model.parameters()).device
        self.optimizer = make_optimizer(model.parameters())
        self.step = self.epoch = self.batch = self.tokens = 0
        self.seconds = 0.0

    def steps(self) -> Iterator[Progress]:
        """Train, yielding after each step, until config says stop.

        Raises TrainingError where a step gives no finite gradient; the
        weights are then still those of the step before.
        """
        plan = self._plan()
        while not self._done():
            started = time.perf_counter()
            epoch, tokens = self.epoch, self.tokens
            loss, nll, norm = self._learn(plan[self.batch])
            self.step += 1
            self.batch += 1
            if self.batch == len(plan):
                self.epoch, self.batch = self.epoch + 1, 0
                plan = self._plan()
            self.seconds += time.perf_counter() - started
            tokens = self.tokens - tokens
            yield Progress(
                self.step,
                epoch,
                loss / tokens,
                nll / tokens,
                self._rate(self.step),
                norm,
                self.tokens,
                self.seconds,
            )

    def _plan(self) -> list[NDArray]:
        """The batches of this epoch, in their order."""
        config = self.config
        return self.corpus.plan(
            config.batch_tokens, config.seed, self.epoch
        )

    def _done(self) -> bool:
        minutes = self.config.max_minutes
        late = minutes is not None and self.seconds >= 60 * minutes
        return late or self.step >= self.config.max_steps

    def _rate(self, step: int) -> float:
        config = self.config
        d_model = self.model.config.d_model
        return learning_rate(
            step, d_model, config.warmup, config.rate
        ) * cooldown_factor(step, config.max_steps, config.cooldown)

    def _learn(self, pairs: NDArray) -> tuple[float, float, float]:
        """One update; the batch's loss and nll, summed, and the norm of
        the gradient.
        """
        # dropout's random numbers belong to the step, not to its past
        draw = np.random.SeedSequence([self.config.seed, self.step])
        torch.manual_seed(int(draw.generate_state(1)[0]))
        self.model.train()
        self.optimizer.zero_grad()
        batch = self.corpus.batch(pairs).to(self.device)
        loss, nll, tokens = batch_loss(self.model, batch, self.config)
        (loss / tokens).backward()
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.config.clip or math.inf
        )
        # one wait for the device, not three
        numbers = torch.stack([loss.detach(), nll, norm]).tolist()
        if not all(map(math.isfinite, numbers)):
            raise TrainingError(
                self._trouble(pairs, numbers[0] / tokens, numbers[2])
            )
        set_learning_rate(self.optimizer, self._rate(self.step + 1))
        self.optimizer.step()
        self.tokens += tokens
        return numbers[0], numbers[1], numbers[2]

    def _trouble(self, pairs: NDArray, loss: float, norm: float) -> str:
        return (
            f"step {self.step + 1} has loss {loss} and gradient "
            f"norm {norm} (epoch {self.epoch}, batch {self.batch}: pairs "
            f"{sorted(pairs.tolist())[:8]} …): lower rate, raise warmup, "
            "or look at these pairs"
        )

    def state(self) -> dict[str, Any]:
        """All that a later run needs, besides the model's weights."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "epoch": self.epoch,
            "batch": self.batch,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "order": self._order(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up what state gave. TrainingError where the batches would
        be others.
        """
        if state["order"] != self._order():
            raise TrainingError(
                f"the checkpoint was made with {state['order']}, this run "
                f"has {self._order()}: the batches would not be the same"
            )
        self.optimizer.load_state_dict(state["optimizer"])
        for name in ("step", "epoch", "batch", "tokens", "seconds"):
            setattr(self, name, state[name])

    def _order(self) -> dict[str, int]:
        """What the order of the batches depends on."""
        return {
            "pairs": len(self.corpus),
            "tokens": int(self.corpus.tgt.lengths.sum()),
            "batch_tokens": self.config.batch_tokens,
            "seed": self.config.seed,
        }


def copy_corpus(
    count: int,
    vocab: int = 20,
    length: int = 10,
    seed: int = 0,
    backwards: bool = False,
) -> Corpus:
    """Random sequences of 1 to length symbols and the same again, or
    backwards. Symbols are ids from 4 on, below vocab.
    """
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, length + 1, count)
    src = [draw.integers(len(SPECIALS), vocab, n) for n in lengths]
    tgt = [s[::-1] for s in src] if backwards else src
    return Corpus(Sentences.of(src), Sentences.of(tgt))


# 14-training.md: Looking without touching
@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """No dropout and no gradients inside the with; after it, as before."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def validate(
    model: Transformer, corpus: Corpus, config: TrainingConfig
) -> dict[str, float]:
    """loss, nll (nats per target token) and perplexity on a corpus."""
    if not len(corpus):
        raise ValueError("the validation corpus is empty")
    device = next(model.parameters()).device
    sums, tokens = torch.zeros(2, dtype=torch.float64), 0
    with evaluating(model):
        for batch in corpus.batches(config.batch_tokens):
            loss, nll, count = batch_loss(model, batch.to(device), config)
            sums += torch.stack([loss, nll]).double().cpu()
            tokens += count
    loss, nll = (sums / tokens).tolist()
    return {"loss": loss, "nll": nll, "perplexity": math.exp(min(nll, 700))}


# 14-training.md: Checkpoints
def save_weights(model: Transformer, path: Path) -> None:
    """Write the parameters, a shared one once, as safetensors."""
    weights = {
        name: p.detach().cpu().contiguous()
        for name, p in model.named_parameters()
    }
    safetensors.torch.save_file(weights, path)


def load_weights(model: Transformer, path: Path) -> None:
    """Read what save_weights wrote. ValueError where it does not fit."""
    try:
        weights = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    own = dict(model.named_parameters())
    for name in sorted(own.keys() | weights.keys()):
        here = tuple(own[name].shape) if name in own else "absent"
        there = tuple(weights[name].shape) if name in weights else "absent"
        if here != there:
            raise ValueError(
                f"{path} does not fit the model: {name} is {there} in the "
                f"file, {here} in the model"
            )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])


def save_checkpoint(trainer: Trainer, folder: Path, keep: int) -> Path:
    """Write folder/STEP, whole or not at all, and drop all but keep."""
    place = folder / f"{trainer.step:08d}"
    for unfinished in folder.glob(".[0-9]*"):  # of a run that was killed
        shutil.rmtree(unfinished)
    fresh = folder / f".{place.name}"
    fresh.mkdir(parents=True)
    save_weights(trainer.model, fresh / "model.safetensors")
    torch.save(trainer.state(), fresh / "state.pt")
    for file in fresh.iterdir():
        with file.open("rb+") as written:
            os.fsync(written.fileno())
    if place.exists():
        _drop(place)
    fresh.rename(place)
    for old in checkpoints(folder)[:-keep]:
        if old != place:
            _drop(old)
    return place


def _drop(place: Path) -> None:
    """Delete a checkpoint; half of it is never left under its name."""
    hidden = place.with_name(f".{place.name}.old")
    place.rename(hidden)
    shutil.rmtree(hidden)


def checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints in folder, the oldest first."""
    return sorted(p for p in folder.glob("[0-9]" * 8) if p.is_dir())


def load_checkpoint(trainer: Trainer, place: Path) -> None:
    """Take up training at a checkpoint. ValueError where it is damaged;
    TrainingError where it belongs to another run.
    """
    try:
        state = torch.load(place / "state.pt", weights_only=True)
    except Exception as error:  # torch raises many kinds
        raise ValueError(
            f"{place / 'state.pt'} cannot be read: {error}"
        ) from None
    load_weights(trainer.model, place / "model.safetensors")
    trainer.load_state(state)


# 14-training.md: The copy task
def greedy_accuracy(
    model: Transformer, corpus: Corpus, batch_tokens: int = 5000
) -> tuple[float, float]:
    """The share of target tokens, EOS among them, that are the likeliest
    after the right ones before them; and the share of sentences where all
    are: those that greedy search would write without a mistake.
    """
    device = next(model.parameters()).device
    tokens = right = whole = 0
    with evaluating(model):
        for batch in corpus.batches(batch_tokens):
            batch = batch.to(device)
            real = batch.labels != PAD
            hit = model(batch.src, batch.tgt).argmax(-1) == batch.labels
            tokens += int(real.sum())
            right += int((hit & real).sum())
            whole += int((hit | ~real).all(dim=1).sum())
    return right / tokens, whole / len(corpus)
