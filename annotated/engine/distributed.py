"""Exported from the book; edit the chapter, then run `make export`."""

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
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from annotated.engine.errors import PeerError, RunError, TrainingError

__all__ = [
    "Result", "rank", "world_size", "process_group", "step_group", "LOST",
    "all_reduce_sum", "all_gather", "rank_zero_only", "rank_zero_first",
    "check_same", "NoSync", "data_parallel", "on_rank_zero", "full_tensor",
    "own_part",
]  # fmt: skip


# E4-distributed.md: Ranks and groups
Result = TypeVar("Result")


def rank() -> int:
    """The number of this process; 0 when alone."""
    return dist.get_rank() if _several() else 0


def world_size() -> int:
    """How many processes work together."""
    return dist.get_world_size() if _several() else 1


def _several() -> bool:
    return dist.is_available() and dist.is_initialized()


@contextmanager
def process_group(
    device: str | None = None, minutes: float = 60
) -> Iterator[str | None]:
    """Join the processes that torchrun has started, which wait for each
    other so many minutes; yields the device that is this one's own. Alone,
    it yields device and does nothing. RunError where no group comes about,
    TrainingError where one falls apart.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield device
        return
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
        raise RunError(f"no group of processes: {reason}") from None
    with _in_touch():
        yield own
    gc.collect()  # a DDP that outlives its group stands still in torch 2.3
    # after a failure the others may be gone: nobody to say goodbye to
    dist.destroy_process_group()


def _fresh_part(store: dist.Store, me: int, size: int) -> dist.Store:
    """A part of a store where no earlier processes have left anything."""
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


def step_group(minutes: float) -> dist.ProcessGroup | None:
    """A group of all processes for what they do at every step, in which
    none waits longer than minutes. None when alone.
    """
    if world_size() == 1:
        return None
    return dist.new_group(timeout=timedelta(minutes=minutes))


# E4-distributed.md: Numbers and objects
LOST = re.compile(r"gloo|nccl|connection|socket|peer|timed? ?out", re.I)


@contextmanager
def _in_touch() -> Iterator[None]:
    """TrainingError where another process cannot be reached any more."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, TrainingError) or not LOST.search(str(error)):
            raise
        reason = str(error).split("\n")[0][:160]
        raise TrainingError(
            "another process of this run has gone or does not answer; its "
            "own last words say why. The checkpoints are whole: start all "
            f"processes again, with --resume ({reason})"
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


def all_gather(own: Result) -> list[Result]:
    """What each process has, in the order of their ranks."""
    everyone: list[Any] = [own] * world_size()
    if world_size() > 1:
        with _in_touch():
            dist.all_gather_object(everyone, own)
    return everyone


def rank_zero_only(action: Callable[[], Result]) -> Result | None:
    """Process 0 acts, the others wait; its failure is everyone's."""
    return _act(rank() == 0, action)


def rank_zero_first(action: Callable[[], Result]) -> Result:
    """Process 0 acts, and after it all the others."""
    results: Any = _act(rank() == 0, action), _act(rank() > 0, action)
    return results[min(rank(), 1)]


def _act(mine: bool, action: Callable[[], Result]) -> Result | None:
    """Act where it is mine to do. A failure anywhere is everyone's."""
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
    """TrainingError, naming the fact, unless all processes have the same.
    Process 0 tells it; the others end with PeerError.
    """
    everyone = all_gather(facts)
    for r, theirs in enumerate(everyone):
        for name, value in theirs.items():
            if value != everyone[0][name]:
                kind = PeerError if rank() else TrainingError
                raise kind(
                    f"process {r} has another {name} than process 0: give "
                    "all the same files and options"
                )


# E4-distributed.md: Summing gradients
NoSync = Callable[[], AbstractContextManager[Any]]


def data_parallel(
    module: nn.Module,
    group: dist.ProcessGroup | None,
    shard: Sequence[nn.Module] = (),
) -> tuple[nn.Module, NoSync]:
    """The module, after whose backward pass each process has the sum of
    all gradients; and a context in which gradients are not exchanged.
    Where shard names layers, weights, gradients and Adam's moments are
    spread over the processes, a layer at a time (FSDP).
    """
    if group is None:
        return module, nullcontext
    if shard:
        return module, _fully_sharded(module, shard, group)
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
    """A sum over all processes, not a mean, while others compute."""
    work = dist.all_reduce(gradients, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


# E4-distributed.md: Sharded weights
def _fully_sharded(
    module: nn.Module,
    layers: Sequence[nn.Module],
    group: dist.ProcessGroup,
) -> NoSync:
    """Spread a module's weights. RunError where this PyTorch cannot."""
    if torch.__version__ < "2.9":  # TorchVersion: 2.10 comes after 2.9
        raise RunError(f"shard needs PyTorch 2.9, not {torch.__version__}")
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    device = next(module.parameters()).device.type
    mesh = DeviceMesh.from_group(group, device)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    spread = [m for m in module.modules() if isinstance(m, FSDPModule)]
    for one in spread:
        one.set_gradient_divide_factor(1.0)  # a sum, not a mean
        one.set_force_sum_reduction_for_comms(True)  # gloo has no other

    @contextmanager
    def no_sync() -> Iterator[None]:
        for one in spread:
            one.set_requires_gradient_sync(False, recurse=False)
        yield
        for one in spread:
            one.set_requires_gradient_sync(True, recurse=False)

    return no_sync


def on_rank_zero(tensor: Tensor) -> Tensor:
    """The whole of a tensor, on the CPU of process 0; what the other
    processes get is empty where the tensor is spread.
    """
    whole = full_tensor(tensor.detach())
    if hasattr(tensor, "full_tensor") and rank() > 0:
        return torch.empty(0)
    return whole.cpu().contiguous()


def full_tensor(tensor: Any) -> Tensor:
    """The whole of a tensor that is spread; any other as it is."""
    spread = hasattr(tensor, "full_tensor")
    return tensor.full_tensor() if spread else tensor


def own_part(tensor: Tensor, like: Any) -> Tensor:
    """This process's part of a whole tensor, spread as like is."""
    if not hasattr(like, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    whole, mesh = tensor.to(like.device), like.device_mesh
    # everyone has it all: nothing to send
    return distribute_tensor(
        whole, mesh, like.placements, src_data_rank=None
    )
