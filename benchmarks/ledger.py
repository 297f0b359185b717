"""What every file of book/results says of where its numbers come from.

    from ledger import entry, write

book/results/README.md tells what the keys mean.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def versions(*packages: str) -> str:
    """Python, torch and those of packages that are installed: one line."""
    found = [
        f"python {platform.python_version()}",
        f"torch {torch.__version__}",
    ]
    for name in packages:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def options(settings: Any) -> list[str]:
    """The words of a command line that give these settings, a dataclass;
    none for a field that has its default.
    """
    words = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        name = field.name.replace("_", "-")
        if value == field.default:
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, tuple):
            words += [f"--{name}", *map(str, value)]
        else:
            words += [f"--{name}", str(value)]
    return words


def typed(script: str, settings: Any) -> str:
    """The line that one types to do it again; where the result goes is
    left to whoever does.
    """
    words = options(replace(settings, json=None))
    return shlex.join(["python", f"benchmarks/{script}", *words])


def hardware(device: str = "cpu", threads: int | None = None) -> str:
    """The GPU where it was used, the processor, the threads: one line."""
    number = threads or torch.get_num_threads()
    here = f"{_processor()}, {number} thread{'s' * (number > 1)}"
    if device == "cpu":
        return here
    gpu = torch.cuda.get_device_properties(0)
    return f"1 {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB; {here}"


def _processor() -> str:
    """What the machine calls its processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit of this checkout; a + for what is not committed."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty=+"]
    try:
        done = subprocess.run(
            [*command, "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def entry(
    recipe: str,
    command: str,
    metrics: dict[str, Any],
    *,
    seed: int | None = None,
    wall_seconds: float | None = None,
    settings: dict[str, Any] | None = None,
    packages: Sequence[str] = ("numpy",),
    device: str = "cpu",
    threads: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A ledger file's content, made here and now."""
    return {
        "recipe": recipe,
        "command": command,
        "commit": commit(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "hardware": hardware(device, threads),
        "versions": versions(*packages),
        "seed": seed,
        "wall_seconds": wall_seconds and round(wall_seconds, 1),
        "settings": settings or {},
        "metrics": rounded(metrics),
        **more,
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a ledger file and say so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
    print(f"written to {path}")


def rounded(value: Any, digits: int = 6) -> Any:
    """Floats to so many significant digits, all the way down."""
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item, digits) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    return value
