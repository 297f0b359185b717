"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Collection, Iterator
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
from annotated.engine.micro import PackedBatch, micro_batches, short_first
from annotated.engine.optimizers import rehearse
from annotated.engine.packing import (
    PackedTransformer,
    check_parts,
    chunked_loss,
    compile_layers,
    packed,
)
from annotated.model import Transformer
from annotated.schedule import make_optimizer, set_learning_rate
from annotated.training import (
    Progress,
    TrainingConfig,
    fingerprint,
    seed_dropout,
)

__all__ = ["RunConfig", "packed_loss", "Trainer"]


# E5-trainer.md: What a run adds to the configuration
@dataclass(frozen=True, kw_only=True)
class RunConfig(TrainingConfig):
    """TrainingConfig, plus what depends on the machine and run folder.

    A run ends at max_steps or max_minutes, whichever comes first; a
    cool-down begins early enough for either (see Trainer.fit_end). The
    last keep of the checkpoints written every save_every steps are kept;
    those of save_minutes only guard against a crash. begin_run resolves
    precision auto; a Trainer that is built directly uses float32.
    """

    # maximum tokens per side in a micro-batch (unset: what fits)
    micro_tokens: int | None = None
    # frozen parts: they keep the weights that they begin with
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
        if unknown := set(self.freeze) - {*_PARTS}:
            raise UsageError(
                f"freeze may only name {', '.join(_PARTS)}, not "
                f"{', '.join(sorted(unknown))}"
            )
        if {*_PARTS} <= {*self.freeze}:
            raise UsageError("freeze leaves nothing to train")


_PARTS = {
    "embeddings": ("embeddings", "src_positions", "tgt_positions"),
    "encoder": ("encoder",),
    "decoder": ("decoder",),
}


def _freeze(model: Transformer, names: Collection[str]) -> None:
    """Let all parts of a model learn, except the named ones of _PARTS."""
    for name, modules in _PARTS.items():
        for module in modules:
            getattr(model, module).requires_grad_(name not in names)


# E5-trainer.md: The loss, packed
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
class _LossScale:
    """The factor that a float16 loss is multiplied by."""

    scale: float = 2.0**16
    calm: int = 0  # steps since the last change
    overflows: int = 0  # attempts at a step that failed

    patience = 2000  # steps without overflow before doubling
    min_scale = 2.0**-8  # an overflow even at this has another cause

    def settle(self, parameters: list[nn.Parameter]) -> bool:
        """Unscale the gradients. If one of them has overflowed, halve the
        scale and return False: the step must be repeated.
        """
        norm = torch.nn.utils.clip_grad_norm_(parameters, math.inf)
        fine = math.isfinite(full_tensor(norm).item())
        if not fine and self.scale > self.min_scale:
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
        _freeze(fast, config.freeze)
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
        self.scaling = _LossScale() if half else None
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
            numbers = full_tensor(parameter.detach()).cpu().numpy()
            weights = zlib.crc32(numbers.tobytes(), weights)
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
        if (kind := self.device.type) != "cpu":
            micro = [(b.together(kind == "cuda"), w) for b, w in micro]
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
        if not (config.max_minutes and config.cooldown) or taken < _PACE:
            return
        cooldown = min(config.cooldown, config.max_steps)
        pace = (self.seconds - seconds) / taken
        room = (60 * config.max_minutes - self.seconds) / pace
        fits = int(_RESERVE * room)
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
        """The step's loss, nll and gradient norm, summed over all
        processes. The same exchange sets seconds, by process 0's clock,
        and stopping, where any process has set stop. PeerError, in all
        processes but the first, where one of the three is not finite.
        """
        # three numbers, but the device is waited for only once
        loss, nll, size = torch.stack([*means, full_tensor(norm)]).tolist()
        spent = self.clock + time.perf_counter() - self.started
        agreed = [0.0 if rank() else spent, float(self.stop)]
        shared = torch.tensor([loss, nll, *agreed], dtype=torch.float64)
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
        return {
            "processes": world_size(),
            "micro_tokens": self.config.micro_tokens,
            "compile": self.config.compile,
        }

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
        parts = {
            name: own_part(weights[name], parameter)
            for name, parameter in self.parameters().items()
        }
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
_PACE = 20  # steps that tell it
_RESERVE = 0.97  # of the steps that fit into the minutes left
