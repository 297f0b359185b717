"""annotated.engine.files.

Exported from the book; edit the chapter, then run `make export`.

- 14-training.md: Training, and the copy task
- E10-runner.md: A run from its first step to its last
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

__all__ = ["checksum", "write_text", "write_json"]


# 14-training.md: Checkpoints
def checksum(path: Path) -> int:
    """CRC-32 of a file: against accidents, not against intent."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(2**20):
            crc = zlib.crc32(block, crc)
    return crc


# E10-runner.md: Ground
def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, "utf-8")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON to path, whole or not at all."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    write_text(path, text + "\n")
