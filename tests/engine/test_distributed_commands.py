"""Pages E4 and E12: one command in several processes, what carries their
numbers, and who does what.
"""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from annotated import cli
from annotated.engine import distributed, log
from annotated.engine.checkpoints import checkpoints
from annotated.engine.distributed import (
    all_reduce_sum,
    process_group,
    rank,
)
from annotated.engine.errors import (
    RunError,
    Stopped,
    TrainingError,
    UsageError,
)
from annotated.engine.runner import train_recipe
from annotated.engine.runs import Run, read_metrics
from tests.engine.groups import (
    SHARDED_ONLY,
    in_processes,
    new_trainer,
    together,
)
from tests.helpers import TINY, environment

# --- recipes and the command line -----------------------------------------


def recipe_with_signal(folder: str) -> Any:
    note = log.Log.step

    def and_signal(log: Any, progress: Any) -> None:
        note(log, progress)
        if progress.step == 6 and rank() == 1:  # of one alone, and twice
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

    log.Log.step = and_signal
    try:
        train_recipe(TINY, Path(folder), device="cpu")
    except Stopped as stopped:
        return str(stopped), stopped.number
    return None


def test_a_signal_to_one_stops_all_with_a_checkpoint(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    found = together(2, recipe_with_signal, str(run))
    message = "stopped at step 7; continue with --resume"
    assert found == [(message, signal.SIGTERM)] * 2
    assert checkpoints(run / "checkpoints")[-1].name == "00000007"
    train_recipe(TINY, run, resume=True, device="cpu")
    train_recipe(TINY, tmp_path / "whole", device="cpu")
    curves = [
        [e["loss"] for e in read_metrics(folder) if "loss" in e]
        for folder in (run, tmp_path / "whole")
    ]
    assert curves[0] == pytest.approx(curves[1], abs=1e-4)


def launched(command: str) -> subprocess.CompletedProcess[str]:
    """What torchrun prints that starts the command twice."""
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2"
    done = subprocess.run(
        [sys.executable, *torchrun.split(), *command.split()],
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_torchrun_starts_the_same_command(tmp_path: Path) -> None:
    done = launched(
        f"-m annotated train copy --out {tmp_path} --device cpu "
        "--train-pairs 100 --num-encoder-layers 1 --num-decoder-layers 1 "
        "--d-model 16 --d-ff 16 --num-heads 2 --batch-tokens 200 "
        "--max-steps 4 --save-every 2"
    )
    summary = json.loads(done.stdout)  # one process speaks
    assert summary["processes"] == 2
    assert summary["steps"] == 4
    assert done.stderr.count("in 2 processes") == 1


DIES = """
import os, signal, torch
from annotated.engine.distributed import all_reduce_sum, process_group, rank

with process_group("cpu"):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    print(all_reduce_sum(torch.tensor(rank() + 1.0)).item(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    torch.__version__ < "2.5", reason="the launcher of 2.3 does not restart"
)
def test_started_again_processes_do_not_look_for_the_dead(
    tmp_path: Path,
) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    done = launched(f"--max-restarts 1 {tmp_path / 'dies.py'}")
    assert done.stdout.count("3.0") == 2


def test_a_store_that_outlives_processes_has_a_fresh_part_for_the_next() -> (
    None
):
    store = torch.distributed.HashStore()
    for delays in ((0, 0, 0), (0, 0.1, 0.05), (0.1, 0, 0)):
        with ThreadPoolExecutor(3) as threads:

            def join(me: int, delays: Any = delays) -> Any:
                time.sleep(delays[me])
                return distributed._fresh_part(store, me, 3)

            joined = list(threads.map(join, range(3)))
        # what one writes the others read, and nobody has written before
        assert not joined[0].check(["address"])
        joined[0].set("address", "here")
        assert all(part.get("address") == b"here" for part in joined)


def command_line(*words: str) -> tuple[object, str]:
    """The exit code of the command, and its complaint."""
    sys.argv = ["annotated", *words]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            cli.main()
        except SystemExit as stop:
            return stop.code, said.getvalue()
    return 0, said.getvalue()


def test_a_refusal_is_told_by_one_process(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    line = f"train copy --device cpu --out {tmp_path}"
    (code, said), other = in_processes(2, command_line, *line.split())
    assert code == 2
    assert said.count("\n") == 1 and "is not empty" in said
    assert other == (2, "")


def test_shard_wants_several(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="use torchrun"):
        train_recipe(TINY, tmp_path / "run", shard=True)
    assert not (tmp_path / "run").exists()


def test_more_processes_than_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RunError, match="but 1 GPUs: start 1"):
        distributed._own_device("cuda")


def test_a_gpu_that_is_not_there_is_said_not_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RunError, match="^no GPU here: use --device cpu$"):
        distributed._own_device("cuda")


def test_processes_that_torchrun_has_not_started_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """WORLD_SIZE may be set by hand, without what says which GPU is whose."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(RunError, match="no LOCAL_RANK: .* torchrun"):
        distributed._own_device("cuda")


def test_one_gpu_for_all_processes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """--device cuda:1 would put every process on the second GPU."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(UsageError, match="cuda:1 .* 2 processes: .*cuda$"),
        process_group("cuda:1"),
    ):
        pass


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a group of two is asked for that is never formed."""
    found: dict[str, Any] = {}

    def meet(url: str, timeout: timedelta) -> Iterator[Any]:
        found.update(url=url, waits=timeout)
        yield torch.distributed.HashStore(), 0, 1

    def form(backend: str, **more: Any) -> None:
        found.update(more, backend=backend)

    module = sys.modules["torch.distributed.rendezvous"]
    monkeypatch.setattr(module, "rendezvous", meet)
    monkeypatch.setattr(torch.distributed, "init_process_group", form)
    monkeypatch.setattr(
        torch.distributed,
        "destroy_process_group",
        lambda: found.update(ended=True),
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    return found


@pytest.mark.parametrize(
    ("device", "gpus", "own", "backend"),
    [
        ("cpu", 0, "cpu", "gloo"),
        (None, 0, "cpu", "gloo"),
        ("cpu", 2, "cpu", "gloo"),
        (None, 2, "cuda:1", "cpu:gloo,cuda:nccl"),
        ("cuda", 2, "cuda:1", "cpu:gloo,cuda:nccl"),
    ],
)
def test_each_process_has_its_device_and_numbers_their_carrier(
    asked: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    device: str | None,
    gpus: int,
    own: str,
    backend: str,
) -> None:
    taken: list[int] = []
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    with process_group(device, minutes=7) as found:
        assert found == own and "ended" not in asked
    assert taken == ([1] if own == "cuda:1" else [])
    assert (asked["backend"], asked["ended"]) == (backend, True)
    assert (asked["url"], asked["waits"]) == ("env://", timedelta(0, 420))
    assert (asked["rank"], asked["world_size"]) == (0, 1)
    assert asked["timeout"] == asked["waits"]
    assert isinstance(asked["store"], torch.distributed.PrefixStore)


def test_a_group_is_waited_for_an_hour(asked: dict[str, Any]) -> None:
    with process_group("cpu"):
        pass
    assert asked["timeout"] == timedelta(hours=1)


def test_a_group_that_cannot_be_formed_is_told_in_a_line(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def form(*_: Any, **__: Any) -> None:
        raise RuntimeError("the port is taken\nTraceback of C++")

    monkeypatch.setattr(torch.distributed, "init_process_group", form)
    message = "^cannot form a process group: the port is taken$"
    with pytest.raises(RunError, match=message), process_group("cpu"):
        pass


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("[gloo] lost\nat x.cc\nat y"), "([gloo] lost)"),
        (RuntimeError("Connection " + "x" * 200), f"({'x' * 149})"),
        (RuntimeError("shapes do not match"), None),
        (TrainingError("process 1 timed out"), None),
        (KeyError("socket"), None),
    ],
)
def test_a_lost_connection_is_told_from_other_errors(
    error: Exception, told: str | None
) -> None:
    with pytest.raises(type(error)) as found, distributed._in_touch():
        raise error
    if told is None:
        assert found.value is error
        return
    assert isinstance(found.value, TrainingError)
    assert str(found.value).endswith(told.replace("(x", "(Connection x"))
    assert found.value.__cause__ is error


def test_numbers_go_to_the_group_that_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of a step, which does not wait for an hour."""

    def reduce(tensor: torch.Tensor, group: Any) -> None:
        tensor.add_(len(group))

    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", reduce)
    mine, group = torch.tensor([1.0]), cast(Any, "step")
    assert all_reduce_sum(mine, group).item() == 5.0
    assert mine.item() == 1.0


class Wrapped:
    """Stands for DistributedDataParallel; told apart by what it takes."""

    no_sync = "no sync"

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        self.hook = hook


class Newer(Wrapped):
    def __init__(self, module: Any, *, process_group: Any,
                 gradient_as_bucket_view: bool,
                 forward_sync_buffers: bool):  # fmt: skip
        self.given = process_group, gradient_as_bucket_view
        self.buffers = forward_sync_buffers


class Older(Wrapped):
    def __init__(self, module: Any, *, process_group: Any,
                 gradient_as_bucket_view: bool,
                 broadcast_buffers: bool):  # fmt: skip
        self.given = process_group, gradient_as_bucket_view
        self.buffers = broadcast_buffers


@pytest.mark.parametrize("kind", [Newer, Older])
def test_gradients_are_summed_in_place_and_buffers_stay(
    kind: type[Wrapped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the argument is called: torch has given it a new name."""
    asked: dict[str, Any] = {}
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result([3.0])

    def reduce(gradients: Any, **more: Any) -> Any:
        asked.update(more, gradients=gradients)
        return SimpleNamespace(get_future=lambda: future)

    monkeypatch.setattr(distributed, "DistributedDataParallel", kind)
    monkeypatch.setattr(torch.distributed, "all_reduce", reduce)
    group = cast(Any, "of a step")
    made: Any
    made, no_sync = distributed.data_parallel(torch.nn.ReLU(), group)
    assert made.given == (group, True) and made.buffers is False
    assert no_sync == "no sync"
    bucket = SimpleNamespace(buffer=lambda: "gradients")
    assert made.hook(None, bucket).wait() == 3.0
    assert asked == {
        "gradients": "gradients", "group": group, "async_op": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("2.3.1", True),
        ("2.8.1+cpu", True),
        pytest.param("2.9", False, marks=SHARDED_ONLY),
    ],
)
def test_an_old_torch_does_not_shard(
    version: str, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = type(torch.__version__)(version)
    monkeypatch.setattr(torch, "__version__", number)
    model, group = torch.nn.ReLU(), cast(Any, "of a step")
    # without parameters there is nothing to ask for a device
    kind: type[Exception] = RunError if old else StopIteration
    with pytest.raises(kind, match="not 2.[38].1" if old else "^$"):
        distributed.data_parallel(model, group, [model])


@SHARDED_ONLY
def test_a_part_is_cut_where_the_weight_lies_and_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = []
    monkeypatch.setattr(
        import_module("torch.distributed.tensor"),
        "distribute_tensor",
        lambda *args, **more: cut.append((args, more)) or "part",
    )
    whole, like = (
        torch.ones(4),
        SimpleNamespace(
            full_tensor=None,
            device="meta",
            device_mesh="mesh",
            placements="rows",
        ),
    )
    assert distributed.own_part(whole, like) == "part"
    [((given, *rest), more)] = cut
    assert given.is_meta and rest == ["mesh", "rows"]
    assert more == {"src_data_rank": None}
    assert distributed.own_part(whole, torch.ones(2)) is whole


class Sharded(torch.nn.Module):
    """Stands for a module that FSDP has taken; notes what it is told."""

    def __init__(self, *layers: torch.nn.Module):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.layers = torch.nn.ModuleList(layers)
        self.told: list[Any] = []

    def set_gradient_divide_factor(self, factor: float) -> None:
        self.told.append(("divided by", factor))

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        self.told.append(("summed", enable))


@SHARDED_ONLY
@pytest.mark.parametrize("half", [None, torch.bfloat16])
def test_shards_sum_their_gradients_after_each_micro_batch(
    monkeypatch: pytest.MonkeyPatch, half: torch.dtype | None
) -> None:
    """Layers are fetched in 16 bits, added up in float32; the rest is as
    it is.
    """
    taken: list[Any] = []

    def shard(module: Any, mesh: Any, mp_policy: Any = None) -> Any:
        taken.append((module, mesh, mp_policy))
        return module

    fsdp = import_module("torch.distributed.fsdp")
    meshes = import_module("torch.distributed.device_mesh")
    monkeypatch.setattr(fsdp, "FSDPModule", Sharded)
    monkeypatch.setattr(fsdp, "fully_shard", shard)
    mesh = SimpleNamespace(from_group=lambda *about: about)
    monkeypatch.setattr(meshes, "DeviceMesh", mesh)
    inner = [torch.nn.Linear(1, 1) for _ in range(2)]
    layers = [Sharded(), Sharded()]
    for layer, one in zip(layers, inner):
        layer.map, layer.norm = one, torch.nn.LayerNorm(1)
    group = cast(Any, "of a step")
    model = Sharded(*layers, torch.nn.ReLU())
    same, no_sync = distributed.data_parallel(model, group, layers, half)
    assert same is model
    # the layers first, so that the whole takes what is left
    assert (
        [(one, at) for one, at, _ in taken]
        == [
            (one, (group, "cpu"))
            for one in (*([part] for part in inner), model)
        ]
        if half
        else [(one, (group, "cpu")) for one in (*layers, model)]
    )
    *narrow, rest = [policy for *_, policy in taken]
    assert rest is None
    for policy in narrow:
        assert policy.param_dtype == half
        assert policy.reduce_dtype == (torch.float32 if half else None)
        assert not policy.cast_forward_inputs
    sums = [("divided by", 1.0), ("summed", True)]
    with no_sync():  # nothing is put off
        assert all(one.told == sums for one in (*layers, model))


def groups_of_shards() -> bool:
    trainer = new_trainer(shard=True)
    own: Any = trainer.model.named_parameters()
    return all(p.device_mesh.get_group() is trainer.group for _, p in own)


@SHARDED_ONLY
def test_shards_are_gathered_in_the_group_of_a_step() -> None:
    """The other one would wait for a process that is lost for an hour."""
    assert together(2, groups_of_shards) == [True, True]


WITHOUT = """
import sys, torch, torch.distributed as dist
for name in ("ProcessGroup", "Store", "PrefixStore", "init_process_group"):
    delattr(dist, name)
dist.is_available = lambda: False
sys.modules["torch.distributed.rendezvous"] = None
from annotated.engine.distributed import all_gather, process_group, rank
with process_group("cpu") as own:
    print(own, rank(), all_gather(3))
"""


def test_a_torch_without_distributed_trains_alone() -> None:
    """There are builds of it, some for macOS among them."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.stdout == "cpu 0 [3]\n", done.stderr


# --- evaluation -----------------------------------------------------------


def evaluated(run: str, text: str) -> tuple[str, list[int]]:
    """What evaluate prints, and how many lines it gave to its search."""
    counts, translate = [], Run.translate

    def counting(self: Run, lines: Any, *args: Any, **more: Any) -> Any:
        counts.append(len(lines))
        return translate(self, lines, *args, **more)

    said, line = io.StringIO(), f"--src {text} --ref {text} --json"
    Run.translate = counting  # type: ignore[method-assign]
    try:
        with contextlib.redirect_stdout(said):
            cli.dispatch(
                f"evaluate --run {run} --against {run} {line} --device cpu "
                "--precision float32 --extra 2 --beam 2".split()
            )
    finally:
        Run.translate = translate  # type: ignore[method-assign]
    return said.getvalue(), counts


def test_evaluation_is_shared_and_told_once(tmp_path: Path) -> None:
    train_recipe(TINY, tmp_path / "run", device="cpu")
    text = tmp_path / "text"
    text.write_text(
        "".join(f"{'a b c d '[: 2 * i]}\n" for i in (1, 2, 3, 4, 2))
    )
    call = str(tmp_path / "run"), str(text)
    printed, counts = zip(*in_processes(2, evaluated, *call))
    assert counts == ([3, 3], [2, 2])  # this run's and the other's
    assert printed[1] == ""
    alone, _ = evaluated(*call)
    shared, whole = map(json.loads, (printed[0], alone))
    for found in (shared, whole):
        assert found.pop("seconds") >= 0
    assert shared == whole
    assert whole["sentences"] == 5
