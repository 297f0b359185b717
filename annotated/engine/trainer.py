"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from annotated import training
from annotated.batches import Batch, Corpus
from annotated.engine.checkpoints import drop_old, write_checkpoint
from annotated.engine.distributed import (
    all_reduce_sum,
    check_same,
    data_parallel,
    full_tensor,
    gather_on_rank_zero,
    own_part,
    rank,
    rank_zero_only,
    reshard,
    step_group,
    world_size,
)
from annotated.engine.errors import (
    PeerError,
    TrainingError,
    UsageError,
    check_fields,
)
from annotated.engine.machine import HALF, evaluating
from annotated.engine.optimizers import rehearse
from annotated.engine.packing import (
    PackedTransformer,
    Packing,
    check_parts,
    chunked_loss,
    compile_layers,
    packed,
)
from annotated.model import Transformer
from annotated.schedule import make_optimizer, set_learning_rate
from annotated.tokens import BOS, EOS
from annotated.training import (
    Progress,
    TrainingConfig,
    fingerprint,
    seed_dropout,
)

__all__ = [
    "RunConfig", "PARTS", "freeze", "PackedBatch", "packed_loss",
    "LossScale", "split_batch", "micro_batches", "short_first", "Trainer",
    "ENOUGH", "RESERVE", "training_speed", "BUSY",
]  # fmt: skip


# E5-trainer.md: What a run adds to the configuration
@dataclass(frozen=True, kw_only=True)
class RunConfig(TrainingConfig):
    """TrainingConfig, plus what depends on the machine and run folder.

    A run ends at max_steps or max_minutes, whichever comes first; a
    cool-down begins early enough for either (see fit_end). The last keep
    of the checkpoints written every save_every steps are kept; those of
    save_minutes only guard against a crash. begin_run resolves precision
    auto; a Trainer that is built directly uses float32.
    """

    # maximum tokens per side in a micro-batch (unset: what fits)
    micro_tokens: int | None = None
    # parts that keep the weights that they begin with
    freeze: tuple[Literal["embeddings", "encoder", "decoder"], ...] = ()
    # number format of the layers; auto picks the fastest here
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # maximum minutes of training; a cool-down ends with them
    max_minutes: float | None = None
    compile: bool = False  # torch.compile each layer (for a GPU)
    curriculum: int = 0  # steps over which longer pairs are phased in
    save_every: int = 1000  # steps between checkpoints
    # minutes of training between extra checkpoints (unset: none)
    save_minutes: float | None = None
    keep: int = 5  # checkpoints to keep, and to average at the end

    def __post_init__(self) -> None:
        check_fields(
            self,
            zero=("cooldown", "seed", "curriculum"),
            positive=("rate", "clip", "max_minutes", "save_minutes"),
            below=1.0,
        )
        if unknown := set(self.freeze) - {*PARTS}:
            raise UsageError(
                f"freeze may only name {', '.join(PARTS)}, not "
                f"{', '.join(sorted(unknown))}"
            )
        if {*PARTS} <= {*self.freeze}:
            raise UsageError("freeze leaves nothing to train")


PARTS = {
    "embeddings": ("embeddings", "src_positions", "tgt_positions"),
    "encoder": ("encoder",),
    "decoder": ("decoder",),
}


def freeze(model: Transformer, names: Collection[str]) -> None:
    """Let all parts of a model learn, except the named ones of PARTS."""
    for name, modules in PARTS.items():
        for module in modules:
            getattr(model, module).requires_grad_(name not in names)


