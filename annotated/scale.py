"""annotated.scale.

Exported from the book; edit the chapter, then run `make export`.

- 19-scale.md: Scale: many devices, and what a run costs
"""

from __future__ import annotations

import gc
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from annotated.batches import Batch
from annotated.model import Transformer, TransformerConfig, count_parameters
from annotated.recipes import RECIPES, Recipe, RunError
from annotated.training import (
    Elsewhere,
    Loss,
    Result,
    Team,
    TrainingConfig,
    TrainingError,
    batch_loss,
)

__all__ = [
    "Processes",
    "LOST",
    "join",
    "forward_flops",
    "step_flops",
    "kept_bytes",
    "state_bytes",
    "device_bytes",
    "with_pieces",
    "P100",
    "PAPER_HOURS",
    "paper_cost",
    "useful_share",
    "matmul_speed",
    "ASSUMED_SHARE",
    "dry_run",
]


# 19-scale.md: Talking while computing
class _BatchLoss(nn.Module):
    """batch_loss as a module: DDP and FSDP watch calls of forward."""

    def __init__(self, model: Transformer, config: TrainingConfig):
        super().__init__()
        self.model, self.config = model, config

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, int]:
        return batch_loss(self.model, batch, self.config)


def _sum_up(gradients: Tensor) -> Any:
    """The exchange of a bucket: a sum, not a mean."""
    work = dist.all_reduce(gradients, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


class Processes(Team):
    """Several processes that train one model, each with its share of
    every batch; made by join.

    With shard, the weights, gradients and moments of Adam are spread over
    them as well (FSDP).
    """

    def __init__(self, shard: bool = False):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.shard = shard
        self.exchange: Callable[[bool], AbstractContextManager[Any]]

    def wrap(self, model: Transformer, config: TrainingConfig) -> Loss:
        module = _BatchLoss(model, config)
        if self.shard:
            self.exchange = _shard(module)
            return module
        # the table of positions grows as each process needs it
        own = [name for name, _ in module.named_buffers()]
        leave = "_set_params_and_buffers_to_ignore_for_model"
        getattr(DistributedDataParallel, leave)(module, own)
        ddp = DistributedDataParallel(module, gradient_as_bucket_view=True)
        ddp.register_comm_hook(
            None, lambda state, bucket: _sum_up(bucket.buffer())
        )
        self.exchange = lambda last: (
            nullcontext() if last else ddp.no_sync()
        )
        return ddp

    def adding_up(self, last: bool) -> AbstractContextManager[Any]:
        return self.exchange(last)

    def sum(self, numbers: Tensor) -> Tensor:
        with _in_touch():
            total = numbers.clone()
            dist.all_reduce(total)
        return total

    def first(self, action: Callable[[], Result]) -> Result | None:
        return self._act(self.rank == 0, action)

    def in_turn(self, action: Callable[[], Result]) -> Result:
        one = self._act(self.rank == 0, action)
        other = self._act(self.rank > 0, action)
        result: Any = one if self.rank == 0 else other
        return result

    def _act(
        self, mine: bool, action: Callable[[], Result]
    ) -> Result | None:
        """Act where it is mine to do. A failure anywhere is everyone's."""
        result, failure = None, None
        if mine:
            try:
                result = action()
            except BaseException as error:
                failure = error
        failed = self.sum(torch.tensor(float(failure is not None)))
        if failure is not None:
            raise failure
        if failed.item():
            raise Elsewhere("another process has failed")
        return result

    def _from_all(self, own: Any) -> list[Any]:
        everyone: list[Any] = [None] * self.size
        with _in_touch():
            dist.all_gather_object(everyone, own)
        return everyone

    def interleave(self, own: list[Result]) -> list[Result]:
        everyone = self._from_all(own)
        result: list[Any] = [None] * sum(map(len, everyone))
        for rank, theirs in enumerate(everyone):
            result[rank :: self.size] = theirs
        return result

    def check_same(self, facts: dict[str, int]) -> None:
        everyone = self._from_all(facts)
        for rank, theirs in enumerate(everyone):
            for name, value in theirs.items():
                if value != everyone[0][name]:
                    kind = Elsewhere if self.rank else TrainingError
                    raise kind(
                        f"process {rank} has another {name} than process "
                        "0: give all the same files and options"
                    )

    def whole(self, tensor: Tensor) -> Tensor:
        if not self.shard or not hasattr(tensor, "full_tensor"):
            return tensor
        full: Tensor = tensor.full_tensor()
        return full

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        return _part_of(tensor, like) if self.shard else tensor


# 19-scale.md: What can go wrong between processes
LOST = re.compile(r"gloo|nccl|connection|socket|peer|timed? ?out", re.I)


@contextmanager
def _in_touch() -> Iterator[None]:
    """TrainingError where another process cannot be reached any more."""
    try:
        yield
    except RuntimeError as error:
        if not LOST.search(str(error)):
            raise
        reason = str(error).split("\n")[0][:160]
        raise TrainingError(
            "another process of this run has gone or does not answer; its "
            "own last words say why. The checkpoints are whole: start all "
            f"processes again, with --resume ({reason})"
        ) from error


@contextmanager
def join(
    device: str | None = None, shard: bool = False, minutes: float = 60
) -> Iterator[tuple[Team, str | None]]:
    """The team in which torchrun has started this process, and the device
    that is this process's own.

    minutes is how long one process waits for another, which may be busy
    with a corpus. Raises RunError where no team comes about, and
    TrainingError where one falls apart.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        if shard:
            raise RunError("shard needs several processes: use torchrun")
        yield Team(), device
        return
    own = _own_device(device)
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if own != "cpu" else "gloo",
            timeout=timedelta(minutes=minutes),
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"no team of processes: {reason}") from None
    with _in_touch():
        yield Processes(shard), own
    gc.collect()  # a DDP that outlives its group stands still in torch 2.3
    # after a failure the others may be gone: nobody to say goodbye to
    dist.destroy_process_group()


def _own_device(device: str | None) -> str:
    """The device of this process: where there are GPUs, one for each."""
    if device is None and torch.cuda.is_available():
        device = "cuda"
    if device != "cuda":
        return device or "cpu"
    local, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local >= there:
        raise RunError(
            f"{local + 1} or more processes on this machine, but {there} "
            f"GPUs: start {there}, or use --device cpu"
        )
    torch.cuda.set_device(local)
    return f"cuda:{local}"


# 19-scale.md: Weights that do not fit
def _shard(
    module: _BatchLoss,
) -> Callable[[bool], AbstractContextManager[Any]]:
    """Spread the weights over the processes; returns what adding_up does.
    RunError where this PyTorch cannot.
    """
    if torch.__version__ < "2.9":
        raise RunError(f"shard needs PyTorch 2.9, not {torch.__version__}")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    model = module.model
    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    spread = [m for m in module.modules() if isinstance(m, FSDPModule)]
    for one in spread:
        one.set_gradient_divide_factor(1.0)  # a sum, not a mean
        one.set_force_sum_reduction_for_comms(True)  # gloo has no other

    def adding_up(last: bool) -> AbstractContextManager[Any]:
        for one in spread:
            one.set_requires_gradient_sync(last, recurse=False)
        return nullcontext()

    return adding_up


def _part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's part of a whole tensor, spread as like is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(
        tensor.to(like.device),
        like.device_mesh,
        like.placements,
        src_data_rank=None,  # everyone has it all: nothing to send
    )


# 19-scale.md: What a step costs
def forward_flops(config: TransformerConfig, length: int = 28) -> float:
    """Floating-point operations of a forward pass for one source and one
    target token, in sentences of length tokens.
    """
    d, h = config.d_model, config.num_heads
    both = h * (config.key_size + config.value_size)
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    attention, feed = 2 * d * both, 2 * d * config.d_ff
    source = encoder * (attention + feed) + decoder * d * both
    target = decoder * (attention + d * both + feed)
    target += d * config.tgt_vocab
    # the decoder's own half is masked: on average half the keys
    mixing = (encoder + 1.5 * decoder) * both * length
    return 2 * (source + target + mixing)


def step_flops(recipe: Recipe, length: int = 28) -> float:
    """Of a training step: forward, and twice as much backward."""
    config = recipe.model_config(recipe.vocab, recipe.vocab)
    return 3 * recipe.batch_tokens * forward_flops(config, length)


# 19-scale.md: Memory
def kept_bytes(
    config: TransformerConfig, length: int = 28, precision: str = "float32"
) -> float:
    """About what the forward pass keeps for the backward pass, of one
    source and one target token.
    """
    d, h = config.d_model, config.num_heads
    both = h * (config.key_size + config.value_size)
    attention = 3 * d + 2.5 * both + h * length
    feed = 3 * d + config.d_ff
    encoder = config.num_encoder_layers * (attention + feed)
    decoder = config.num_decoder_layers * (2 * attention + feed)
    size = 2.5 if precision == "bfloat16" else 4
    return size * (encoder + decoder + 8 * d)


def state_bytes(config: TransformerConfig) -> int:
    """Of the weights, their gradients and Adam's two moments."""
    return 16 * count_parameters(config)


def device_bytes(device: str) -> float:
    """The memory of a device; of a CPU, this process's share of it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # not on every system
        return math.inf
    return whole / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def with_pieces(recipe: Recipe, device: str, team: Team) -> Recipe:
    """The recipe, with micro_tokens set where a process's share of a batch
    would fill more than two thirds of its device's memory.
    """
    if recipe.micro_tokens is not None:
        return recipe
    config = recipe.model_config(recipe.vocab, recipe.vocab)
    state = state_bytes(config)
    room = device_bytes(device) * 2 / 3 - state
    fits = max(500, room / kept_bytes(config, precision=recipe.precision))
    if fits >= recipe.batch_tokens / team.size:
        return recipe
    return replace(recipe, micro_tokens=int(fits))


# 19-scale.md: The cost model of Table 2
P100 = 9.5e12  # sustained operations a second, by footnote 5
PAPER_HOURS = {"base": 12.0, "big": 84.0}  # §5.2, on eight of them


def paper_cost(hours: float, gpus: int = 8, speed: float = P100) -> float:
    """Table 2's measure of a training: time × GPUs × speed."""
    return hours * 3600 * gpus * speed


def useful_share(size: str) -> float:
    """What the model needs, of what the paper's machine could have done;
    size is base or big.
    """
    recipe = RECIPES[f"wmt14-en-de-{size}"]
    needed = step_flops(recipe) * recipe.max_steps
    return needed / paper_cost(PAPER_HOURS[size])


def matmul_speed(
    device: str, precision: str = "float32", budget: float = 0.5
) -> float:
    """Operations a second in a large matrix product, at best."""
    kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
    gpu = torch.device(device).type == "cuda"
    n = 8192 if gpu else 1024
    a = torch.randn(n, n, device=device).to(kind)
    best, end = math.inf, time.perf_counter() + budget
    while True:
        start = time.perf_counter()
        (a @ a)[0, 0].item()  # waits for the device
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            return 2 * n**3 / best


# 19-scale.md: Before you pay
ASSUMED_SHARE = 0.4  # of a matrix product's speed, in a training step


def dry_run(recipe: Recipe, device: str) -> str:
    """What a recipe would take on this device and on the paper's machine.
    Reads no data.
    """
    config = recipe.model_config(recipe.vocab, recipe.vocab)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    share = recipe.batch_tokens / processes
    piece = min(share, recipe.micro_tokens or share)
    step = step_flops(recipe)
    total = step * recipe.max_steps
    speed = matmul_speed(device, recipe.precision)
    size = "big" if recipe.d_model >= 1024 else "base"
    fast = total / (speed * processes) / 3600
    kept = piece * kept_bytes(config, precision=recipe.precision)
    rows = {
        "model": f"{count_parameters(config):,} parameters",
        "step": f"{recipe.batch_tokens:,} source and target tokens",
        "memory": f"{_gib(state_bytes(config))} for weights, gradients "
        f"and moments, {_gib(kept)} for {piece:,.0f} tokens at once, of "
        f"{_gib(device_bytes(device))}",
        "operations": f"{step:.2e} a step, {total:.2e} in "
        f"{recipe.max_steps:,} steps",
        "here": f"{speed / 1e12:.2f} TFLOP/s in matrix products on "
        f"{processes} × {device}",
        "hours here": f"{fast / ASSUMED_SHARE:,.1f}, at "
        f"{ASSUMED_SHARE:.0%} of that speed; {fast:,.1f} at all of it",
        "hours, 8 × P100": f"{_paper_hours(total, size):,.1f}, used as "
        f"well as for the paper's {size} model",
        "cost by Table 2": f"{paper_cost(_paper_hours(total, size)):.1e} "
        "operations",
    }
    return "\n".join(f"{name:16}{value}" for name, value in rows.items())


def _paper_hours(total: float, size: str) -> float:
    return total / (useful_share(size) * paper_cost(1.0))


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"
