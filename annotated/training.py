from __future__ import annotations
import json
import math
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
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
    learning_rate,
    make_optimizer,
    set_learning_rate,
)
from annotated.tokens import EOS, SPECIALS


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How to train; the defaults are the paper's base model (§5).

    batch_tokens counts each side; rate multiplies equation 3; a run ends
    at max_steps or after max_minutes of training, whichever comes first;
    clip bounds the gradient's norm; every save_every steps a checkpoint
    is written and the last keep are kept. ValueError names a wrong field.
    """

    batch_tokens: int = 25_000
    max_steps: int = 100_000
    max_minutes: float | None = None
    warmup: int = 4000
    rate: float = 1.0
    label_smoothing: float = 0.1
    clip: float | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0
    save_every: int = 1000
    keep: int = 5

    def __post_init__(self):
        for name in ("batch_tokens", "max_steps", "warmup", "save_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 1, not {getattr(self, name)!r}"
                )
        for name in ("max_minutes", "rate", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value!r}")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(
                f"label_smoothing must lie in [0, 1), not {self.label_smoothing!r}"
            )
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(
                f"precision must be float32 or bfloat16, not {self.precision!r}"
            )


@dataclass(frozen=True)
class Progress:
    """What one step did. loss and nll are nats per target token."""

    step: int
    epoch: int
    loss: float
    nll: float
    rate: float
    tokens: int  # target tokens so far
    seconds: float  # of training so far


class TrainingError(RuntimeError):
    """Training cannot go on; the message says where it stopped."""


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
        torch.manual_seed(config.seed)

    def steps(self) -> Iterator[Progress]:
        """Train, yielding after each step, until config says stop."""
        plan = self._plan()
        while not self._done():
            started = time.perf_counter()
            pairs = plan[self.batch]
            loss, nll = self._learn(self.corpus.batch(pairs).to(self.device))
            if not math.isfinite(loss):
                raise TrainingError(
                    f"the loss is {loss} at step {self.step + 1} (epoch "
                    f"{self.epoch}, batch {self.batch}, pairs "
                    f"{sorted(pairs.tolist())[:8]}…): lower rate, or raise warmup"
                )
            self.step += 1
            self.batch += 1
            epoch = self.epoch
            if self.batch == len(plan):
                self.epoch, self.batch = self.epoch + 1, 0
                plan = self._plan()
            self.seconds += time.perf_counter() - started
            yield Progress(
                self.step, epoch, loss, nll, self._rate(self.step),
                self.tokens, self.seconds,
            )

    def _plan(self) -> list[NDArray]:
        config = self.config
        return self.corpus.plan(config.batch_tokens, config.seed, self.epoch)

    def _done(self) -> bool:
        minutes = self.config.max_minutes
        late = minutes is not None and self.seconds >= 60 * minutes
        return late or self.step >= self.config.max_steps

    def _rate(self, step: int) -> float:
        config = self.config
        d_model = self.model.config.d_model
        return learning_rate(step, d_model, config.warmup, config.rate)

    def _learn(self, batch: Batch) -> tuple[float, float]:
        self.model.train()
        set_learning_rate(self.optimizer, self._rate(self.step + 1))
        loss, nll, tokens = batch_loss(self.model, batch, self.config)
        (loss / tokens).backward()
        if self.config.clip is not None:
            torch.nn.utils.clip_grad_norm_(
                self.model.parameters(), self.config.clip
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.tokens += tokens
        return loss.item() / tokens, nll.item() / tokens

    def state(self) -> dict[str, Any]:
        """All that a later run needs, besides the model's weights."""
        cuda = self.device.type == "cuda"
        return {
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "epoch": self.epoch,
            "batch": self.batch,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state() if cuda else None,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up what state gave."""
        self.optimizer.load_state_dict(state["optimizer"])
        for name in ("step", "epoch", "batch", "tokens", "seconds"):
            setattr(self, name, state[name])
        torch.set_rng_state(state["random"])
        if state["random_cuda"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_cuda"])


def batch_loss(
    model: Transformer, batch: Batch, config: TrainingConfig
) -> tuple[Tensor, Tensor, int]:
    """The loss and the negative log-likelihood of a batch, each summed
    over its target tokens, and how many those are.
    """
    half = config.precision == "bfloat16"
    with torch.autocast(batch.src.device.type, torch.bfloat16, enabled=half):
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


@torch.no_grad()
def validate(
    model: Transformer, corpus: Corpus, config: TrainingConfig
) -> dict[str, float]:
    """loss, nll (nats per target token) and perplexity on a corpus."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    sums, tokens = torch.zeros(2, dtype=torch.float64), 0
    for batch in corpus.batches(config.batch_tokens):
        loss, nll, count = batch_loss(model, batch.to(device), config)
        sums += torch.stack([loss, nll]).double().cpu()
        tokens += count
    model.train(training)
    loss, nll = (sums / max(tokens, 1)).tolist()
    return {"loss": loss, "nll": nll, "perplexity": math.exp(min(nll, 700))}


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
    fresh = folder / f".{place.name}.{os.getpid()}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    save_weights(trainer.model, fresh / "model.safetensors")
    torch.save(trainer.state(), fresh / "state.pt")
    for file in fresh.iterdir():
        with file.open("rb+") as written:
            os.fsync(written.fileno())
    shutil.rmtree(place, ignore_errors=True)
    fresh.rename(place)
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return place


def checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints in folder, the oldest first."""
    return sorted(p for p in folder.glob("[0-9]*") if p.is_dir())


def load_checkpoint(trainer: Trainer, place: Path) -> None:
    """Take up training at a checkpoint. ValueError where it is damaged."""
    load_weights(trainer.model, place / "model.safetensors")
    try:
        state = torch.load(place / "state.pt", weights_only=True)
    except Exception as error:  # torch raises many kinds
        raise ValueError(f"{place / 'state.pt'} cannot be read: {error}") from None
    trainer.load_state(state)


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
