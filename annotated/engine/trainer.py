"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from annotated import training
from annotated.batches import Batch, Corpus
from annotated.checkpoints import drop_old, write_checkpoint
from annotated.engine.distributed import (
    all_reduce_sum,
    check_same,
    data_parallel,
    full_tensor,
    on_rank_zero,
    own_part,
    rank,
    rank_zero_only,
    step_group,
    world_size,
)
from annotated.engine.errors import (
    PeerError,
    UsageError,
    check_positive,
    check_whole,
)
from annotated.engine.machine import HALF, evaluating
from annotated.engine.packing import (
    PackedTransformer,
    Packing,
    chunked_loss,
    compile_layers,
    packed,
)
from annotated.model import Transformer
from annotated.schedule import make_optimizer
from annotated.tokens import BOS, EOS
from annotated.training import TrainingConfig, fingerprint

__all__ = [
    "RunConfig", "PackedBatch", "packed_loss", "LossScale", "split_batch",
    "micro_batches", "short_first", "Trainer", "training_speed",
]  # fmt: skip


# E5-trainer.md: What a run adds to the configuration
@dataclass(frozen=True, kw_only=True)
class RunConfig(TrainingConfig):
    """TrainingConfig, and what belongs to a machine and a run folder.

    A run ends at max_steps or max_minutes, whichever comes first. The
    last keep of the checkpoints of save_every are kept; one that
    save_minutes wrote is for safety alone. Where precision is auto,
    begin_run decides; a Trainer that is made by hand takes float32.
    """

    # tokens of a batch, on each side, at once in a process, if not all
    micro_tokens: int | None = None
    # the numbers that layers compute with
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_minutes: float | None = None  # minutes of training, at most
    compile: bool = False  # torch.compile for each layer, for a GPU
    curriculum: int = 0  # steps in which longer pairs come in, bit by bit
    save_every: int = 1000  # steps between checkpoints
    # minutes of training after which there is one more, if any
    save_minutes: float | None = None
    keep: int = 5  # checkpoints kept, and averaged at the end

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("curriculum", self.curriculum, least=0)
        for name in ("save_every", "keep"):
            check_whole(name, getattr(self, name), least=1)
        for name in ("micro_tokens", "max_minutes", "save_minutes"):
            check_positive(name, getattr(self, name))
        if self.precision not in ("auto", "float32", *HALF):
            raise UsageError(
                "precision must be auto, float32, bfloat16 or float16, "
                f"not {self.precision!r}"
            )


# E5-trainer.md: The loss, packed
@dataclass(frozen=True)
class PackedBatch(Batch):
    """A batch, and where its tokens are."""

    source: Packing
    target: Packing

    @classmethod
    def of(cls, batch: Batch) -> PackedBatch:
        """From a batch; itself, where it is one already."""
        if isinstance(batch, cls):
            return batch
        places = Packing.of(batch.src), Packing.of(batch.tgt)
        return cls(batch.src, batch.tgt, batch.labels, *places)

    def moved(self, move: Callable[[Tensor], Tensor]) -> PackedBatch:
        """With each of its tensors moved."""
        src, tgt, labels = map(move, (self.src, self.tgt, self.labels))
        source, target = (
            Packing(move(side.real), move(side.index))
            for side in (self.source, self.target)
        )
        return PackedBatch(src, tgt, labels, source, target)

    def to(self, device: torch.device | str) -> PackedBatch:
        return self.moved(lambda x: x.to(device, non_blocking=True))


def packed_loss(
    model: PackedTransformer, batch: Batch, config: RunConfig
) -> tuple[Tensor, Tensor]:
    """training.batch_loss, without padding and in config's precision."""
    half, device = HALF.get(config.precision), batch.src.device.type
    b = PackedBatch.of(batch)
    with torch.autocast(device, half) if half else nullcontext():
        x, packing = model.hidden(b.src, b.tgt, b.source, b.target)
    return chunked_loss(
        x.to(half or x.dtype),
        model.embeddings.output,
        packing.pack(batch.labels),
        config.label_smoothing,
    )


class _Loss(nn.Module):
    """packed_loss as a module: DDP and FSDP watch calls of forward."""

    def __init__(self, model: PackedTransformer, config: RunConfig):
        super().__init__()
        self.model, self.config = model, config

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return packed_loss(self.model, batch, self.config)


