"""annotated.training.

Exported from the book; edit the chapter, then run `make export`.

- 14-training.md: Training, and the copy task
"""

import math
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from annotated.batches import Batch, Corpus, Sentences
from annotated.engine.errors import Elsewhere, TrainingError
from annotated.engine.machine import evaluating
from annotated.engine.packing import PackedTransformer, chunked_loss
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
    "POSITIVE",
    "TrainingConfig",
    "batch_loss",
    "Progress",
    "split_batch",
    "Loss",
    "Result",
    "Team",
    "share",
    "fingerprint",
    "Trainer",
    "copy_corpus",
    "validate",
    "greedy_accuracy",
]


# 14-training.md: The loss of a batch, the fast way
POSITIVE = ("micro_tokens", "max_minutes", "save_minutes", "rate", "clip")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How to train; the defaults are the paper's base model (§5).

    batch_tokens counts each side, over all processes; what a process gets
    of a batch goes through the model in pieces of at most micro_tokens a
    side. rate multiplies equation 3, and over the cooldown steps before
    max_steps it falls to 0 in a line; a run ends at max_steps or after
    max_minutes of training, whichever comes first; clip bounds the
    gradient's norm. A checkpoint is written every save_every steps, and
    the last keep are kept; and another, for safety alone, when
    save_minutes of training have passed without one. ValueError names a
    wrong field.
    """

    batch_tokens: int = 25_000
    micro_tokens: int | None = None
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
    save_minutes: float | None = None
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
        for name in POSITIVE:
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
        if not isinstance(model, PackedTransformer):
            logits = model(batch.src, batch.tgt)
            loss, nll = smoothed_loss(
                logits.float() if half else logits,
                batch.labels,
                config.label_smoothing,
            )
            return loss, nll, batch.tokens
        x, packing = model.hidden(batch.src, batch.tgt)
    if half:
        x = x.bfloat16()
    loss, nll = chunked_loss(
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


# 14-training.md: One batch, several pieces, several processes
def split_batch(
    corpus: Corpus, pairs: NDArray, count: int, most: int | None = None
) -> list[NDArray]:
    """Cut a batch into pieces of about as many tokens each.

    count pieces, or as small a multiple of it as keeps every piece to most
    tokens a side, though a piece has one pair at least. Where there are
    not as many pairs as pieces, some are empty. No pair is lost or moved.
    """
    sides = [
        np.cumsum(
            np.append(0, side.starts[pairs + 1] - side.starts[pairs] + 1)
        )
        for side in (corpus.src, corpus.tgt)
    ]
    total, pieces = sides[0] + sides[1], count
    while True:
        goal = total[-1] * np.arange(1, pieces) / pieces
        cuts = np.searchsorted((total[1:] + total[:-1]) / 2, goal)
        ends = np.append(0, np.append(cuts, len(pairs)))
        largest = max(np.diff(side[ends]).max() for side in sides)
        if most is None or largest <= most or pieces >= len(pairs):
            return np.split(pairs, cuts)
        pieces += count


Loss = Callable[[Batch], tuple[Tensor, Tensor, int]]


Result = TypeVar("Result")


class Team:
    """The processes that train a model together: here, one alone.

    Chapter 19 has the class for several. There, each process calls each
    method at the same point of the program.
    """

    rank = 0  # the number of this process
    size = 1  # how many there are

    def wrap(self, model: Transformer, config: TrainingConfig) -> Loss:
        """batch_loss for this model, whose backward passes leave the sum
        over all processes in the gradients.
        """
        return lambda batch: batch_loss(model, batch, config)

    def adding_up(self, last: bool) -> AbstractContextManager[Any]:
        """Around a piece; only at the last one are gradients exchanged."""
        return nullcontext()

    def sum(self, numbers: Tensor) -> Tensor:
        """The sum of numbers, on the CPU, over all processes."""
        return numbers

    def first(self, action: Callable[[], Result]) -> Result | None:
        """Process 0 acts, the others wait; its failure is everyone's."""
        return action()

    def in_turn(self, action: Callable[[], Result]) -> Result:
        """Process 0 acts, and after it all the others."""
        return action()

    def interleave(self, own: list[Result]) -> list[Result]:
        """What all processes have: first the first of each, and so on."""
        return own

    def check_same(self, facts: dict[str, int]) -> None:
        """TrainingError, naming the fact, unless all have the same."""

    def whole(self, tensor: Tensor) -> Tensor:
        """All of a tensor that the processes may have in parts."""
        return tensor

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        """What this process has of a whole tensor, in the form of like."""
        return tensor


def share(
    corpus: Corpus, pairs: NDArray, team: Team, config: TrainingConfig
) -> list[tuple[NDArray, float]]:
    """The pieces of a batch that are this process's, each with the weight
    of its loss: 1.

    Every process has as many. One that goes without, because there are
    fewer pairs than pieces, computes some pair with weight 0: those that
    exchange gradients must all do so.
    """
    pieces = split_batch(corpus, pairs, team.size, config.micro_tokens)
    each = len(pieces) // team.size
    own = pieces[team.rank * each : (team.rank + 1) * each]
    return [(p, 1.0) if len(p) else (pairs[:1], 0.0) for p in own]


