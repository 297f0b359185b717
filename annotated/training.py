"""Exported from the book; edit the chapter, then run `make export`."""

import math
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from annotated.batches import Batch, Corpus, Sentences
from annotated.engine.errors import TrainingError, check_fields
from annotated.engine.machine import evaluating
from annotated.engine.optimizers import (
    check_groups,
    load_named_state,
    named_state,
)
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
    "copy_corpus", "TrainingConfig", "Progress", "Trainer", "batch_loss",
    "seed_dropout", "greedy_accuracy", "validate", "scores", "fingerprint",
]  # fmt: skip


# 14-training.md: The loop
def copy_corpus(
    count: int, vocab: int = 20, length: int = 10, seed: int = 0,
    backwards: bool = False,
) -> Corpus:  # fmt: skip
    """Pairs of a random sequence of 1 to length symbols and its copy, or
    its reverse if backwards. Symbols are ids from 4 to vocab - 1.
    """
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, length + 1, count)
    src = [draw.integers(len(SPECIALS), vocab, n) for n in lengths]
    tgt = [s[::-1] for s in src] if backwards else src
    return Corpus(Sentences.of(src), Sentences.of(tgt))


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How to train; by default as the paper's base model (§5)."""

    batch_tokens: int = 25_000  # tokens in a batch, on each side (§5.1)
    max_steps: int = 100_000  # steps at which training ends (§5.2)
    warmup: int = 4000  # steps of a rising rate; fewer: a higher peak
    rate: float = 1.0  # factor of the learning rate, at every step
    cooldown: int = 0  # last steps, falling to rate 0; the paper has none
    label_smoothing: float = 0.1  # probability given to all words evenly
    clip: float | None = None  # bound of the gradient; the paper has none
    seed: int = 0  # of first weights, order of batches, dropout

    def __post_init__(self) -> None:
        check_fields(
            self, zero=("cooldown", "seed"), positive=("rate", "clip"),
            below=1.0,
        )  # fmt: skip


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


class Trainer:
    """Trains a model on a corpus, one step at a time (§5).

    On a CPU the result is a function of (model, corpus, config) alone.
    """

    scheduled = ("lr",)  # the optimizer's settings that steps change

    def __init__(
        self, model: Transformer, corpus: Corpus, config: TrainingConfig
    ):
        if not len(corpus):
            raise ValueError("the training corpus is empty")
        self.model, self.corpus, self.config = model, corpus, config
        self.optimizer: Optimizer = make_optimizer(model.parameters())
        self.device = next(model.parameters()).device
        self.step = self.tokens = 0  # so far
        self.seconds = 0.0
        self.epoch = self.batch_index = 0  # the next batch, and its epoch

    def plan(self, epoch: int) -> list[NDArray]:
        """The batches of an epoch (chapter 11), in their order."""
        config = self.config
        return self.corpus.plan(config.batch_tokens, config.seed, epoch)

    def rate(self, step: int) -> float:
        """The learning rate of a step: equation 3, and the cool-down."""
        config, d_model = self.config, self.model.config.d_model
        rate = learning_rate(step, d_model, config.warmup, config.rate)
        last = config.max_steps
        return rate * cooldown_factor(step, last, config.cooldown)

    def steps(self) -> Iterator[Progress]:
        """Train until max_steps, yielding after each step."""
        plan = self.plan(self.epoch)
        while self.step < self.config.max_steps:
            started, epoch = time.perf_counter(), self.epoch
            batch = self.corpus.batch(plan[self.batch_index])
            loss, nll, norm = self.learn(batch)
            self.tokens += batch.tokens
            self.batch_index += 1
            if self.batch_index == len(plan):  # an epoch in another order
                self.epoch, self.batch_index = epoch + 1, 0
                plan = self.plan(self.epoch)
            self.seconds += time.perf_counter() - started
            yield Progress(
                step=self.step, epoch=epoch, loss=loss, nll=nll,
                rate=self.rate(self.step), gradient_norm=norm,
                tokens=self.tokens, seconds=self.seconds,
            )  # fmt: skip

    def learn(self, batch: Batch) -> tuple[float, float, float]:
        """One update. Returns loss and nll per target token, and the norm
        of the gradient. TrainingError, before any weight has changed, if
        one of the three is not finite.
        """
        seed_dropout(self.config.seed, self.step)
        self.model.train()
        self.optimizer.zero_grad()
        means = self.gradient(batch)
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.config.clip or math.inf
        )
        # three numbers in one message: here the step waits for the device
        loss, nll, size = torch.stack([*means, norm]).tolist()
        if not math.isfinite(loss + nll + size):
            raise TrainingError(self.trouble(loss, nll, size))
        self.step += 1
        set_learning_rate(self.optimizer, self.rate(self.step))
        self.optimizer.step()
        return loss, nll, size

    def gradient(self, batch: Batch) -> Tensor:
        """Compute .grad of all parameters; loss and nll per token."""
        smoothing = self.config.label_smoothing
        tokens = batch.tokens  # counted before they are on the device
        batch = batch.to(self.device)
        loss, nll = batch_loss(self.model, batch, smoothing)
        (loss / tokens).backward()
        return torch.stack([loss.detach(), nll.detach()]) / tokens

    def trouble(self, loss: float, nll: float, norm: float) -> str:
        """Which step, which numbers, which pairs, and what to try."""
        pairs = sorted(self.plan(self.epoch)[self.batch_index].tolist())
        return (
            f"step {self.step + 1} has loss {loss} and gradient norm "
            f"{norm} (epoch {self.epoch}, batch {self.batch_index}: pairs "
            f"{pairs[:8]} …): lower rate, raise warmup, or look at these "
            "pairs"
        )

    # 15-checkpoints.md: What the next step depends on
    def parameters(self) -> dict[str, nn.Parameter]:
        """By name; a shared one once."""
        return dict(self.model.named_parameters())

    def weights(self) -> dict[str, Tensor]:
        """The numbers of every parameter."""
        return {n: w.detach() for n, w in self.parameters().items()}

    def moments(self) -> dict[str, Tensor]:
        """All tensors that the optimizer keeps, as NAME.KEY."""
        tensors, _ = named_state(self.parameters(), self.optimizer)
        return tensors

    def state(self) -> dict[str, Any]:
        """What a later run needs besides these tensors."""
        counters = {name: getattr(self, name) for name in _COUNTERS}
        _, rest = named_state(self.parameters(), self.optimizer)
        return counters | {"order": self.order(), "optimizer": rest}

    def load(
        self,
        weights: dict[str, Tensor],
        moments: dict[str, Tensor],
        state: dict[str, Any],
    ) -> None:
        """Continue from what those three methods gave. TrainingError, with
        nothing changed, as in check.
        """
        self.check(state)
        parameters = self.parameters()
        load_named_state(
            parameters, self.optimizer, moments, state["optimizer"],
            self.scheduled,
        )  # fmt: skip
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(weights[name])
        for name in _COUNTERS:
            setattr(self, name, state[name])

    def check(self, state: dict[str, Any]) -> None:
        """TrainingError if the batches or the optimizer would be others."""
        if state["order"] != self.order():
            raise TrainingError(
                f"the checkpoint was made with {state['order']}, this run "
                f"has {self.order()}: the batches would not be the same"
            )
        _, ours = named_state(self.parameters(), self.optimizer)
        check_groups(state.get("optimizer", {}), ours, self.scheduled)

    def order(self) -> dict[str, int]:
        """What the order of the batches depends on."""
        return {
            "pairs": len(self.corpus),
            "data": fingerprint(self.corpus),
            "batch_tokens": self.config.batch_tokens,
            "seed": self.config.seed,
        }


