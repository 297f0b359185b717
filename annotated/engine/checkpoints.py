"""Exported from the book; edit the chapter, then run `make export`."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from annotated import training
from annotated.engine.errors import RunError
from annotated.engine.files import aside, clear, move, replacing
from annotated.engine.optimizers import rehearse
from annotated.engine.tensors import check_fit, read_tensors, write_tensors

__all__ = [
    "write_checkpoint", "DamagedError", "restore", "drop_old",
    "checkpoints",
]  # fmt: skip


# E10-runner.md: A checkpoint that survives
_FILES = "model.safetensors", "optimizer.safetensors", "state.json"


def write_checkpoint(
    weights: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
    state: Mapping[str, Any],
    place: Path,
) -> None:
    """Write the folder place, whole or not at all, in a folder that
    exists. OSError where there is no room.
    """
    clear(place.parent)
    with replacing(place) as fresh:
        fresh.mkdir()
        step = {"step": str(state["step"])}
        write_tensors(weights, fresh / _FILES[0], step)
        write_tensors(moments, fresh / _FILES[1])
        (fresh / _FILES[2]).write_bytes(json.dumps(state).encode())
        sums = {name: _checksum(fresh / name) for name in _FILES}
        (fresh / "checksums.json").write_bytes(json.dumps(sums).encode())


def _checksum(path: Path) -> int:
    """CRC-32 of a file: detects accidents, not tampering."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(2**20):
            crc = zlib.crc32(block, crc)
    return crc


def _drop(place: Path) -> None:
    """Delete a checkpoint; its name never belongs to half of one."""
    with aside(place) as hidden:
        move(place, hidden / place.name)


class DamagedError(RunError):
    """A checkpoint whose files are missing, cut off or changed."""


def restore(
    trainer: training.Trainer,
    place: Path,
    expected: Mapping[str, Tensor] | None = None,
) -> None:
    """Go on from a checkpoint. DamagedError, naming the file, where it is
    damaged; RunError where it does not fit the model; TrainingError where
    it belongs to another run; OSError where the disk gives no answer.

    expected is what rehearse returns; without it, it is called here.
    """
    name = "checksums.json"
    try:
        sums = dict(json.loads((place / name).read_bytes()))
        for name in _FILES:
            if _checksum(place / name) != sums.get(name):
                raise ValueError("by its checksum, it has changed")
    except (FileNotFoundError, TypeError, ValueError) as error:
        what = f"{place / name} cannot be read: {error}"
        raise DamagedError(what) from None
    own, scheduled = trainer.parameters(), trainer.scheduled
    if expected is None:
        expected = rehearse(own, trainer.optimizer, scheduled)
    weights = read_tensors(place / _FILES[0], own)
    moments = read_tensors(place / _FILES[1])
    state = json.loads((place / _FILES[2]).read_bytes())
    trainer.check(state)
    if state["step"]:
        # an optimizer may come to keep more, but never less
        check_fit(place / _FILES[1], moments, moments | {**expected})
    trainer.load(weights, moments, state)


def drop_old(place: Path, keep: int, every: int) -> None:
    """Drop all checkpoints except place and the last keep of those whose
    step is a multiple of every.
    """
    kept = [place, *checkpoints(place.parent, every)[-keep:]]
    for old in checkpoints(place.parent):
        if old not in kept:
            _drop(old)


def checkpoints(folder: Path, every: int = 1) -> list[Path]:
    """The finished checkpoints in folder whose step is a multiple of
    every, the oldest first.
    """
    named = [p for p in folder.glob("[0-9]*") if p.name.isdecimal()]
    steps = sorted((int(p.name), p) for p in named if p.is_dir())
    whole = [(s, p) for s, p in steps if p.name == f"{s:08d}"]
    return [place for step, place in whole if step % every == 0]
