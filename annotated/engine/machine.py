"""Exported from the book; edit the chapter, then run `make export`."""

import ctypes
import hashlib
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import torch

from annotated.engine.errors import RunError, UsageError
from annotated.engine.files import cache_folder, keep_first
from annotated.engine.kernels import Machine, choose
from annotated.engine.timing import seconds

__all__ = [
    "evaluating", "fused_adam_works", "cores", "pick_device",
    "keep_freed_memory", "set_up", "HALF", "matmul_speed", "out_of_memory",
    "memory_bytes", "processor", "cached", "quicker_device", "lacks",
    "pick_precision",
]  # fmt: skip


# E3-ground.md: The machine
@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Disable dropout and gradients within the block; restore after it,
    each part as it was.
    """
    before = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in before:
            part.training = training


def fused_adam_works(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether torch's Adam passes over the memory once where these are."""
    # torch 2.3 has it on a GPU only (versions compare as numbers do)
    devices = ("cuda", "cpu") if torch.__version__ >= "2.4" else ("cuda",)
    return all(p.device.type in devices for p in parameters)


def cores() -> int:
    """The number of processors that this process may use."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    return max(1, int(min(count, _container_limit("cpu"))))


def pick_device(name: str | None = None) -> str:
    """name if given, else a GPU if there is one: cuda, then mps. One that
    is given by number, such as cuda:1, becomes the current device.
    RunError if the device is not available.
    """
    if name is None:
        apple = torch.backends.mps.is_available()
        name = "mps" if apple else "cpu"
        name = "cuda" if torch.cuda.is_available() else name
    try:
        if torch.device(name).type not in ("cpu", "cuda", "mps"):
            raise RuntimeError("only cpu, cuda and mps are supported")
        torch.empty(1, device=name)
        if name.startswith("cuda:"):  # not every kernel asks its tensors
            torch.cuda.set_device(name)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise RunError(f"no {name!r} device here: {reason}") from None
    return name


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them


def keep_freed_memory() -> None:
    """Let the C library keep what tensors free on a CPU, for the next ones.

    For this process, where the library is glibc; elsewhere no change.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 2**25)  # the most that it takes
        library.mallopt(_TRIM_THRESHOLD, 2**30)


def set_up(device: str) -> None:
    """Prepare this process for training on a device.

    A GPU may round the factors of float32 products to 10 fraction bits
    (TF32), for its tensor cores; sums stay in float32. It becomes CUDA's
    current device, and torch computes on one processor beside it, where
    little is left to compute. On a CPU, memory that a step frees stays
    with the process, for the next step.
    """
    kind = torch.device(device).type
    if kind == "cuda":
        torch.set_float32_matmul_precision("high")
        if ":" in device:
            torch.cuda.set_device(device)
        torch.set_num_threads(1)
    if kind == "cpu":
        keep_freed_memory()


_CGROUPS = Path("/sys/fs/cgroup")
_GROUPS = Path("/proc/self/cgroup")  # of this process


def _container_limit(what: Literal["cpu", "memory"]) -> float:
    """The processors, or the bytes of memory, that the control groups of
    this process allow (Linux, versions 1 and 2); infinite if unlimited.
    """
    least = math.inf
    for line in _read(_GROUPS).splitlines():  # a path may have spaces
        _, kinds, path = line.split(":", 2)
        if kinds and what not in kinds.split(","):
            continue
        folders = (kinds, what) if kinds else ("", "unified")
        roots = [_CGROUPS / name for name in folders]
        innermost = PurePosixPath(path)
        for group in (innermost, *innermost.parents):
            for root in roots:
                inside = root / group.relative_to("/")
                least = min(least, _allowed(inside, what))
    return least


def _allowed(group: Path, what: str) -> float:
    """The limit of one control group."""
    words = _words(group / f"{what}.max")  # version 2
    if not words and what == "cpu":
        words = _words(group / "cpu.cfs_quota_us")
        words += _words(group / "cpu.cfs_period_us")
    elif not words:
        words = _words(group / "memory.limit_in_bytes")
    words += ["1"]
    # otherwise it is "max", or -1
    limited = len(words) > 1 and words[0].isdecimal()
    return int(words[0]) / int(words[1]) if limited else math.inf


def _words(path: Path) -> list[str]:
    """The words in a file; none where it cannot be read."""
    return _read(path).split()


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text("utf-8", errors="replace")
    return ""


HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def matmul_speed(
    device: str, precision: str = "float32", budget: float = 0.5
) -> float:
    """The best speed of a large matrix product, in operations/second."""
    kind = HALF.get(precision, torch.float32)
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


def out_of_memory(error: BaseException) -> bool:
    """Whether it says that a device, or this computer, has no more."""
    known = isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError))
    return known or (
        isinstance(error, RuntimeError)
        and ("allocate memory" in str(error) or "of memory" in str(error))
    )


