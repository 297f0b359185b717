"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from annotated import training
from annotated.batches import Batch, Corpus
from annotated.corpora.segmentation import SegmentedCorpus
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
    RunError,
    TrainingError,
    UsageError,
    check_fields,
)
from annotated.engine.hooks import used_weights
from annotated.engine.machine import HALF, evaluating, set_up
from annotated.engine.micro import PackedBatch, micro_batches
from annotated.engine.optimizers import rehearse
from annotated.engine.packing import (
    PackedTransformer,
    chunked_loss,
    compile_layers,
)
from annotated.engine.parts import (
    OURS,
    asks_for_maps,
    find_registered,
    own_code,
    sources,
    trainable,
)
from annotated.loss import smoothed_loss
from annotated.model import Transformer
from annotated.schedule import (
    cooldown_factor,
    make_optimizer,
    set_learning_rate,
)
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
    loss: str = "smoothed"  # or one of your own, from --import
    optimizer: str = "adam"  # or one of your own
    schedule: str = "paper"  # of the learning rate; or one of your own
    batching: str = "paper"  # which pairs meet; or one of your own
    # number format of the layers; auto picks the fastest here
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # maximum minutes of training; a cool-down ends with them
    max_minutes: float | None = None
    compile: bool = False  # torch.compile each layer (for a GPU)
    # merges left out of byte pairs, anew in each epoch (training only)
    bpe_dropout: float = 0.0
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
        for kind, ours in OURS.items():
            if (name := getattr(self, kind, ours)) != ours:
                find_registered(kind, name)
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
    model: Transformer, batch: Batch, config: RunConfig
) -> tuple[Tensor, Tensor]:
    """training.batch_loss, without padding and in config's precision: two
    scalars in nats, the training loss and the negative log-likelihood of
    the labels, each a sum over the batch's target tokens (no mean). A
    model that is not packed computes its logits with the padding.
    """
    half, device = HALF.get(config.precision), batch.src.device.type
    b, own = PackedBatch.of(batch), config.loss != OURS["loss"]
    labels, e = b.target.pack(b.labels), model.embeddings
    seen = used_weights(model) if asks_for_maps(config.loss) else None
    with (
        torch.autocast(device, half) if half else nullcontext(),
        seen or nullcontext() as maps,
    ):
        if isinstance(model, PackedTransformer):
            x, _ = model.hidden(b.src, b.tgt, b.source, b.target)
            logits = e.logits(x) if own else x
        else:
            logits = b.target.pack(model(b.src, b.tgt))
    if own:
        more = {} if maps is None else {"maps": _of_tokens(maps, b)}
        return _own_loss(logits, labels, config, **more)
    if isinstance(model, PackedTransformer):
        x, how = logits.to(half or logits.dtype), config.label_smoothing
        return chunked_loss(x, e.output, labels, how, bias=e.bias)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return smoothed_loss(wide, labels, config.label_smoothing)


def _of_tokens(
    maps: dict[str, Tensor], batch: PackedBatch
) -> dict[str, Tensor]:
    """The maps with zeros in the rows of padding."""
    sides = {"encoder": batch.source}
    return {
        name: weights * side.real[:, None, :, None]
        for name, weights in maps.items()
        for side in [sides.get(name.partition(".")[0], batch.target)]
    }


def _optimizer(
    model: nn.Module, config: RunConfig
) -> torch.optim.Optimizer:
    """The optimizer that config names."""
    if config.optimizer == OURS["optimizer"]:
        return make_optimizer(model.parameters())
    name = config.optimizer
    with own_code("optimizer", name):
        make = find_registered("optimizer", name).make
        own = make(dict(model.named_parameters()), config)
    if not isinstance(own, torch.optim.Optimizer):
        raise RunError(
            f"optimizer {name} returned {own!r}, not one of torch.optim"
        )
    return own


def _own_loss(
    logits: Tensor, labels: Tensor, config: RunConfig, **more: Any
) -> tuple[Tensor, Tensor]:
    """The sums of a registered loss, given more, and of the nll."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    with own_code("loss", config.loss):
        own = find_registered("loss", config.loss)
        loss = own.make(wide, labels, config, **more)
    fine = isinstance(loss, Tensor)
    if not fine or loss.shape != labels.shape:
        what = tuple(loss.shape) if fine else type(loss).__name__
        raise RunError(
            f"loss {config.loss} returned {what}, not a number for each of "
            f"{len(labels)} tokens"
        )
    if wide.requires_grad and not loss.requires_grad:
        raise RunError(
            f"loss {config.loss} does not depend on the logits: nothing "
            "can be learned from it"
        )
    nll = F.cross_entropy(wide.detach(), labels, reduction="sum")
    return loss.sum(), nll


class _Loss(nn.Module):
    """packed_loss as a module, since DDP and FSDP hook into forward."""

    def __init__(self, model: Transformer, config: RunConfig):
        super().__init__()
        self.model, self.config = model, config

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return packed_loss(self.model, batch, self.config)


# E5-trainer.md: A range that is too small
def _gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of all gradients together, which stay as they are."""
    grads = [p.grad for p in parameters if p.grad is not None]
    norms = torch._foreach_norm(grads) if grads else [torch.zeros(())]
    return torch.linalg.vector_norm(torch.stack([*norms]))


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
        norm = full_tensor(_gradient_norm(parameters))
        fine = math.isfinite(norm.item())
        if not fine and self.scale > self.min_scale:
            self.scale, self.calm = self.scale / 2, 0
            self.overflows += 1
            return False
        grads = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_mul_(grads, 1 / self.scale)  # exact: powers of two
        self.calm += 1
        if self.calm == self.patience:
            self.scale, self.calm = self.scale * 2, 0
        return True


