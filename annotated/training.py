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
from torch import Tensor

from annotated.batches import Batch, Corpus, Sentences
from annotated.engine.errors import (
    TrainingError,
    UsageError,
    check_positive,
    check_whole,
)
from annotated.engine.machine import evaluating
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
    "TrainingConfig", "Progress", "Trainer", "batch_loss", "copy_corpus",
    "greedy_accuracy", "validate", "scores", "COUNTERS", "fingerprint",
]  # fmt: skip


# 14-training.md: The loop
@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How to train; by default as the paper's base model (§5)."""

    batch_tokens: int = 25_000  # tokens in a batch, on each side
    max_steps: int = 100_000  # steps at which training ends
    warmup: int = 4000  # steps in which the learning rate rises
    rate: float = 1.0  # factor of the learning rate
    cooldown: int = 0  # steps before max_steps in which the rate goes to 0
    label_smoothing: float = 0.1  # probability given to all words evenly
    clip: float | None = None  # bound of the gradient's norm
    seed: int = 0  # of first weights, order of batches, dropout

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "max_steps", "warmup"):
            check_whole(name, getattr(self, name), least=1)
        for name in ("cooldown", "seed"):
            check_whole(name, getattr(self, name), least=0)
        for name in ("rate", "clip"):
            check_positive(name, getattr(self, name))
        if not 0 <= self.label_smoothing < 1:
            wrong = f"not {self.label_smoothing!r}"
            raise UsageError(f"label_smoothing must lie in [0, 1), {wrong}")


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

    The result is a function of (model, corpus, config) alone.
    """

    def __init__(
        self, model: Transformer, corpus: Corpus, config: TrainingConfig
    ):
        if not len(corpus):
            raise ValueError("the training corpus is empty")
        self.model, self.corpus, self.config = model, corpus, config
        self.optimizer = make_optimizer(model.parameters())
        self.device = next(model.parameters()).device
        self.step = self.tokens = 0  # so far
        self.seconds = 0.0
        self.epoch = self.place = 0  # of the next batch

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

    def learn(self, batch: Batch) -> list[float]:
        """One update. Returns loss and nll per target token, and the norm
        of the gradient. TrainingError, before any weight has changed, if
        one of the three is not finite.
        """
        self.seed_dropout()
        self.model.train()
        self.optimizer.zero_grad()
        means = self.gradient(batch)
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.config.clip or math.inf
        )
        numbers = self.collect(means, norm)
        if not all(map(math.isfinite, numbers)):
            raise TrainingError(self.trouble(*numbers))
        self.step += 1
        set_learning_rate(self.optimizer, self.rate(self.step))
        self.optimizer.step()
        return numbers

    def gradient(self, batch: Batch) -> Tensor:
        """Compute .grad of all parameters; loss and nll per token."""
        smoothing = self.config.label_smoothing
        loss, nll = batch_loss(self.model, batch, smoothing)
        (loss / batch.tokens).backward()
        return torch.stack([loss.detach(), nll.detach()]) / batch.tokens

    def collect(self, means: Tensor, norm: Tensor) -> list[float]:
        """The numbers of a step, from the device."""
        return [*means.tolist(), norm.item()]

    def seed_dropout(self, *more: int) -> None:
        """Dropout belongs to the step, not to what was drawn before."""
        draw = np.random.SeedSequence([self.config.seed, self.step, *more])
        torch.manual_seed(int(draw.generate_state(1)[0]))

    def steps(self) -> Iterator[Progress]:
        """Train, yielding after each step, until config says stop."""
        batches = self.batches()
        while not self.done():
            started, epoch = time.perf_counter(), self.epoch
            batch, after = next(batches)
            loss, nll, norm = self.learn(batch)
            self.epoch, self.place = after
            self.tokens += batch.tokens
            self.spend(time.perf_counter() - started)
            told = self.step, epoch, loss, nll, self.rate(self.step), norm
            yield Progress(*told, self.tokens, self.seconds)

    def done(self) -> bool:
        return self.step >= self.config.max_steps

    def spend(self, seconds: float) -> None:
        self.seconds += seconds

    def batches(self) -> Iterator[tuple[Any, tuple[int, int]]]:
        """The batches from here on, each with the place after it."""
        epoch, place = self.epoch, self.place
        while True:
            plan = self.plan(epoch)
            for i in range(place, len(plan)):
                last = i + 1 == len(plan)
                after = (epoch + 1, 0) if last else (epoch, i + 1)
                yield self.batch(plan[i]), after
            epoch, place = epoch + 1, 0

    def batch(self, pairs: NDArray) -> Any:
        return self.corpus.batch(pairs).to(self.device)

    def trouble(self, loss: float, nll: float, norm: float) -> str:
        """Which step, which numbers, which pairs, and what to try."""
        pairs = sorted(self.plan(self.epoch)[self.place].tolist())
        return (
            f"step {self.step + 1} has loss {loss} and gradient norm "
            f"{norm} (epoch {self.epoch}, batch {self.place}: pairs "
            f"{pairs[:8]} …): lower rate, raise warmup, or look at these "
            "pairs"
        )

    # 15-checkpoints.md: The state of a run
    def weights(self) -> dict[str, Tensor]:
        """Every parameter; a shared one once."""
        return dict(self.model.named_parameters())

    def state(self) -> dict[str, Any]:
        """All that a later run needs besides the weights."""
        counters = {name: getattr(self, name) for name in COUNTERS}
        optimizer = self.optimizer.state_dict()
        return counters | {"optimizer": optimizer, "order": self.order()}

    def load(
        self, weights: dict[str, Tensor], state: dict[str, Any]
    ) -> None:
        """Go on from what weights and state gave. TrainingError if the
        batches would be different ones.
        """
        if state["order"] != self.order():
            raise TrainingError(
                f"the checkpoint was made with {state['order']}, this run "
                f"has {self.order()}: the batches would not be the same"
            )
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights[name])
        self.optimizer.load_state_dict(state["optimizer"])
        for name in COUNTERS:
            setattr(self, name, state[name])

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


# 14-training.md: The copy task
def copy_corpus(
    count: int,
    vocab: int = 20,
    length: int = 10,
    seed: int = 0,
    backwards: bool = False,
) -> Corpus:
    """Pairs of a random sequence of 1 to length symbols and its copy, or
    its reverse if backwards. Symbols are ids from 4 to vocab - 1.
    """
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, length + 1, count)
    src = [draw.integers(len(SPECIALS), vocab, n) for n in lengths]
    tgt = [s[::-1] for s in src] if backwards else src
    return Corpus(Sentences.of(src), Sentences.of(tgt))


def greedy_accuracy(
    model: Transformer, corpus: Corpus, batch_tokens: int = 5000
) -> tuple[float, float]:
    """The share of target tokens that the model finds the likeliest, given
    the right ones before them; and the share of sentences where it does
    so for all, which greedy search would write without a mistake.
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


# 14-training.md: Looking without touching
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
            batch = batch.to(device)
            both = batch_loss(model, batch, config.label_smoothing)
            sums += torch.stack(both).cpu().double()
            tokens += batch.tokens
    loss, nll = (sums / tokens).tolist()
    return scores(loss, nll)


def scores(loss: float, nll: float) -> dict[str, float]:
    """With the perplexity, the exponential of nll."""
    return {"loss": loss, "nll": nll, "perplexity": math.exp(min(nll, 700))}


# 15-checkpoints.md: The state of a run
COUNTERS = ("step", "epoch", "place", "tokens", "seconds")


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
