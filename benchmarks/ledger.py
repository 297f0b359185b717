"""What every file of the ledger says about its run (book/results/README)."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def versions(*packages: str) -> str:
    """Of Python, torch and these packages, as far as they are there."""
    found = [f"python {platform.python_version()}"]
    for name in ("torch", *packages):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def processor() -> str:
    """What the machine calls its processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def hardware(device: str = "cpu") -> str:
    """Processor or GPU, and how many threads."""
    threads = f"{processor()}, {torch.get_num_threads()} threads"
    if device == "cpu":
        return threads
    gpu = torch.cuda.get_device_properties(0)
    return f"1 {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB; {threads}"


def commit() -> str | None:
    """The commit of this checkout; a + for what is not committed."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty=+"]
    try:
        done = subprocess.run(
            command,
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def write_entry(
    path: Path,
    *,
    recipe: str,
    command: str,
    hardware: str,
    versions: str,
    seed: int,
    seconds: float,
    settings: dict[str, Any],
    metrics: dict[str, Any],
    samples: list[list[str]] | None = None,
) -> None:
    """One file of the ledger."""
    entry = {
        "recipe": recipe,
        "command": command,
        "commit": commit(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "hardware": hardware,
        "versions": versions,
        "seed": seed,
        "wall_seconds": round(seconds, 1),
        "settings": settings,
        "metrics": rounded(metrics),
    }
    if samples:
        entry["samples"] = samples
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(entry, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")


def rounded(value: Any) -> Any:
    """Floats to four significant digits, all the way down."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return value
