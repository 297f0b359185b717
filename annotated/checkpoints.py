"""annotated.checkpoints.

Exported from the book; edit the chapter, then run `make export`.

- 14-training.md: Training, and the copy task
- 16-bleu-and-averaging.md: BLEU, and averaging
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from annotated.engine.files import checksum
from annotated.model import Transformer
from annotated.training import Trainer

__all__ = [
    "save_weights",
    "read_weights",
    "load_weights",
    "save_checkpoint",
    "checkpoints",
    "load_checkpoint",
    "verify",
    "average_weights",
    "choose_checkpoints",
]


# 14-training.md: Checkpoints
def save_weights(model: Transformer, path: Path) -> None:
    """Write the parameters, a shared one once, as safetensors."""
    weights = {
        name: p.detach().cpu().contiguous()
        for name, p in model.named_parameters()
    }
    safetensors.torch.save_file(weights, path)


def read_weights(model: Transformer, path: Path) -> dict[str, Tensor]:
    """What save_weights wrote. ValueError where it does not fit."""
    try:
        weights = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    own = dict(model.named_parameters())
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
    weights = read_weights(model, path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def save_checkpoint(
    trainer: Trainer, folder: Path, keep: int, every: int = 1
) -> Path:
    """Write folder/STEP, whole or not at all, and drop all others but the
    last keep of those whose step is a multiple of every.
    """
    weights, state = trainer.weights(), trainer.state()
    place = folder / f"{trainer.step:08d}"
    trainer.team.first(lambda: _write(weights, state, place))
    trainer.team.first(lambda: _forget(place, keep, every))
    return place


def _write(
    weights: dict[str, Tensor], state: dict[str, Any], place: Path
) -> None:
    for unfinished in place.parent.glob(".[0-9]*"):  # of a killed run
        shutil.rmtree(unfinished)
    fresh = place.with_name(f".{place.name}")
    fresh.mkdir(parents=True)
    safetensors.torch.save_file(weights, fresh / "model.safetensors")
    torch.save(state, fresh / "state.pt")
    sums = {file.name: checksum(file) for file in fresh.iterdir()}
    (fresh / "checksums.json").write_text(json.dumps(sums))
    for file in fresh.iterdir():
        with file.open("rb+") as written:
            os.fsync(written.fileno())
    if place.exists():
        _drop(place)
    fresh.rename(place)


def _forget(place: Path, keep: int, every: int) -> None:
    for old in checkpoints(place.parent):
        kept = checkpoints(place.parent, every)[-keep:]
        if old != place and old not in kept:
            _drop(old)


def _drop(place: Path) -> None:
    """Delete a checkpoint; half of it is never left under its name."""
    hidden = place.with_name(f".{place.name}.old")
    place.rename(hidden)
    shutil.rmtree(hidden)


def checkpoints(folder: Path, every: int = 1) -> list[Path]:
    """The finished checkpoints in folder whose step is a multiple of
    every, the oldest first.
    """
    places = sorted(p for p in folder.glob("[0-9]" * 8) if p.is_dir())
    return [p for p in places if int(p.name) % every == 0]


def load_checkpoint(trainer: Trainer, place: Path) -> None:
    """Take up training at a checkpoint. ValueError where it is damaged;
    TrainingError where it belongs to another run.
    """
    verify(place)
    try:
        state = torch.load(place / "state.pt", "cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds
        raise ValueError(
            f"{place / 'state.pt'} cannot be read: {error}"
        ) from None
    weights = read_weights(trainer.model, place / "model.safetensors")
    trainer.load(weights, state)


def verify(place: Path) -> None:
    """ValueError, naming the file, where a checkpoint is damaged."""
    listed = place / "checksums.json"
    try:
        sums = dict(json.loads(listed.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{listed} cannot be read: {error}") from None
    for name in ("model.safetensors", "state.pt"):
        try:
            found = checksum(place / name)
        except OSError as error:
            raise ValueError(
                f"{place / name} cannot be read: {error}"
            ) from None
        if found != sums.get(name):
            raise ValueError(
                f"{place / name} cannot be read: it is not what was "
                "written, by its checksum"
            )


# 16-bleu-and-averaging.md: Averaging checkpoints
def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints (§6.1).

    Raises ValueError where there are none, where one cannot be read, or
    where they differ in names or shapes.
    """
    if not paths:
        raise ValueError("there are no checkpoints to average")
    total: dict[str, Tensor] = {}
    first = _read_weights(paths[0])
    for path in paths:
        weights = _read_weights(path)
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


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


# 16-bleu-and-averaging.md: The last, or the best?
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