# E5-trainer.md: A range that is too small
@dataclass
class LossScale:
    """What a loss in float16 is multiplied by."""

    scale: float = 2.0**16
    calm: int = 0  # steps since it was changed
    overflows: int = 0  # attempts at a step that were in vain

    patience = 2000  # calm steps after which it is doubled
    least = 2.0**-8  # what overflows even so, overflows for another reason

    def settle(self, parameters: list[nn.Parameter]) -> bool:
        """Take the scale out of the gradients. False, with half the scale
        from now on, where one of them has overflowed: try again.
        """
        norm = torch.nn.utils.clip_grad_norm_(parameters, math.inf)
        fine = math.isfinite(full_tensor(norm).item())
        if not fine and self.scale > self.least:
            self.scale, self.calm = self.scale / 2, 0
            self.overflows += 1
            return False
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= self.scale
        self.calm += 1
        if self.calm == self.patience:
            self.scale, self.calm = self.scale * 2, 0
        return True


# E5-trainer.md: One batch, several micro-batches, several processes
def split_batch(
    corpus: Corpus, pairs: NDArray, count: int, most: int | None = None
) -> list[NDArray]:
    """Cut a batch into micro-batches of about as many tokens each.

    count of them, or as small a multiple of it as keeps each to most
    tokens a side, though it has one pair at least. Where there are not as
    many pairs, some are empty. No pair is lost or moved.
    """
    sides = [
        np.cumsum(
            np.append(0, side.starts[pairs + 1] - side.starts[pairs] + 1)
        )
        for side in (corpus.src, corpus.tgt)
    ]
    total, parts = sides[0] + sides[1], count
    while True:
        goal = total[-1] * np.arange(1, parts) / parts
        cuts = np.searchsorted((total[1:] + total[:-1]) / 2, goal)
        ends = np.append(0, np.append(cuts, len(pairs)))
        largest = max(np.diff(side[ends]).max() for side in sides)
        if most is None or largest <= most or parts >= len(pairs):
            return np.split(pairs, cuts)
        parts += count


def micro_batches(
    corpus: Corpus, pairs: NDArray, most: int | None
) -> list[tuple[PackedBatch, float]]:
    """What this process computes of a batch, each with the weight of its
    loss: 1, or 0 for a stand-in.
    """
    parts = split_batch(corpus, pairs, world_size(), most)
    each = len(parts) // world_size()
    own = parts[rank() * each : (rank() + 1) * each]
    start, end = torch.tensor([[BOS]]), torch.tensor([[EOS]])
    nothing = Batch(end, start, end)
    batches = [corpus.batch(p) if len(p) else nothing for p in own]
    return [
        (PackedBatch.of(batch), float(len(p) > 0))
        for batch, p in zip(batches, own, strict=True)
    ]


# E5-trainer.md: Short sentences first
def short_first(
    plan: Sequence[NDArray], lengths: NDArray, steps: int, seed: int
) -> list[NDArray]:
    """The batches of plan with short pairs first.

    lengths are those of all pairs. For so many steps, at most the plan's,
    the longest pair that may come grows from one that 5 % of the pairs do
    not exceed to the longest of all; the rest keeps plan's order.
    """
    longest = np.array([lengths[pairs].max() for pairs in plan])
    coming = np.argsort(longest, kind="stable").tolist()
    draw = np.random.default_rng(seed)
    steps = min(steps, len(plan))
    share = np.sqrt(np.linspace(0.05**2, 1, steps, endpoint=False))
    limits = np.quantile(lengths, share)
    allowed = np.searchsorted(longest[coming], limits, "right").tolist()
    pool: list[int] = []
    first: dict[int, None] = {}
    for step, count in enumerate(allowed):
        # where none is left that may come, the next one does
        pool += coming[len(pool) + step : max(count, step + 1)]
        place = int(draw.integers(len(pool)))
        pool[place], pool[-1] = pool[-1], pool[place]
        first[pool.pop()] = None
    rest = (i for i in range(len(plan)) if i not in first)
    return [plan[i] for i in (*first, *rest)]


