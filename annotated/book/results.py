"""Exported from the book; edit the chapter, then run `make export`."""

import json
import platform
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import torch

from annotated.engine.machine import processor
from annotated.engine.processes import tied

__all__ = ["ledger", "entry", "commit", "rounded", "hardware", "versions"]


# E3-ground.md: The ledger
def ledger() -> dict[str, dict[str, Any]]:
    """The recorded runs of book/results, by name."""
    file = resources.files("annotated.book") / "results.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


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
    """The content of a ledger file for a run on this machine, today."""
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


def commit() -> str | None:
    """The commit of this checkout, with a + if there are uncommitted
    changes; None if the package is not in a checkout.
    """
    root = Path(__file__).resolve().parents[2]
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty=+"]
    if not (root / ".git").exists():
        return None
    try:
        with tied() as tie:
            done = subprocess.run(
                [*command, "--exclude=*"],
                cwd=root,
                capture_output=True,
                text=True,
                check=True,
                **tie,
            )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def rounded(value: Any, digits: int = 6) -> Any:
    """As JSON has it, with floats of so many significant digits."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): rounded(x, digits) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(x, digits) for x in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    return value


def hardware(device: str = "cpu", threads: int | None = None) -> str:
    """One line: the GPU if it was used, the processor, the threads."""
    number = threads or torch.get_num_threads()
    cpu = processor()
    name = cpu.get("model name", cpu["name"])
    here = f"{name}, {number} thread{'s' * (number > 1)}"
    if device == "cpu":
        return here
    if device == "mps":  # which tells torch no name
        return f"Apple's GPU; {here}"
    gpu = torch.cuda.get_device_properties(device)
    return f"1 {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB; {here}"


def versions(*packages: str) -> str:
    """One line: the versions of Python, torch and installed packages."""
    parts = [
        f"python {platform.python_version()}",
        f"torch {torch.__version__}",
    ]
    for name in packages:
        try:
            parts.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(parts)