# E5-trainer.md: Short sentences first
def _short_first(
    plan: list[NDArray], lengths: NDArray, steps: int, seed: int
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
        index = int(draw.integers(len(pool)))
        pool[index], pool[-1] = pool[-1], pool[index]
        first.append(pool.pop())
    early = set(first)
    rest = (i for i in range(len(plan)) if i not in early)
    return [plan[i] for i in (*first, *rest)]


# E5-trainer.md: Batches of your own
def _own_batches(
    corpus: Corpus, config: RunConfig, epoch: int
) -> list[NDArray]:
    """The batches of a registered batching, each with some pairs."""
    with own_code("batching", config.batching):
        make = find_registered("batching", config.batching).make
        plan = [np.asarray(pairs) for pairs in make(corpus, config, epoch)]
    last = len(corpus) - 1
    for i, pairs in enumerate(plan):
        fine = pairs.ndim == 1 and len(pairs) and pairs.dtype.kind in "iu"
        if not fine or pairs.min() < 0 or pairs.max() > last:
            raise RunError(
                f"batching {config.batching}: batch {i} of epoch {epoch} "
                f"is not a row of numbers of pairs, from 0 to {last}"
            )
    if not plan:
        raise RunError(
            f"batching {config.batching}: epoch {epoch} has no batch"
        )
    return [pairs.astype(np.int64) for pairs in plan]


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
        fast, self.padded = trainable(model, config.loss)
        if config.bpe_dropout and not isinstance(corpus, SegmentedCorpus):
            raise ValueError("bpe_dropout needs a SegmentedCorpus")
        super().__init__(fast, corpus, config)
        set_up(str(self.device))
        _freeze(fast, config.freeze)
        self.check_same()
        self.group = step_group(self.step_minutes)
        if config.compile:
            compile_layers(fast)
        layers = [*fast.encoder.layers, *fast.decoder.layers]
        self.loss, self.no_sync = data_parallel(
            _Loss(fast, config),
            self.group,
            layers if shard else (),
            HALF.get(config.precision),
        )
        # only now: sharding replaces the parameters
        self.optimizer = _optimizer(fast, config)
        half = config.precision == "float16"
        self.scaling = _LossScale() if half else None
        self.stop = self.stopping = False
        self.clock = self.started = 0.0  # of this process
        self.planned = config  # before fit_end
        self.since = 0, 0.0  # the step and time that the pace counts from
        self.unread: list[_Step] = []  # see look
        self.bad = torch.zeros((), device=self.device)  # 1: not finite

    def rate(self, step: int) -> float:
        config, d_model = self.config, self.model.config.d_model
        if config.schedule == OURS["schedule"]:
            return super().rate(step)
        with own_code("schedule", config.schedule):
            own = find_registered("schedule", config.schedule).make
            rate = float(own(step, config, d_model))
        if not 0 <= rate < math.inf:
            raise RunError(
                f"schedule {config.schedule}: the rate of step {step} is "
                f"{rate:g}, not a number >= 0"
            )
        last = config.max_steps
        return rate * cooldown_factor(step, last, config.cooldown)

    def plan(self, epoch: int) -> list[NDArray]:
        if self.config.batching == OURS["batching"]:
            plan = super().plan(epoch)
        else:
            plan = _own_batches(self.corpus, self.config, epoch)
        if epoch > 0 or not self.config.curriculum:
            return plan
        src, tgt = self.corpus.src.lengths, self.corpus.tgt.lengths
        config, lengths = self.config, np.maximum(src, tgt)
        return _short_first(plan, lengths, config.curriculum, config.seed)

    def order(self) -> dict[str, int]:
        steps, own = self.config.curriculum, self.config.batching
        order = super().order() | ({"curriculum": steps} if steps else {})
        if own != OURS["batching"]:
            order["batching"] = zlib.crc32(own.encode())
        return order

    def check_same(self) -> None:
        """TrainingError unless all processes are in the same state."""
        if world_size() == 1:
            return
        both = self.config, self.model.config
        settings = repr((*both, sources(*both))).encode()
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

    def batches(self) -> Iterator[tuple[_Work, tuple[int, int]]]:
        """The batches from here on, each with the place after it."""
        epoch, place, step = self.epoch, self.batch_index, self.step
        while True:
            plan = self.plan(epoch)
            for i in range(place, len(plan)):
                if (step := step + 1) > self.config.max_steps:
                    return
                last = i + 1 == len(plan)
                after = (epoch + 1, 0) if last else (epoch, i + 1)
                yield self.drawn(plan[i], epoch, i), after
            epoch, place = epoch + 1, 0

    def drawn(self, pairs: NDArray, epoch: int, index: int) -> _Work:
        """A batch of an epoch; with bpe_dropout, in tokens of its own."""
        p, corpus = self.config.bpe_dropout, self.corpus
        if not p or not isinstance(corpus, SegmentedCorpus):
            return self.batch(pairs)
        seed = self.config.seed, epoch, index
        return self.batch(
            np.arange(len(pairs)), corpus.redrawn(pairs, p, seed)
        )

    def batch(self, pairs: NDArray, corpus: Corpus | None = None) -> _Work:
        """These pairs of a corpus, unless given of the trainer's own."""
        corpus = self.corpus if corpus is None else corpus
        micro = micro_batches(corpus, pairs, self.config.micro_tokens)
        if (kind := self.device.type) != "cpu":
            micro = [(b.together(kind == "cuda"), w) for b, w in micro]
        starts = corpus.tgt.starts
        words = int((starts[pairs + 1] - starts[pairs]).sum())
        return _Work(micro, words + len(pairs))

    # E5-trainer.md: Numbers that are waited for
    @property
    def late(self) -> bool:
        """Whether steps do not wait for their numbers."""
        skips = getattr(self.optimizer, "_step_supports_amp_scaling", False)
        return self.device.type == "cuda" and skips

    def steps(self) -> Iterator[Progress]:
        """training.Trainer.steps, also bounded by max_minutes."""
        limit = 60 * (self.config.max_minutes or math.inf)
        if self.step == 0:  # what cannot be saved is refused now
            self.rehearse()
        self.bad.zero_()
        works = _ahead(self.batches())
        while self.step < self.config.max_steps and self.seconds < limit:
            started, before = time.perf_counter(), self.counters()
            work, after = next(works)
            step = _Step(self.learn(work), before)
            self.epoch, self.batch_index = after
            self.tokens += work.tokens
            self.unread.append(step)
            ends = self.step == self.config.max_steps
            if not self.late or ends or self.step % _LOOK == 0:
                self.look()
            self.clock += time.perf_counter() - started
            self.fit_end()
            yield self.progress(step, before["epoch"])
        self.look()

    def counters(self) -> dict[str, Any]:
        names = "step", "epoch", "batch_index", "tokens", "seconds"
        return {name: getattr(self, name) for name in names}

    def progress(self, step: _Step, epoch: int) -> Progress:
        known: dict[str, Any] = {
            "step": self.step, "epoch": epoch, "tokens": self.tokens,
            "seconds": self.seconds, "rate": self.rate(self.step),
        }  # fmt: skip
        if step.row is not None:
            known |= zip(_NUMBERS, step.row)
            return Progress(**known)
        return _LateProgress(lambda: self.read(step), **known)

    def read(self, step: _Step) -> list[float]:
        self.look()
        assert step.row is not None
        return step.row

    def look(self) -> None:
        """Wait for the numbers of all steps so far. If those of one are
        not finite, the trainer is as it was before that step: then
        TrainingError, or PeerError in all processes but the first.
        """
        unread, self.unread = self.unread, []
        if not unread:
            return
        rows = torch.stack([step.numbers for step in unread]).tolist()
        for step, row in zip(unread, rows):
            if not np.isfinite(row).all():
                vars(self).update(step.before)
                self.refuse(row)
            step.row = row

    def refuse(self, row: list[float]) -> None:
        """The error of a step with these numbers."""
        if rank():  # process 0 reports it
            raise PeerError("not finite")
        raise TrainingError(self.trouble(*row))

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

    def learn(self, work: Any) -> Any:
        """As in training.Trainer, for what batch returns; the three
        numbers are a tensor. If late, what is not finite sets bad instead
        of raising TrainingError.
        """
        seed_dropout(self.config.seed, self.step)
        self.model.train()
        self.optimizer.zero_grad()
        numbers = self.collect(self.gradient(work), self.clip())
        if self.late:
            bad = ~numbers.isfinite().all()
            self.bad = torch.maximum(self.bad, bad.float())
            vars(self.optimizer)["found_inf"] = self.bad
        elif not np.isfinite(row := numbers.tolist()).all():
            self.refuse(row)
        self.step += 1
        set_learning_rate(self.optimizer, self.rate(self.step))
        self.optimizer.step()
        return numbers

    def clip(self) -> Tensor:
        """Clip the gradients, if configured; their norm before that."""
        parameters, limit = self.model.parameters(), self.config.clip
        if limit is None:
            return _gradient_norm(parameters)
        return torch.nn.utils.clip_grad_norm_(parameters, limit)

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

    def collect(self, means: Tensor, norm: Tensor) -> Tensor:
        """The step's loss, nll and gradient norm (3,), the first two
        summed over all processes; on the CPU unless late. Sets seconds,
        by process 0's clock, and stopping, where any has set stop.
        """
        # three numbers, but the device is waited for only once
        numbers = torch.stack([*means, full_tensor(norm).to(means.device)])
        numbers = (numbers if self.late else numbers.cpu()).double()
        spent = self.clock + time.perf_counter() - self.started
        told = [0.0 if rank() else spent, float(self.stop)]
        agreed = torch.tensor(told, dtype=torch.float64)
        if self.late:
            sums = all_reduce_sum(numbers[:2], self.group)
            agreed = all_reduce_sum(agreed, self.group)
        else:
            shared = torch.cat([numbers[:2], agreed])
            sums, agreed = all_reduce_sum(shared, self.group).split(2)
        self.seconds, stop = agreed.tolist()
        self.stopping = stop > 0
        return torch.cat([sums, numbers[2:]])

    # E5-trainer.md: Validation and checkpoints
    def validate(self, corpus: Corpus) -> dict[str, float]:
        """training.validate, divided among the processes."""
        if not len(corpus):
            raise ValueError("the validation corpus is empty")
        self.look()
        plan = corpus.plan(self.config.batch_tokens, seed=0, epoch=0)
        both, weights, tokens = [], [], 0
        with evaluating(self.model):
            for work in _ahead(self.batch(pairs, corpus) for pairs in plan):
                tokens += work.tokens
                for batch, weight in work.micro:
                    loss, nll = self.loss(batch.to(self.device))
                    both.append(torch.stack([loss, nll]))
                    weights.append(weight)
        sums = torch.zeros(2, dtype=torch.float64)
        for weight, pair in zip(weights, torch.stack(both).cpu().double()):
            sums += weight * pair
        means = all_reduce_sum(sums) / tokens
        return training.scores(*means.tolist())

    def parameters(self) -> dict[str, nn.Parameter]:
        """By name: with shard this process's parts, whatever was computed
        before. A validation leaves some of them whole.
        """
        self.look()
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
        """The plain trainer's state, and what else the last bit of a step
        depends on: dropout's noise and the order of sums.
        """
        state = super().state()
        if self.scaling is not None:
            state["scaling"] = vars(self.scaling).copy()
        return state | {"bits": self._bits(), "ending": self.ending()}

    def _bits(self) -> dict[str, Any]:
        kernels = torch.backends.cpu.get_cpu_capability()
        if self.device.type == "cuda":
            kernels = torch.cuda.get_device_name(self.device)
        return {
            "processes": world_size(),
            "micro_tokens": self.config.micro_tokens,
            "compile": self.config.compile,
            "threads": torch.get_num_threads(),
            "device": f"{self.device.type} ({kernels})",
            "torch": str(torch.__version__),
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
        before, now = state.get("bits", {}), self._bits()
        self.changed = [n for n in now if before.get(n) != now[n]]

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


_Item = TypeVar("_Item")


def _ahead(source: Iterator[_Item]) -> Iterator[_Item]:
    """What source yields, each made while the one before is used."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, source, None)
        while (item := coming.result()) is not None:
            coming = reader.submit(next, source, None)
            yield item


# E5-trainer.md: Numbers that are waited for
_NUMBERS = "loss", "nll", "gradient_norm"
_LOOK = 10  # steps after which their numbers are read


@dataclass
class _Step:
    """A step whose numbers may not have been computed yet."""

    numbers: Tensor  # those of _NUMBERS
    before: dict[str, Any]  # the trainer's counters
    row: list[float] | None = None  # the numbers, once they are read


class _LateProgress(Progress):
    """A step's Progress. To read its loss, nll or gradient_norm is to wait
    for the device; TrainingError if it, or a step before, was not finite.
    """

    def __init__(self, read: Callable[[], list[float]], **known: Any):
        vars(self).update(known, read=read)

    def __getattr__(self, name: str) -> float:
        if name not in _NUMBERS:
            raise AttributeError(name)
        vars(self).update(zip(_NUMBERS, vars(self)["read"]()))
        return vars(self)[name]


# E5-trainer.md: Minutes that end the run
_PACE = 20  # steps that tell it
_RESERVE = 0.97  # of the steps that fit into the minutes left