# E5-trainer.md: The trainer
class Trainer(training.Trainer):
    """The plain trainer's steps: packed, read ahead, in micro-batches, by
    as many processes as there are; shard spreads the weights over them.

    Where one process sets stop, stopping becomes true in all of them, at
    the end of the same step.
    """

    config: RunConfig
    step_minutes = 10.0  # that a step waits for another process

    def __init__(
        self,
        model: Transformer,
        corpus: Corpus,
        config: RunConfig,
        shard: bool = False,
    ):
        fast = model if type(model) is PackedTransformer else packed(model)
        super().__init__(fast, corpus, config)
        self.check_same()
        self.group = step_group(self.step_minutes)
        if config.compile:
            compile_layers(fast)
        layers = [*fast.encoder.layers, *fast.decoder.layers]
        self.loss, self.no_sync = data_parallel(
            _Loss(fast, config), self.group, layers if shard else ()
        )
        # sharding has put other parameters in the place of those before
        self.optimizer = make_optimizer(fast.parameters())
        half = config.precision == "float16"
        self.scaling = LossScale() if half else None
        self.stop = self.stopping = False
        self.clock = self.started = 0.0  # this process's

    def plan(self, epoch: int) -> list[NDArray]:
        plan = super().plan(epoch)
        if epoch > 0 or not self.config.curriculum:
            return plan
        src, tgt = self.corpus.src.lengths, self.corpus.tgt.lengths
        config, lengths = self.config, np.maximum(src, tgt)
        return short_first(plan, lengths, config.curriculum, config.seed)

    def order(self) -> dict[str, int]:
        steps = self.config.curriculum
        return super().order() | ({"curriculum": steps} if steps else {})

    def check_same(self) -> None:
        """TrainingError unless all processes are doing the same."""
        if world_size() == 1:
            return
        settings = repr((self.config, self.model.config)).encode()
        weights = 0
        for parameter in self.model.parameters():
            whole = full_tensor(parameter.detach()).cpu()
            weights = zlib.crc32(whole.numpy().tobytes(), weights)
        check_same(
            {
                "training data": fingerprint(self.corpus),
                "settings": zlib.crc32(settings),
                "step": self.step,
                "weights": weights,
            }
        )

    def batches(self) -> Iterator[tuple[_Work, tuple[int, int]]]:
        with ThreadPoolExecutor(1) as reader:
            source = super().batches()
            coming = reader.submit(next, source)
            while True:
                now = coming.result()
                if self.step + 1 < self.config.max_steps:
                    coming = reader.submit(next, source)
                yield now

    def batch(self, pairs: NDArray) -> _Work:
        micro = micro_batches(self.corpus, pairs, self.config.micro_tokens)
        if self.device.type == "cuda":
            micro = [(b.moved(Tensor.pin_memory), w) for b, w in micro]
        starts = self.corpus.tgt.starts
        words = int((starts[pairs + 1] - starts[pairs]).sum())
        return _Work(micro, words + len(pairs))

    def done(self) -> bool:
        minutes = self.config.max_minutes or math.inf
        return super().done() or self.seconds >= 60 * minutes

    def spend(self, seconds: float) -> None:
        self.clock += seconds

    def gradient(self, work: Any) -> Tensor:
        """Add up the micro-batches' gradients; their loss and nll, of this
        process, per target token of the batch.
        """
        self.started = time.perf_counter()
        if self.scaling is None:
            return self.attempt(work, 1.0)
        while True:
            means = self.attempt(work, self.scaling.scale)
            if self.scaling.settle(list(self.model.parameters())):
                return means
            self.optimizer.zero_grad()
            self.seed_dropout()

    def attempt(self, work: _Work, scale: float) -> Tensor:
        """The same, with gradients that are scale times as large."""
        if world_size() > 1:  # each has noise of its own
            self.seed_dropout(rank())
        sums = torch.zeros(2, device=self.device)
        for i, (batch, weight) in enumerate(work.micro):
            last = i + 1 == len(work.micro)
            with nullcontext() if last else self.no_sync():
                loss, nll = self.loss(batch.to(self.device))
                (scale * weight * loss / work.tokens).backward()
            sums = sums + weight * torch.stack([loss.detach(), nll])
        return sums / work.tokens

    def collect(self, means: Tensor, norm: Tensor) -> list[float]:
        """Loss, nll and gradient norm of the step, of all processes."""
        numbers = [*means, full_tensor(norm)]
        loss, nll, size = torch.stack(numbers).cpu().double()
        spent = self.clock + time.perf_counter() - self.started
        own = [0.0 if rank() else spent, float(self.stop)]
        shared = torch.tensor([loss, nll, *own], dtype=torch.float64)
        shared = all_reduce_sum(shared, self.group)
        loss, nll, self.seconds, stop = shared.tolist()
        self.stopping = stop > 0
        if rank() and not math.isfinite(loss + nll + size):
            raise PeerError("not finite")  # which process 0 tells
        return [loss, nll, size.item()]

    # E5-trainer.md: Validation and checkpoints
    def validate(self, corpus: Corpus) -> dict[str, float]:
        """training.validate, of which each process does a part."""
        if not len(corpus):
            raise ValueError("the validation corpus is empty")
        config = self.config
        sums = torch.zeros(3, dtype=torch.float64)
        with evaluating(self.model):
            for pairs in corpus.plan(config.batch_tokens, seed=0, epoch=0):
                for batch, weight in micro_batches(
                    corpus, pairs, config.micro_tokens
                ):
                    loss, nll = self.loss(batch.to(self.device))
                    numbers = torch.stack([loss, nll]).cpu().double()
                    sums[:2] += weight * numbers
                    sums[2] += weight * batch.tokens
        loss, nll, tokens = all_reduce_sum(sums).tolist()
        return training.scores(loss / tokens, nll / tokens)

    def weights(self) -> dict[str, Tensor]:
        """Every parameter, whole, on the CPU of process 0."""
        weights = super().weights()
        return {name: on_rank_zero(p) for name, p in weights.items()}

    def state(self) -> dict[str, Any]:
        """The plain trainer's state, whole, on the CPU of process 0; and
        what dropout's noise depends on.
        """
        state = super().state()
        state["optimizer"]["state"] = {
            i: {key: on_rank_zero(value) for key, value in one.items()}
            for i, one in state["optimizer"]["state"].items()
        }
        if self.scaling is not None:
            state["scaling"] = vars(self.scaling).copy()
        return state | {"noise": self._noise()}

    def _noise(self) -> dict[str, int | None]:
        own = {
            n: getattr(self.config, n) for n in ("micro_tokens", "compile")
        }
        return {"processes": world_size()} | own

    def load(
        self, weights: dict[str, Tensor], state: dict[str, Any]
    ) -> None:
        """Go on from what weights and state gave, or another trainer's."""
        own = dict(self.model.named_parameters())
        parts = {name: own_part(weights[name], own[name]) for name in own}
        moments = {
            i: {
                key: own_part(value, like) if value.dim() else value
                for key, value in state["optimizer"]["state"][i].items()
            }
            for i, like in enumerate(own.values())
            if i in state["optimizer"]["state"]
        }
        optimizer = state["optimizer"] | {"state": moments}
        super().load(parts, state | {"optimizer": optimizer})
        self.clock = self.seconds
        if self.scaling is not None:
            vars(self.scaling).update(state.get("scaling", {}))
        self.same_noise = state.get("noise") == self._noise()

    def save(self, folder: Path) -> Path:
        """Write folder/STEP, whole or not at all, by process 0, and drop
        what config does not keep.
        """
        weights, state = self.weights(), self.state()
        place = folder / f"{self.step:08d}"
        rank_zero_only(lambda: write_checkpoint(weights, state, place))
        keep, every = self.config.keep, self.config.save_every
        rank_zero_only(lambda: drop_old(place, keep, every))
        return place


@dataclass(frozen=True)
class _Work:
    """A batch that is ready to be learned from."""

    micro: list[tuple[PackedBatch, float]]  # this process's part
    tokens: int  # target tokens of the whole batch


def training_speed(
    model: PackedTransformer, corpus: Corpus, config: RunConfig
) -> float:
    """Steps per second of this process, alone. The model learns a little
    from them.
    """
    loss, device = _Loss(model, config), next(model.parameters()).device
    optimizer = make_optimizer(model.parameters())
    plan = corpus.plan(config.batch_tokens, config.seed, epoch=0)
    seconds: list[float] = []
    for step in range(6):
        batch = PackedBatch.of(corpus.batch(plan[step % len(plan)]))
        started = time.perf_counter()
        mean = loss(batch.to(device))[0] / batch.tokens
        mean.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean.item()  # waits for the device
        seconds.append(time.perf_counter() - started)
        if sum(seconds[1:]) > 1:
            break
    return 1 / median(seconds[1:])
