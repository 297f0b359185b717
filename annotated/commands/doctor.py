"""Exported from the book; edit the chapter, then run `make export`."""

import importlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile

import annotated
from annotated.engine.errors import RunError, UsageError

__all__ = ["findings", "doctor"]


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


def _packages(lines: Sequence[str] | None = None) -> Iterator[_Finding]:
    """What is missing or too old of these requirements, or of this
    package's own. An extra is one finding.
    """
    trouble: dict[str, list[str]] = {}
    wanted: dict[str, str] = {}
    for line in _requirements() if lines is None else lines:
        found = _REQUIREMENT.match(line)
        if found is None:
            continue
        name, least, extra = found.group("name", "least", "extra")
        wrong = trouble.setdefault(extra or "", [])
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = ""
        if not version or _numbers(version) < _numbers(least or ""):
            old = f"{name} {version} (from {least} on)"
            wrong.append(old if version else name)
            asked = f'"{name}>={least}"' if least else f'"{name}"'
            wanted[extra or ""] = f"{wanted.get(extra or '', '')} {asked}"
    for extra, wrong in ({"": []} | trouble).items():
        remedy = f"python -m pip install{wanted.get(extra, '')}"
        if extra:
            remedy = f"if you want it: {remedy}"
        fine = "installed" if extra else "all that is needed"
        yield _Finding(
            f"extra [{extra}]" if extra else "packages",
            f"missing: {', '.join(wrong)}" if wrong else fine,
            remedy if wrong else "",
            "✓" if not wrong else "–" if extra else "✗",
        )


def _numbers(version: str) -> tuple[int, ...]:
    """2.13.0+cpu -> (2, 13, 0)"""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])))


def _requirements() -> list[str]:
    """What the package needs: as its source says, which an installation
    may be older than; without one, as pip has written it down.
    """
    source = Path(annotated.__file__).parents[1] / "pyproject.toml"
    with suppress(OSError, ImportError, ValueError, KeyError):
        toml = "tomllib" if sys.version_info >= (3, 11) else "tomli"
        read = importlib.import_module(toml).loads
        project = read(source.read_text("utf-8"))["project"]
        if project["name"] == _PACKAGE:
            more = project["optional-dependencies"]
            return project["dependencies"] + [
                f"{line} ; extra == '{extra}'"
                for extra, lines in more.items()
                for line in lines
            ]
    with suppress(metadata.PackageNotFoundError):
        return metadata.requires(_PACKAGE) or []
    return []


# E23-doctor.md: PyTorch, and what it runs on
def _pytorch() -> Iterator[_Finding]:
    """Whether it can be imported and understands this numpy."""
    if (sys.platform, platform.machine()) in _WITHOUT:
        where = _WITHOUT[sys.platform, platform.machine()]
        yield _Finding("system", "PyTorch is not made for it", where, "–")
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


_WITHOUT = {  # systems for which there is no torch of 2.3 or newer
    ("darwin", "x86_64"): "open the notebooks on Colab",
    ("win32", "ARM64"): "install the Python for x64, which runs there, too",
}


def _subcommands() -> Iterator[_Finding]:
    """Whether each can be loaded, whatever version says it can."""
    cli = importlib.import_module("annotated.cli")
    for name in cli.COMMANDS:
        cli.load(name)
    yield _Finding("subcommands", f"all {len(cli.COMMANDS)} load")


def _machine() -> Iterator[_Finding]:
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
    or_cpu = ", or cpu where that is quicker" * (device == "mps")
    yield _Finding("device", device + or_cpu)
    yield _Finding("precision", f"{precision}: {why}")


# E23-doctor.md: Folders
def _folders() -> Iterator[_Finding]:
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
def findings() -> Iterator[_Finding]:
    """Everything, one finding after another (appendix A5)."""
    system = f"{platform.python_version()} on {platform.platform()}"
    yield _Finding("Python", f"{system}, {sys.executable}")
    home = Path(annotated.__file__).parent
    yield _Finding("annotated", f"{annotated.__version__}, {home}")
    for name in sorted(os.environ):
        if name.startswith(("ANNOTATED_", "CUDA_VISIBLE", "OMP_NUM")):
            yield _Finding(name, os.environ[name])
    for look in (_packages, _pytorch, _subcommands, _machine, _folders):
        try:
            yield from look()
        except Exception as error:  # whatever it is, is what we look for
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            name = look.__name__.removeprefix("_")
            yield _Finding(name, reason, _REMEDY[name], "✗")


_REMEDY = {
    "packages": "python -m pip install --upgrade pip, then ask again",
    "pytorch": "python -m pip install --force-reinstall torch numpy",
    "subcommands": "mend what is named above; else install annotated anew",
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
    for found in findings():
        print(found, flush=True)
        wrong += found.mark == "✗"
    if wrong:
        things = "one thing is" if wrong == 1 else f"{wrong} things are"
        raise RunError(f"{things} in the way: see ✗ above")
    print("Nothing is in the way.")