# E5-trainer.md: The loss, packed
@dataclass(frozen=True)
class PackedBatch(Batch):
    """A batch with the packing of each side."""

    source: Packing
    target: Packing

    @classmethod
    def of(cls, batch: Batch) -> PackedBatch:
        """The packed form of a batch; a PackedBatch is returned as is."""
        if isinstance(batch, cls):
            return batch
        places = Packing.of(batch.src), Packing.of(batch.tgt)
        return cls(batch.src, batch.tgt, batch.labels, *places)

    def moved(self, move: Callable[[Tensor], Tensor]) -> PackedBatch:
        """A copy with move applied to each of its tensors."""
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
    """training.batch_loss, without padding and in config's precision: two
    scalars in nats, the training loss and the negative log-likelihood of
    the labels, each a sum over the batch's target tokens (no mean).
    """
    half, device = HALF.get(config.precision), batch.src.device.type
    b = PackedBatch.of(batch)
    with torch.autocast(device, half) if half else nullcontext():
        x, packing = model.hidden(b.src, b.tgt, b.source, b.target)
    return chunked_loss(
        x.to(half or x.dtype),
        model.embeddings.output,
        packing.pack(batch.labels),
        config.label_smoothing,
        bias=model.embeddings.bias,
    )


class _Loss(nn.Module):
    """packed_loss as a module, since DDP and FSDP hook into forward."""

    def __init__(self, model: PackedTransformer, config: RunConfig):
        super().__init__()
        self.model, self.config = model, config

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return packed_loss(self.model, batch, self.config)


# E5-trainer.md: A range that is too small
@dataclass
class LossScale:
    """The factor that a float16 loss is multiplied by."""

    scale: float = 2.0**16
    calm: int = 0  # steps since the last change
    overflows: int = 0  # attempts at a step that failed

    patience = 2000  # steps without overflow before doubling
    least = 2.0**-8  # an overflow even at this scale has another cause

    def settle(self, parameters: list[nn.Parameter]) -> bool:
        """Unscale the gradients. If one of them has overflowed, halve the
        scale and return False: the step must be repeated.
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
    """Split a batch into micro-batches of roughly equal token counts.

    There are count of them, or the smallest multiple of count that keeps
    each within most tokens per side (a single pair may exceed it). If
    there are too few pairs, some are empty. Pairs keep their order.
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
        if most is None or largest <= most:
            return np.split(pairs, cuts)
        if parts >= len(pairs):
            return np.split(pairs, range(1, parts))  # a pair in each
        parts += count


def micro_batches(
    corpus: Corpus, pairs: NDArray, most: int | None
) -> list[tuple[PackedBatch, float]]:
    """This process's micro-batches, each with the weight of its loss: 1,
    or 0 for a placeholder.
    """
    parts = split_batch(corpus, pairs, world_size(), most)
    each = len(parts) // world_size()
    own = parts[rank() * each : (rank() + 1) * each]
    start, end = torch.tensor([[BOS]]), torch.tensor([[EOS]])
    nothing = PackedBatch.of(Batch(end, start, end))
    return [
        (PackedBatch.of(corpus.batch(p)), 1.0) if len(p) else (nothing, 0.0)
        for p in own
    ]


# E5-trainer.md: Short sentences first
def short_first(
    plan: Sequence[NDArray], lengths: NDArray, steps: int, seed: int
) -> list[NDArray]:
    """The batches of plan, reordered so that short pairs come first.

    lengths are those of all pairs. Over this many steps, at most the whole
    plan, the longest pair allowed grows from the 5 % quantile of lengths
    to their maximum; the other batches keep their order.
    """
    longest = np.array([lengths[pairs].max() for pairs in plan])
    coming = np.argsort(longest, kind="stable").tolist()
    draw = np.random.default_rng(seed)
    steps = min(steps, len(plan))
    share = np.sqrt(np.linspace(0.05**2, 1, steps + 1)[:-1])
    limits = np.quantile(lengths, share)
    allowed = np.searchsorted(longest[coming], limits, "right").tolist()
    pool: list[int] = []
    first: list[int] = []
    for step, count in enumerate(allowed):
        # if no batch within the limit is left, take the next one
        pool += coming[len(pool) + step : max(count, step + 1)]
        place = int(draw.integers(len(pool)))
        pool[place], pool[-1] = pool[-1], pool[place]
        first.append(pool.pop())
    early = set(first)
    rest = (i for i in range(len(plan)) if i not in early)
    return [plan[i] for i in (*first, *rest)]