def memory_bytes(device: str) -> float:
    """A device's memory in bytes; on a CPU, this process's share of it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # not on every system
        return math.inf
    least = min(total, _container_limit("memory"))
    return least / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


# E3-ground.md: What was measured is kept
_CPUINFO = Path("/proc/cpuinfo")  # on Linux
_IDENTITY = {  # its lines that do not vary: x86's, then ARM's
    *("vendor_id", "cpu family", "model", "model name", "stepping"),
    *("flags", "CPU implementer", "CPU architecture", "CPU variant"),
    *("CPU part", "CPU revision", "Features"),
}


def processor() -> dict[str, str]:
    """What identifies this kind of processor, the same in every call."""
    facts = {"name": platform.processor() or platform.machine()}
    with suppress(OSError):  # not on every system
        first = _CPUINFO.read_text("utf-8").split("\n\n")[0]
        for line in first.splitlines():
            name, _, value = line.partition(":")
            if name.strip() in _IDENTITY:
                facts[name.strip()] = value.strip()
    return facts


def _measured_folder() -> Path | None:
    """Where measurements are kept, and may be deleted at any time; None
    for a user without a home.
    """
    chosen, home = os.environ.get("ANNOTATED_MEASURED"), cache_folder()
    if chosen:
        return Path(chosen).absolute()
    return home and home / "measured"


def cached(
    name: str,
    about: dict[str, Any],
    measure: Callable[[], tuple[float, bool]],
) -> float:
    """The value that measure returned when it was first called for name
    and about on this kind of machine, unless it said that the value must
    not be kept; otherwise, and where nothing can be kept, the value that
    it returns now. A damaged file is measured again.
    """
    about = {"processor": processor(), "torch": torch.__version__} | about
    key = json.dumps(about, sort_keys=True).encode()
    code = hashlib.sha256(key).hexdigest()[:16]
    folder = _measured_folder()
    path = (folder or Path()) / f"{name}-{code}.json"
    with suppress(OSError):  # there is none, or it is unreadable
        try:
            if folder:
                return _value(path.read_text("utf-8"))
        except (ValueError, KeyError, TypeError):
            path.unlink()  # damaged
    value, lasting = measure()
    if lasting and folder:
        text = json.dumps({"value": value} | about, indent=2)
        with suppress(OSError, ValueError):  # read-only, or a full disk
            path.parent.mkdir(parents=True, exist_ok=True)
            return _value(keep_first(path, f"{text}\n"))
    return value


def _value(text: str) -> float:
    return float(json.loads(text)["value"])


def quicker_device(
    name: str | None,
    work: str,
    about: dict[str, Any],
    measure: Callable[[str], float],
) -> str:
    """pick_device(name); but where none is named and Apple's GPU would be
    taken, the CPU if measure, which gives the seconds of some work on a
    device, gives less for it. Measured once for what about says.
    """
    device = pick_device(name)
    if name is not None or device != "mps":
        return device

    def compare() -> tuple[float, bool]:
        return measure("cpu") / measure("mps"), True

    ratio = cached(f"mps-{work}", about, compare)
    device = "mps" if ratio > 1 else "cpu"
    print(
        f"{work} on {device}: Apple's GPU is {ratio:.1f} times as fast as "
        "the processor; --device names another",
        file=sys.stderr,
    )
    return device


# E3-ground.md: Which numbers to compute with
_INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16"}  # x86's, and ARM's
_FASTER = 1.4  # times float32's speed: from here on, bfloat16


def lacks(precision: str) -> bool:
    """Whether this processor is known to emulate a 16-bit precision."""
    facts = processor()
    flags = facts.get("flags", facts.get("Features"))
    known = flags is not None and not _INSTRUCTIONS & set(flags.split())
    return precision == "float16" or known


def pick_precision(device: str) -> tuple[str, str]:
    """float32, bfloat16 or float16, whichever trains fastest on this
    device, and the reason: the same in every call on a machine.
    ANNOTATED_PRECISION overrides it; UsageError if that is misspelt.
    """
    asked = os.environ.get("ANNOTATED_PRECISION") or "auto"
    if asked not in ("auto", "float32", *HALF):
        raise UsageError(
            "ANNOTATED_PRECISION must be auto, float32, bfloat16 or "
            f"float16, not {asked!r}"
        )
    if asked != "auto":
        return asked, "ANNOTATED_PRECISION says so"
    machine = Machine.at(device)
    if machine.kind != "cpu":
        chosen = choose(machine)
        return chosen.precision, chosen.reason
    if lacks("bfloat16"):
        return "float32", "this processor has no bfloat16 instructions"
    faster = cached("bfloat16", {}, _measured_speedup) >= _FASTER
    chosen = choose(replace(machine, bfloat16=faster))
    return chosen.precision, chosen.reason


def _measured_speedup() -> tuple[float, bool]:
    """How much faster this CPU multiplies large matrices in bfloat16, and
    that this may be kept.
    """
    ratio = _bfloat16_speedup(64)
    if ratio >= 0.1:  # otherwise it is emulated
        ratio = _bfloat16_speedup(512)
    return ratio, True


def _bfloat16_speedup(n: int) -> float:
    """How much faster a CPU multiplies n × n matrices in bfloat16 than in
    float32, on one thread: another number of threads would be another
    decision.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        full = torch.ones(n, n)
        half = full.bfloat16()
        slow, fast = seconds(
            lambda: full @ full, lambda: half @ half, budget=1.0
        )
    finally:
        torch.set_num_threads(threads)
    return slow / fast
