"""What the benchmarks share in writing a file of book/results.

    from ledger import typed, write

Its content is made by annotated.engine.results.entry; book/results/README.md
tells what the keys mean.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any


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


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a ledger file and say so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
    print(f"written to {path}")