def fingerprint(corpus: Corpus) -> int:
    """A checksum of a corpus; where it is large, of a part of each of
    some thousand stretches.
    """
    crc = 0
    for side in (corpus.src, corpus.tgt):
        for row in (side.starts, side.ids):
            for first in range(0, len(row), max(4096, len(row) // 4096)):
                part = np.ascontiguousarray(row[first : first + 4096])
                crc = zlib.crc32(part.tobytes(), crc)
    return crc


# 14-training.md: The trainer
@dataclass(frozen=True)
class _Work:
    """A batch that is ready to be learned."""

    pairs: NDArray  # all of it, over all processes
    pieces: list[tuple[Batch, float]]  # what is this process's, and weight
    tokens: int  # target tokens of all of it
    after: tuple[int, int]  # epoch and place in it of the next batch


class Trainer:
    """Trains a model on a corpus, a step at a time (§5).

    What happens is a function of (model, corpus, config) alone, and
    state / load_state carry all of it: a run that is stopped and taken up
    again ends with the weights of one that never stopped. A team shares
    the work; but for rounding it makes no difference how many they are.
    """

    def __init__(
        self,
        model: Transformer,
        corpus: Corpus,
        config: TrainingConfig,
        team: Team | None = None,
    ):
        if not len(corpus):
            raise ValueError("the training corpus is empty")
        self.model, self.corpus, self.config = model, corpus, config
        self.team = team or Team()
        self.device = next(model.parameters()).device
        self.step = self.epoch = self.batch = self.tokens = 0
        self.seconds = 0.0
        self.data = fingerprint(corpus)
        self.check_team()
        self.loss = self.team.wrap(model, config)
        self.optimizer = make_optimizer(model.parameters())

    def check_team(self) -> None:
        """TrainingError unless all processes are doing the same."""
        if self.team.size > 1:
            settings = repr((self.config, self.model.config)).encode()
            facts = {"training data": self.data, "step": self.step}
            facts["settings"] = zlib.crc32(settings)
            facts["weights"] = self._weights_checksum()
            self.team.check_same(facts)

    def _weights_checksum(self) -> int:
        crc = 0
        for weight in self.weights().values():
            crc = zlib.crc32(weight.numpy().tobytes(), crc)
        return crc

    def steps(self) -> Iterator[Progress]:
        """Train, yielding after each step, until config says stop.

        Raises TrainingError where a step gives no finite gradient; the
        weights are then still those of the step before.
        """
        with ThreadPoolExecutor(1) as reader:
            source = self._read(self.epoch, self.batch)
            left = max(0, self.config.max_steps - self.step)
            source = islice(source, left)
            coming = reader.submit(next, source, None)
            while not self._done():
                started = time.perf_counter()
                epoch, work = self.epoch, coming.result()
                assert work is not None  # not before the last step
                coming = reader.submit(next, source, None)
                loss, nll, norm = self._learn(work)
                self.step += 1
                self.tokens += work.tokens
                self.epoch, self.batch = work.after
                spent = self.seconds + time.perf_counter() - started
                self.seconds = self._as_first(spent)
                yield Progress(
                    self.step,
                    epoch,
                    loss / work.tokens,
                    nll / work.tokens,
                    self._rate(self.step),
                    norm,
                    self.tokens,
                    self.seconds,
                )

    def _read(self, epoch: int, place: int) -> Iterator[_Work]:
        """The batches from a place on, without end."""
        while True:
            plan = self._plan(epoch)
            for i in range(place, len(plan)):
                last = i + 1 == len(plan)
                after = (epoch + 1, 0) if last else (epoch, i + 1)
                yield self._prepare(plan[i], after)
            epoch, place = epoch + 1, 0

    def _plan(self, epoch: int) -> list[NDArray]:
        """The batches of an epoch, in their order."""
        config = self.config
        return self.corpus.plan(config.batch_tokens, config.seed, epoch)

    def _prepare(self, pairs: NDArray, after: tuple[int, int]) -> _Work:
        pieces = []
        for own, weight in share(
            self.corpus, pairs, self.team, self.config
        ):
            batch = self.corpus.batch(own)
            if self.device.type == "cuda":
                sides = batch.src, batch.tgt, batch.labels
                batch = Batch(*(side.pin_memory() for side in sides))
            pieces.append((batch, weight))
        starts = self.corpus.tgt.starts
        words = int((starts[pairs + 1] - starts[pairs]).sum())
        return _Work(pairs, pieces, words + len(pairs), after)

    def _as_first(self, number: float) -> float:
        """The number that process 0 has: clocks differ."""
        own = number if self.team.rank == 0 else 0.0
        return self.team.sum(torch.tensor(own, dtype=torch.float64)).item()

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

    def _learn(self, work: _Work) -> tuple[float, float, float]:
        """One update; the batch's loss and nll, summed, and the norm of
        the gradient.
        """
        # dropout's random numbers belong to the step, not to its past
        draw = np.random.SeedSequence(
            [self.config.seed, self.step, self.team.rank]
        )
        torch.manual_seed(int(draw.generate_state(1)[0]))
        self.model.train()
        self.optimizer.zero_grad()
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for i, (piece, weight) in enumerate(work.pieces):
            last = i + 1 == len(work.pieces)
            with self.team.adding_up(last):
                loss, nll, _ = self.loss(piece.to(self.device))
                # divided by the tokens of the whole batch
                (weight * loss / work.tokens).backward()
            sums += weight * torch.stack([loss.detach(), nll])
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.config.clip or math.inf
        )
        # one wait for the device, not three
        here = torch.cat([sums, self.team.whole(norm)[None]]).cpu()
        loss_sum, nll_sum = self.team.sum(here[:2]).tolist()
        size = here[2].item()
        if not all(map(math.isfinite, (loss_sum, nll_sum, size))):
            kind = Elsewhere if self.team.rank else TrainingError
            raise kind(
                self._trouble(work.pairs, loss_sum / work.tokens, size)
            )
        set_learning_rate(self.optimizer, self._rate(self.step + 1))
        self.optimizer.step()
        return loss_sum, nll_sum, size

    def _trouble(self, pairs: NDArray, loss: float, norm: float) -> str:
        return (
            f"step {self.step + 1} has loss {loss} and gradient "
            f"norm {norm} (epoch {self.epoch}, batch {self.batch}: pairs "
            f"{sorted(pairs.tolist())[:8]} …): lower rate, raise warmup, "
            "or look at these pairs"
        )

    def weights(self) -> dict[str, Tensor]:
        """Every parameter, whole, on the CPU; a shared one once."""
        named = self.model.named_parameters()
        return {
            name: self.team.whole(p.detach()).cpu().contiguous()
            for name, p in named
        }

    def load(
        self, weights: dict[str, Tensor], state: dict[str, Any]
    ) -> None:
        """Take up what weights and state gave. TrainingError where the
        batches would be others.
        """
        if state["order"] != self._order():
            raise TrainingError(
                f"the checkpoint was made with {state['order']}, this run "
                f"has {self._order()}: the batches would not be the same"
            )
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                here = weights[name].to(parameter.device)
                parameter.copy_(self.team.part(here, parameter))
        self._load_optimizer(state["optimizer"])
        for name in ("step", "epoch", "batch", "tokens", "seconds"):
            setattr(self, name, state[name])

    def state(self) -> dict[str, Any]:
        """All that a later run needs, besides the model's weights."""
        return {
            "optimizer": self._optimizer_state(),
            "step": self.step,
            "epoch": self.epoch,
            "batch": self.batch,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "order": self._order(),
        }

    def _optimizer_state(self) -> dict[str, Any]:
        saved = self.optimizer.state_dict()
        whole = {
            i: {key: self.team.whole(value) for key, value in one.items()}
            for i, one in saved["state"].items()
        }
        return saved | {"state": whole}

    def _load_optimizer(self, saved: dict[str, Any]) -> None:
        own = list(self.model.parameters())
        parts = {
            i: {
                key: self.team.part(value, own[i]) if value.dim() else value
                for key, value in one.items()
            }
            for i, one in saved["state"].items()
        }
        self.optimizer.load_state_dict(saved | {"state": parts})

    def _order(self) -> dict[str, int]:
        """What the order of the batches depends on."""
        return {
            "pairs": len(self.corpus),
            "data": self.data,
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
def validate(
    model: Transformer,
    corpus: Corpus,
    config: TrainingConfig,
    team: Team | None = None,
    loss_of: Loss | None = None,
) -> dict[str, float]:
    """loss, nll (nats per target token) and perplexity on a corpus, of
    which each process of the team does a part; loss_of is what the team
    made of the model.
    """
    if not len(corpus):
        raise ValueError("the validation corpus is empty")
    team = team or Team()
    loss_of = loss_of or team.wrap(model, config)
    device = next(model.parameters()).device
    sums = torch.zeros(3, dtype=torch.float64)
    with evaluating(model):
        for pairs in corpus.plan(config.batch_tokens, seed=0, epoch=0):
            for piece, weight in share(corpus, pairs, team, config):
                batch = corpus.batch(piece).to(device)
                loss, nll, count = loss_of(batch)
                numbers = torch.stack([loss, nll]).double().cpu()
                sums[:2] += weight * numbers
                sums[2] += weight * count
    loss, nll, tokens = team.sum(sums).tolist()
    loss, nll = loss / tokens, nll / tokens
    return {"loss": loss, "nll": nll, "perplexity": math.exp(min(nll, 700))}


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
