"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import gc
import inspect
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from annotated.engine.errors import (
    PeerError,
    RunError,
    TrainingError,
    UsageError,
)

__all__ = [
    "rank", "world_size", "alone", "process_group", "step_group",
    "all_reduce_sum", "all_gather", "rank_zero_only", "rank_zero_first",
    "check_same", "data_parallel", "reshard", "gather_on_rank_zero",
    "full_tensor", "own_part",
]  # fmt: skip


# E4-distributed.md: Ranks and groups
_Result = TypeVar("_Result")


def rank() -> int:
    """The rank of this process; 0 if it is the only one."""
    return dist.get_rank() if _several() else 0


def world_size() -> int:
    """The number of processes in this run."""
    return dist.get_world_size() if _several() else 1


_UNNOTICED: list[None] = []  # while alone


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and not _UNNOTICED


@contextmanager
def alone() -> Iterator[None]:
    """As if this process were the only one, while the others wait."""
    _UNNOTICED.append(None)
    try:
        yield
    finally:
        _UNNOTICED.pop()


@contextmanager
def process_group(
    device: str | None = None, minutes: float = 60
) -> Iterator[str | None]:
    """Join the processes that torchrun has started, with a timeout in
    minutes; yields this process's own device. A single process yields
    device and does nothing else. RunError if the group cannot be formed,
    TrainingError if it breaks.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield device
        return
    # not every build of torch has it
    from torch.distributed.rendezvous import rendezvous

    own = _own_device(device)
    try:
        patience = timedelta(minutes=minutes)
        store, me, size = next(rendezvous("env://", timeout=patience))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if own != "cpu" else "gloo",
            store=_fresh_part(store, me, size), rank=me, world_size=size,
            timeout=patience,
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"cannot form a process group: {reason}") from None
    with _in_touch():
        yield own
    gc.collect()  # a DDP that outlives its group hangs in torch 2.3
    # only on success: after a failure the others may be gone
    dist.destroy_process_group()


def _fresh_part(store: dist.Store, me: int, size: int) -> dist.Store:
    """A part of the store that no earlier processes have written to."""
    store.set(f"here/{me}", str(store.add("numbers", 1)))
    while True:
        here = [store.get(f"here/{r}") for r in range(size)]
        seen = b" ".join(here).decode()
        store.set(f"seen/{me}", seen)
        theirs = [store.get(f"seen/{r}").decode() for r in range(size)]
        if set(theirs) == {seen}:
            return dist.PrefixStore(seen, store)
        time.sleep(0.02)


def _own_device(device: str | None) -> str:
    """This process's device: if there are GPUs, one of its own."""
    if device is None and torch.cuda.is_available():
        device = "cuda"
    kind = (device or "cpu").split(":")[0]
    if device not in (None, kind):
        size = os.environ["WORLD_SIZE"]
        raise UsageError(
            f"--device {device} is one device for {size} processes: to "
            f"give each its own, use --device {kind}"
        )
    if kind != "cuda":
        return kind
    if not (there := torch.cuda.device_count()):
        raise RunError("no GPU here: use --device cpu")
    if "LOCAL_RANK" not in os.environ:
        raise RunError(
            "there is no LOCAL_RANK: start the processes with torchrun"
        )
    if (local := int(os.environ["LOCAL_RANK"])) >= there:
        raise RunError(
            f"at least {local + 1} processes on this machine, but {there} "
            f"GPUs: start {there} processes, or use --device cpu"
        )
    torch.cuda.set_device(local)
    return f"cuda:{local}"


def step_group(minutes: float) -> dist.ProcessGroup | None:
    """A group of all processes for the communication of a step, with a
    timeout in minutes. None if there is only one process.
    """
    if world_size() == 1:
        return None
    return dist.new_group(timeout=timedelta(minutes=minutes))


# E4-distributed.md: Numbers and objects
_LOST = re.compile(r"gloo|nccl|connection|socket|peer|timed? ?out", re.I)


