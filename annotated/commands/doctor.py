"""Exported from the book; edit the chapter, then run `make export`."""

import importlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile

import annotated
from annotated.engine.errors import RunError, UsageError

__all__ = [
    "packages", "requirements", "pytorch", "machine", "folders", "examine",
    "doctor",
]  # fmt: skip


# E23-doctor.md: A look at the machine
_PACKAGE = "attention-annotated"  # as pip knows it


@dataclass(frozen=True)
class _Finding:
    """What was looked at, its state, how to mend it, and how it is."""

    what: str
    state: str
    remedy: str = ""
    mark: str = "✓"  # ✗ in the way, – not there

    def __str__(self) -> str:
        remedy = f"\n{'':22}→ {self.remedy}" if self.remedy else ""
        return f"{self.mark} {self.what:20}{self.state}{remedy}"


# E23-doctor.md: Packages
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?:>=\s*(?P<least>[\d.]+))?[^;]*"
    r"(?:;.*extra\s*==\s*['\"](?P<extra>\w+)['\"])?"
)


def packages(lines: Sequence[str] | None = None) -> Iterator[_Finding]:
    """What is missing or too old of these requirements, or of this
    package's own. An extra is one finding.
    """
    trouble: dict[str, list[str]] = {}
    for line in requirements() if lines is None else lines:
        found = _REQUIREMENT.match(line)
        if found is None:
            continue
        name, least, extra = found.group("name", "least", "extra")
        wrong = trouble.setdefault(extra or "", [])
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong.append(name)
            continue
        if least and _numbers(version) < _numbers(least):
            wrong.append(f"{name} {version} (from {least} on)")
    needed = trouble.pop("", [])
    yield _Finding(
        "packages",
        f"missing: {', '.join(needed)}" if needed else "all that is needed",
        f"pip install --upgrade {_PACKAGE}" if needed else "",
        "✗" if needed else "✓",
    )
    for extra, wrong in trouble.items():
        yield _Finding(
            f"extra [{extra}]",
            f"missing: {', '.join(wrong)}" if wrong else "installed",
            f"if you want it: pip install '{_PACKAGE}[{extra}]'"
            if wrong
            else "",
            "–" if wrong else "✓",
        )


def _numbers(version: str) -> tuple[int, ...]:
    """2.13.0+cpu -> (2, 13, 0)"""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])))


def requirements() -> list[str]:
    """What the package needs, as pip has written it down; none where it
    has not been installed, but is run from its source.
    """
    try:
        return metadata.requires(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        return []


# E23-doctor.md: PyTorch, and what it runs on
def pytorch() -> Iterator[_Finding]:
    """Whether it can be imported and understands this numpy."""
    torch = importlib.import_module("torch")
    numpy = importlib.import_module("numpy")
    torch.from_numpy(numpy.zeros(1)).numpy()  # fails if built for another
    built = torch.version.cuda or torch.version.hip
    made = f"for {built}" if built else "for the processor"
    yield _Finding("torch", f"{torch.__version__}, {made}")
    if shutil.which("nvidia-smi") and not torch.cuda.is_available():
        yield _Finding(
            "GPU",
            "there is an NVIDIA driver, but torch does not see a GPU",
            "install torch for your CUDA: https://pytorch.org/get-started",
            "–",
        )


def machine() -> Iterator[_Finding]:
    """Processors, memory, device, and the precision that auto means."""
    from annotated.engine.machine import (
        cores,
        memory_bytes,
        pick_device,
        pick_precision,
    )

    yield _Finding("processors", str(cores()))
    giga = memory_bytes("cpu") / 2**30
    small = giga < 4
    yield _Finding(
        "memory",
        f"{giga:.0f} GiB",
        "little: if memory runs out, try --batch-tokens 2000" * small,
        "–" if small else "✓",
    )
    device = pick_device()
    precision, why = pick_precision(device)
    yield _Finding("device", device)
    yield _Finding("precision", f"{precision}: {why}")


# E23-doctor.md: Folders
def folders() -> Iterator[_Finding]:
    """Whether data can be kept, and how much room there is."""
    from annotated.corpora.registry import data_folder

    folder = data_folder()
    place = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(place).free / 2**30
    state = f"{folder}, {free:.0f} GiB free"
    try:
        with TemporaryFile(dir=place):
            pass
    except OSError as error:
        state += f": {error.strerror}"
        mend = "set ANNOTATED_DATA to a folder that you can write to"
        yield _Finding("data", state, mend, "✗")
        return
    full = "set ANNOTATED_DATA to a folder on another disk" * (free < 1)
    yield _Finding("data", state, full, "✗" if full else "✓")


# E23-doctor.md: All of it
def examine() -> Iterator[_Finding]:
    """Everything, one finding after another (appendix A5)."""
    system = f"{platform.python_version()} on {platform.platform()}"
    yield _Finding("Python", f"{system}, {sys.executable}")
    home = Path(annotated.__file__).parent
    yield _Finding("annotated", f"{annotated.__version__}, {home}")
    for name in sorted(os.environ):
        if name.startswith(("ANNOTATED_", "CUDA_VISIBLE", "OMP_NUM")):
            yield _Finding(name, os.environ[name])
    for look in (packages, pytorch, machine, folders):
        try:
            yield from look()
        except Exception as error:  # whatever it is, is what we look for
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            name = look.__name__
            yield _Finding(name, reason, _REMEDY[name], "✗")


_REMEDY = {
    "packages": f"pip install --upgrade {_PACKAGE}",
    "pytorch": "pip install --upgrade --force-reinstall torch numpy",
    "machine": "if torch is named above, mend that first",
    "folders": "set ANNOTATED_DATA to a folder that you can write to",
}


def doctor(args: Sequence[str]) -> None:
    """annotated doctor. RunError if something is in the way."""
    if args and args[0] in ("-h", "--help"):
        print("usage: annotated doctor\n\nSay what this machine has, what")
        print("is missing, and how to mend it. Exit code 2: in the way.")
        return
    if args:
        raise UsageError(f"doctor takes no options, not {args[0]!r}")
    wrong = 0
    for found in examine():
        print(found, flush=True)
        wrong += found.mark == "✗"
    if wrong:
        things = "one thing is" if wrong == 1 else f"{wrong} things are"
        raise RunError(f"{things} in the way: see ✗ above")
    print("Nothing is in the way.")
