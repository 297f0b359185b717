"""Exported from the book; edit the chapter, then run `make export`.

- 15-checkpoints.md: How a run survives, and how it ends
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from annotated.engine.files import checksum, flush
from annotated.model import Transformer
from annotated.training import Trainer

__all__ = [
    "save_weights", "read_weights", "read_fitting", "load_weights",
    "write_checkpoint", "drop", "load_checkpoint", "verify",
    "save_checkpoint", "drop_old", "checkpoints", "average_weights",
    "choose_checkpoints",
]  # fmt: skip


# 15-checkpoints.md: Written whole, or not at all
def save_weights(model: Transformer, path: Path) -> None:
    """Write the parameters, a shared one once, as safetensors."""
    weights = {
        name: p.detach().cpu().contiguous()
        for name, p in model.named_parameters()
    }
    safetensors.torch.save_file(weights, path)


def read_weights(path: Path) -> dict[str, Tensor]:
    """What save_weights wrote. ValueError where it cannot be read."""
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def read_fitting(model: Transformer, path: Path) -> dict[str, Tensor]:
    """read_weights. ValueError where they do not fit the model."""
    weights, own = read_weights(path), dict(model.named_parameters())
    for name in sorted(own.keys() | weights.keys()):
        here = tuple(own[name].shape) if name in own else "absent"
        there = tuple(weights[name].shape) if name in weights else "absent"
        if here != there:
            raise ValueError(
                f"{path} does not fit the model: {name} is {there} in the "
                f"file, {here} in the model"
            )
    return weights


def load_weights(model: Transformer, path: Path) -> None:
    """Read what save_weights wrote. ValueError where it does not fit."""
    weights = read_fitting(model, path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def write_checkpoint(
    weights: Mapping[str, Tensor], state: Mapping[str, Any], place: Path
) -> None:
    """Write the folder place, whole or not at all. OSError where there is
    no room.
    """
    for unfinished in place.parent.glob(".[0-9]*"):  # of a killed run
        shutil.rmtree(unfinished)
    fresh = place.with_name(f".{place.name}")
    fresh.mkdir(parents=True)
    safetensors.torch.save_file(dict(weights), fresh / "model.safetensors")
    try:
        torch.save(dict(state), fresh / "state.pt")
    except RuntimeError as error:  # torch's word for a full disk
        raise OSError(f"{fresh / 'state.pt'}: {error}") from None
    sums = {file.name: checksum(file) for file in fresh.iterdir()}
    (fresh / "checksums.json").write_text(json.dumps(sums))
    for file in (*fresh.iterdir(), fresh):
        flush(file)
    if place.exists():
        drop(place)
    fresh.rename(place)
    flush(place.parent)


def drop(place: Path) -> None:
    """Delete a checkpoint; half of it is never left under its name."""
    hidden = place.with_name(f".{place.name}.old")
    place.rename(hidden)
    shutil.rmtree(hidden)


def load_checkpoint(trainer: Trainer, place: Path) -> None:
    """Go on from a checkpoint. ValueError where it is damaged;
    TrainingError where it belongs to another run.
    """
    verify(place)
    try:
        state = torch.load(place / "state.pt", "cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds
        raise ValueError(
            f"{place / 'state.pt'} cannot be read: {error}"
        ) from None
    weights = read_fitting(trainer.model, place / "model.safetensors")
    trainer.load(weights, state)


def verify(place: Path) -> None:
    """ValueError, naming the file, where a checkpoint is damaged."""
    name = "checksums.json"
    try:
        sums = dict(json.loads((place / name).read_text("utf-8")))
        for name in ("model.safetensors", "state.pt"):
            if checksum(place / name) != sums.get(name):
                raise ValueError("by its checksum, it has changed")
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(
            f"{place / name} cannot be read: {error}"
        ) from None


def save_checkpoint(
    trainer: Trainer, folder: Path, keep: int = 5, every: int = 1
) -> Path:
    """Write folder/STEP, whole or not at all, and drop_old."""
    place = folder / f"{trainer.step:08d}"
    write_checkpoint(trainer.weights(), trainer.state(), place)
    drop_old(place, keep, every)
    return place


def drop_old(place: Path, keep: int, every: int) -> None:
    """Drop all checkpoints beside place but the last keep of those whose
    step is a multiple of every.
    """
    for old in checkpoints(place.parent):
        kept = checkpoints(place.parent, every)[-keep:]
        if old != place and old not in kept:
            drop(old)


def checkpoints(folder: Path, every: int = 1) -> list[Path]:
    """The finished checkpoints in folder whose step is a multiple of
    every, the oldest first.
    """
    steps = {
        int(place.name): place
        for place in folder.glob("[0-9]" * 8 + "*")
        if place.name.isdecimal() and place.is_dir()
    }
    whole = [s for s in sorted(steps) if steps[s].name == f"{s:08d}"]
    return [steps[step] for step in whole if step % every == 0]


# 15-checkpoints.md: How it ends: trembling
def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints (§6.1).

    Raises ValueError where there are none, where one cannot be read, or
    where they differ in names or shapes.
    """
    if not paths:
        raise ValueError("there are no checkpoints to average")
    total: dict[str, Tensor] = {}
    first = read_weights(paths[0])
    for path in paths:
        weights = read_weights(path)
        for name in sorted(first.keys() | weights.keys()):
            one, other = first.get(name), weights.get(name)
            if one is None or other is None or one.shape != other.shape:
                raise ValueError(
                    f"{path} and {paths[0]} are no checkpoints of one "
                    f"model: they differ in {name}"
                )
            total[name] = total.get(name, 0) + other.double()
    return {
        n: (t / len(paths)).to(first[n].dtype) for n, t in total.items()
    }


# 15-checkpoints.md: The last, or the best?
def choose_checkpoints(
    places: Sequence[Path],
    count: int,
    nll: Mapping[int, float] | None = None,
) -> list[Path]:
    """The last count of places or, where nll is given, the best count.

    places are checkpoints named by their steps, the oldest first; nll is
    the validation loss by step. Raises ValueError where there are not so
    many, or not so many that were validated.
    """
    if count < 1:
        raise ValueError(f"at least 1 checkpoint is wanted, not {count}")
    what = "checkpoints"
    if nll is not None:
        places = [p for p in places if int(p.name) in nll]
        places = sorted(places, key=lambda p: -nll[int(p.name)])
        what = "validated checkpoints"
    if len(places) < count:
        raise ValueError(
            f"{count} {what} are wanted, but there are {len(places)}: a "
            "run keeps as many as keep says"
        )
    return list(places[-count:])