@contextmanager
def _in_touch() -> Iterator[None]:
    """TrainingError if another process can no longer be reached."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, TrainingError) or not _LOST.search(str(error)):
            raise
        reason = str(error).split("\n")[0][:160]
        raise TrainingError(
            "another process of this run has died or does not respond; see "
            "its output for the cause. The checkpoints are intact: restart "
            f"all processes with --resume ({reason})"
        ) from error


def all_reduce_sum(
    tensor: Tensor, group: dist.ProcessGroup | None = None
) -> Tensor:
    """The sum of a tensor over all processes."""
    if world_size() == 1:
        return tensor
    total = tensor.clone()
    with _in_touch():
        dist.all_reduce(total, group=group)
    return total


def all_gather(own: _Result) -> list[_Result]:
    """The values of all processes, in rank order."""
    everyone: list[Any] = [own] * world_size()
    if world_size() > 1:
        with _in_touch():
            dist.all_gather_object(everyone, own)
    return everyone


def rank_zero_only(action: Callable[[], _Result]) -> _Result | None:
    """Run action in process 0; the others wait, and fail if it fails."""
    return _act(rank() == 0, action)


def rank_zero_first(action: Callable[[], _Result]) -> _Result:
    """Run action in process 0 first, then in all the others."""
    results: Any = _act(rank() == 0, action), _act(rank() > 0, action)
    return results[min(rank(), 1)]


def _act(mine: bool, action: Callable[[], _Result]) -> _Result | None:
    """Run action here if mine. A failure in any process fails all."""
    result, failure = None, None
    if mine:
        try:
            result = action()
        except BaseException as error:
            failure = error
    failed = all_reduce_sum(torch.tensor(float(failure is not None)))
    if failure is not None:
        raise failure
    if failed.item():
        raise PeerError("another process has failed")
    return result


def check_same(facts: dict[str, int]) -> None:
    """TrainingError, naming the fact, unless all processes agree. Process
    0 raises it; the others raise PeerError.
    """
    everyone = all_gather(facts)
    for r, theirs in enumerate(everyone):
        for name, value in theirs.items():
            if value != everyone[0][name]:
                kind = PeerError if rank() else TrainingError
                raise kind(
                    f"process {r} differs from process 0 in its {name}: "
                    "give all of them the same files and options"
                )


# E4-distributed.md: Summing gradients
_NoSync = Callable[[], AbstractContextManager[Any]]


def data_parallel(
    module: nn.Module,
    group: dist.ProcessGroup | None,
    shard: Sequence[nn.Module] = (),
    half: torch.dtype | None = None,
) -> tuple[nn.Module, _NoSync]:
    """Wrap a module so that backward sums the gradients of all processes;
    also returns a context in which they are not exchanged. If shard names
    layers, weights, gradients and Adam's moments are sharded over the
    processes, layer by layer (FSDP); half is the layers' precision.
    """
    if group is None:
        return module, nullcontext
    if shard:
        _fully_shard(module, shard, group, half)
        return module, nullcontext
    newer = "forward_sync_buffers"
    known = inspect.signature(DistributedDataParallel).parameters
    buffers: Any = {newer if newer in known else "broadcast_buffers": False}
    ddp = DistributedDataParallel(
        module, process_group=group, gradient_as_bucket_view=True, **buffers
    )
    ddp.register_comm_hook(
        None, lambda _, bucket: _sum_bucket(bucket.buffer(), group)
    )
    return ddp, ddp.no_sync


def _sum_bucket(gradients: Tensor, group: dist.ProcessGroup) -> Any:
    """Sum, not average, over all processes, while backward goes on."""
    work = dist.all_reduce(gradients, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


# E4-distributed.md: Sharded weights
def _fully_shard(
    module: nn.Module,
    layers: Sequence[nn.Module],
    group: dist.ProcessGroup,
    half: torch.dtype | None,
) -> None:
    """Shard a module's weights. RunError if PyTorch is too old."""
    if torch.__version__ < "2.9":  # TorchVersion: 2.10 comes after 2.9
        raise RunError(f"shard needs torch >= 2.9, not {torch.__version__}")
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import DeviceMesh

    for name, parameter in module.named_parameters():
        if not parameter.dim():
            raise RunError(
                f"shard divides tensors, and {name} is a single number: "
                "make it one of shape (1,)"
            )
    device = next(module.parameters()).device.type
    mesh = DeviceMesh.from_group(group, device)
    narrow = fsdp.MixedPrecisionPolicy(
        param_dtype=half,
        reduce_dtype=torch.float32 if half else None,
        cast_forward_inputs=False,  # autocast does
    )
    for layer in layers:
        # all but the norms, which compute in float32
        parts = [p for p in layer.children() if not _float32(p)]
        unit = parts if half else layer
        fsdp.fully_shard(unit, mesh=mesh, mp_policy=narrow)
    fsdp.fully_shard(module, mesh=mesh)
    for one in module.modules():
        if isinstance(one, fsdp.FSDPModule):
            one.set_gradient_divide_factor(1.0)  # a sum, not a mean
            one.set_force_sum_reduction_for_comms(True)  # gloo only sums


def _float32(part: nn.Module) -> bool:
    """Whether a part of a layer has no matrices."""
    return all(p.dim() < 2 for p in part.parameters())


def reshard(module: nn.Module) -> None:
    """Let go of weights that a forward pass has left whole."""
    for part in module.modules():
        free = getattr(part, "reshard", None)  # of FSDP alone
        if callable(free):
            free()


def gather_on_rank_zero(tensor: Tensor) -> Tensor:
    """The full tensor, on the CPU of process 0; the other processes get
    an empty one.
    """
    whole = full_tensor(tensor.detach())
    return torch.empty(0) if rank() else whole.cpu().contiguous()


def full_tensor(tensor: Any) -> Tensor:
    """The full tensor of a sharded one; any other unchanged."""
    spread = hasattr(tensor, "full_tensor")
    return tensor.full_tensor() if spread else tensor


def own_part(tensor: Tensor, like: Any) -> Tensor:
    """This process's shard of a full tensor, sharded as like is."""
    if not hasattr(like, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    whole, mesh = tensor.to(like.device), like.device_mesh
    # every process has all of it: nothing to send
    return distribute_tensor(
        whole, mesh, like.placements, src_data_rank=None
    )
