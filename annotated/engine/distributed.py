"""annotated.engine.distributed.

Exported from the book; edit the chapter, then run `make export`.

- 19-scale.md: Scale: many devices, and what a run costs
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from annotated.batches import Batch
from annotated.engine.errors import Elsewhere, RunError, TrainingError
from annotated.model import Transformer
from annotated.training import (
    Loss,
    Result,
    Team,
    TrainingConfig,
    batch_loss,
)

__all__ = ["Processes", "LOST", "join"]


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