# E5-trainer.md: The trainer
class Trainer(training.Trainer):
    """training.Trainer with packing, prefetching, micro-batches and any
    number of processes; shard distributes the weights over them.

    When one process sets stop, stopping becomes True in all of them at
    the end of the same step.
    """

    config: RunConfig
    step_minutes = 10.0  # how long a step waits for other processes

    def __init__(
        self,
        model: Transformer,
        corpus: Corpus,
        config: RunConfig,
        shard: bool = False,
    ):
        fast = model if type(model) is PackedTransformer else packed(model)
        check_parts(fast, hooks=True)
        super().__init__(fast, corpus, config)
        freeze(fast, config.freeze)
        self.check_same()
        self.group = step_group(self.step_minutes)
        if config.compile:
            compile_layers(fast)
        layers = [*fast.encoder.layers, *fast.decoder.layers]
        self.loss, self.no_sync = data_parallel(
            _Loss(fast, config), self.group, layers if shard else ()
        )
        # only now: sharding replaces the parameters
        self.optimizer = make_optimizer(fast.parameters())
        half = config.precision == "float16"
        self.scaling = LossScale() if half else None
        self.stop = self.stopping = False
        self.clock = self.started = 0.0  # of this process
        self.planned = config  # before fit_end
        self.since = 0, 0.0  # the step and time that the pace counts from

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
        """TrainingError unless all processes are in the same state."""
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

    def steps(self) -> Iterator[Progress]:
        """training.Trainer.steps, also bounded by max_minutes."""
        limit = 60 * (self.config.max_minutes or math.inf)
        if self.step == 0:  # what cannot be saved is refused now
            self.rehearse()
        works = self.prefetched()
        while self.step < self.config.max_steps and self.seconds < limit:
            started, epoch = time.perf_counter(), self.epoch
            work, after = next(works)
            loss, nll, norm = self.learn(work)
            self.epoch, self.batch_index = after
            self.tokens += work.tokens
            self.clock += time.perf_counter() - started
            self.fit_end()
            yield Progress(
                step=self.step, epoch=epoch, loss=loss, nll=nll,
                rate=self.rate(self.step), gradient_norm=norm,
                tokens=self.tokens, seconds=self.seconds,
            )  # fmt: skip

    def prefetched(self) -> Iterator[tuple[_Work, tuple[int, int]]]:
        """What batches yields, each read while the one before is used."""
        with ThreadPoolExecutor(1) as reader:
            source = self.batches()
            coming = reader.submit(next, source)
            while True:
                now = coming.result()
                if self.step + 1 < self.config.max_steps:
                    coming = reader.submit(next, source)
                yield now

    def batches(self) -> Iterator[tuple[_Work, tuple[int, int]]]:
        """The batches from here on, each with the place after it."""
        epoch, place = self.epoch, self.batch_index
        while True:
            plan = self.plan(epoch)
            for i in range(place, len(plan)):
                last = i + 1 == len(plan)
                after = (epoch + 1, 0) if last else (epoch, i + 1)
                yield self.batch(plan[i]), after
            epoch, place = epoch + 1, 0

    def batch(self, pairs: NDArray) -> _Work:
        micro = micro_batches(self.corpus, pairs, self.config.micro_tokens)
        if self.device.type == "cuda":
            micro = [(b.moved(Tensor.pin_memory), w) for b, w in micro]
        starts = self.corpus.tgt.starts
        words = int((starts[pairs + 1] - starts[pairs]).sum())
        return _Work(micro, words + len(pairs))

    # E5-trainer.md: Minutes that end the run
    def fit_end(self) -> None:
        """Let the schedule end before max_minutes do: if not all steps
        fit, begin the cool-down in time, or shorten the one under way.
        """
        config, (step, seconds) = self.config, self.since
        taken, left = self.step - step, config.max_steps - self.step
        if not (config.max_minutes and config.cooldown) or taken < ENOUGH:
            return
        cooldown = min(config.cooldown, config.max_steps)
        pace = (self.seconds - seconds) / taken
        room = (60 * config.max_minutes - self.seconds) / pace
        fits = int(RESERVE * room)
        if room >= left or fits < 1:
            return
        if left >= cooldown and fits > min(cooldown, self.step):
            return  # it has not begun, and need not yet
        begun = max(1.0, cooldown / left)  # 1 over the present factor
        self.end_at(self.step + fits, math.ceil(fits * begun))
        self.since = self.step, self.seconds

    def end_at(self, step: int, cooldown: int) -> None:
        """Let the schedule end at step."""
        self.config = replace(
            self.config, max_steps=step, cooldown=cooldown
        )

    def ending(self) -> dict[str, Any]:
        """The limits of the plan and what fit_end has made of them."""
        names = "max_steps", "cooldown", "max_minutes"
        plan = [getattr(self.planned, name) for name in names]
        now = [getattr(self.config, name) for name in names]
        return {"plan": plan, "now": now}

    def learn(self, work: Any) -> tuple[float, float, float]:
        """As in training.Trainer, for what batch returns."""
        seed_dropout(self.config.seed, self.step)
        self.model.train()
        self.optimizer.zero_grad()
        means = self.gradient(work)
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.config.clip or math.inf
        )
        loss, nll, size = self.collect(means, norm)
        if not np.isfinite([loss, nll, size]).all():
            raise TrainingError(self.trouble(loss, nll, size))
        self.step += 1
        set_learning_rate(self.optimizer, self.rate(self.step))
        self.optimizer.step()
        return loss, nll, size

    def gradient(self, work: Any) -> Tensor:
        """Accumulate the gradients of the micro-batches; returns this
        process's loss and nll per target token of the batch.
        """
        self.started = time.perf_counter()
        if self.scaling is None:
            return self.attempt(work, 1.0)
        while True:
            means = self.attempt(work, self.scaling.scale)
            if self.scaling.settle(list(self.model.parameters())):
                return means
            self.optimizer.zero_grad()
            seed_dropout(self.config.seed, self.step)

    def attempt(self, work: _Work, scale: float) -> Tensor:
        """Like gradient, with the loss multiplied by scale."""
        if world_size() > 1:  # each has its own noise
            seed_dropout(self.config.seed, self.step, rank())
        sums = torch.zeros(2, device=self.device)
        for i, (batch, weight) in enumerate(work.micro):
            last = i + 1 == len(work.micro)
            with nullcontext() if last else self.no_sync():
                loss, nll = self.loss(batch.to(self.device))
                (scale * weight * loss / work.tokens).backward()
            sums = sums + weight * torch.stack([loss.detach(), nll])
        return sums / work.tokens

    def collect(self, means: Tensor, norm: Tensor) -> tuple[float, ...]:
        """Loss, nll and gradient norm of the step, over all processes."""
        # three numbers, but the device is waited for only once
        loss, nll, size = torch.stack([*means, full_tensor(norm)]).tolist()
        spent = self.clock + time.perf_counter() - self.started
        own = [0.0 if rank() else spent, float(self.stop)]
        shared = torch.tensor([loss, nll, *own], dtype=torch.float64)
        shared = all_reduce_sum(shared, self.group)
        loss, nll, self.seconds, stop = shared.tolist()
        self.stopping = stop > 0
        if rank() and not np.isfinite([loss, nll, size]).all():
            raise PeerError("not finite")  # process 0 reports it
        return loss, nll, size

    # E5-trainer.md: Validation and checkpoints
    def validate(self, corpus: Corpus) -> dict[str, float]:
        """training.validate, divided among the processes."""
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

    def parameters(self) -> dict[str, nn.Parameter]:
        """By name: with shard this process's parts, whatever was computed
        before. A validation leaves some of them whole.
        """
        reshard(self.loss)
        return super().parameters()

    def weights(self) -> dict[str, Tensor]:
        """All parameters, unsharded, on the CPU of process 0."""
        weights = super().weights()
        return {name: gather_on_rank_zero(p) for name, p in weights.items()}

    def moments(self) -> dict[str, Tensor]:
        """The optimizer's tensors, unsharded, on the CPU of process 0."""
        moments = super().moments()
        return {name: gather_on_rank_zero(m) for name, m in moments.items()}

    def state(self) -> dict[str, Any]:
        """The plain trainer's state, and the settings that dropout's
        noise depends on.
        """
        state = super().state()
        if self.scaling is not None:
            state["scaling"] = vars(self.scaling).copy()
        return state | {"noise": self._noise(), "ending": self.ending()}

    def _noise(self) -> dict[str, int | None]:
        own = {
            n: getattr(self.config, n) for n in ("micro_tokens", "compile")
        }
        return {"processes": world_size()} | own

    def rehearse(self) -> dict[str, Tensor]:
        """What moments will be after a step, without their numbers. All
        processes have to take part.
        """
        return rehearse(self.parameters(), self.optimizer, self.scheduled)

    def load(
        self,
        weights: dict[str, Tensor],
        moments: dict[str, Tensor],
        state: dict[str, Any],
    ) -> None:
        """Restore what these three methods returned, in any trainer."""
        own = self.parameters()
        parts = {name: own_part(weights[name], own[name]) for name in own}
        super().load(parts, moments, state)
        self.clock = self.seconds
        self.since = self.step, self.seconds
        ending = state.get("ending", {})
        if ending.get("plan") == self.ending()["plan"]:  # not changed
            self.end_at(*ending["now"][:2])
        if self.scaling is not None:
            vars(self.scaling).update(state.get("scaling", {}))
        self.same_noise = state.get("noise") == self._noise()

    def save(self, folder: Path) -> Path:
        """Write folder/STEP atomically in process 0, and delete the
        checkpoints that config does not keep.
        """
        parts = self.weights(), self.moments(), self.state()
        place = folder / f"{self.step:08d}"
        rank_zero_only(lambda: write_checkpoint(*parts, place))
        keep, every = self.config.keep, self.config.save_every
        rank_zero_only(lambda: drop_old(place, keep, every))
        return place