def batch_loss(
    model: Transformer, batch: Batch, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Loss and negative log-likelihood, summed over the target tokens."""
    logits = model(batch.src, batch.tgt)
    return smoothed_loss(logits, batch.labels, smoothing)


def seed_dropout(seed: int, *step: int) -> None:
    """Dropout belongs to the step, not to what was drawn before."""
    draw = np.random.SeedSequence([seed, *step])
    torch.manual_seed(int(draw.generate_state(1)[0]))


# 14-training.md: The copy task
def greedy_accuracy(
    model: Transformer, corpus: Corpus, batch_tokens: int = 5000
) -> tuple[float, float]:
    """Token accuracy under teacher forcing, and the share of sentences
    without an error, which is greedy search's exact match.
    """
    device = next(model.parameters()).device
    tokens = right = exact = 0
    with evaluating(model):
        for batch in corpus.batches(batch_tokens):
            batch = batch.to(device)
            real = batch.labels != PAD
            hit = model(batch.src, batch.tgt).argmax(-1) == batch.labels
            tokens += int(real.sum())
            right += int((hit & real).sum())
            exact += int((hit | ~real).all(dim=1).sum())
    return right / tokens, exact / len(corpus)


# 14-training.md: Looking without touching
def validate(
    model: Transformer, corpus: Corpus, config: TrainingConfig
) -> dict[str, float]:
    """loss, nll (nats per target token) and perplexity on a corpus.
    ValueError if it is empty.
    """
    if not len(corpus):
        raise ValueError("the validation corpus is empty")
    device = next(model.parameters()).device
    sums, tokens = torch.zeros(2, dtype=torch.float64), 0
    with evaluating(model):
        for batch in corpus.batches(config.batch_tokens):
            batch = batch.to(device)
            both = batch_loss(model, batch, config.label_smoothing)
            sums += torch.stack(both).cpu().double()
            tokens += batch.tokens
    loss, nll = (sums / tokens).tolist()
    return scores(loss, nll)


def scores(loss: float, nll: float) -> dict[str, float]:
    """With the perplexity, the exponential of nll."""
    return {"loss": loss, "nll": nll, "perplexity": math.exp(min(nll, 700))}


# 15-checkpoints.md: What the next step depends on
_COUNTERS = ("step", "epoch", "batch_index", "tokens", "seconds")


def fingerprint(corpus: Corpus) -> int:
    """A checksum of a corpus; of a large one, of a few thousand samples
    at regular distances.
    """
    crc = 0
    for side in (corpus.src, corpus.tgt):
        for row in (side.starts, side.ids):
            for first in range(0, len(row), max(4096, len(row) // 4096)):
                part = np.ascontiguousarray(row[first : first + 4096])
                crc = zlib.crc32(part.tobytes(), crc)
    return crc