@dataclass(frozen=True)
class _Work:
    """A batch that is ready for a training step."""

    micro: list[tuple[PackedBatch, float]]  # this process's part
    tokens: int  # target tokens of the whole batch


# E5-trainer.md: Minutes that end the run
ENOUGH = 20  # steps that tell the pace
RESERVE = 0.97  # of the steps that fit into the minutes left


def training_speed(
    model: PackedTransformer, corpus: Corpus, config: RunConfig
) -> tuple[float, bool]:
    """Training steps per second of this process alone, and whether other
    programs kept it from measuring them. The weights stay as they are.
    """
    wall, own = _step_seconds(model, corpus, config)
    threads = torch.get_num_threads()
    if next(model.parameters()).device.type != "cpu":
        return 1 / wall, False
    if threads > 1:
        torch.set_num_threads(1)
        try:
            _, own = _step_seconds(model, corpus, config)
        finally:
            torch.set_num_threads(threads)
    busy = wall > BUSY * own if threads == 1 else wall * BUSY > own
    return 1 / min(wall, own), busy


BUSY = 1.25  # times as long: other programs take part of the machine


def _step_seconds(
    model: PackedTransformer, corpus: Corpus, config: RunConfig
) -> tuple[float, float]:
    """The seconds of a training step by the clock on the wall, and by the
    processor's: the least of some.
    """
    loss, device = _Loss(model, config), next(model.parameters()).device
    optimizer = make_optimizer(model.parameters())
    plan = corpus.plan(config.batch_tokens, config.seed, epoch=0)
    clocks = time.perf_counter, time.process_time
    spent: list[list[float]] = []
    for step in range(6):
        batch = PackedBatch.of(corpus.batch(plan[step % len(plan)]))
        started = [clock() for clock in clocks]
        total, _ = loss(batch.to(device))
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        total.item()  # waits for the device
        spent.append([clock() - s for clock, s in zip(clocks, started)])
        if sum(wall for wall, _ in spent[1:]) > 1:
            break
    wall, own = map(min, zip(*spent[1:]))
    return wall, own or wall  # some clocks tick coarsely
