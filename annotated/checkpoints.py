"""Exported from the book; edit the chapter, then run `make export`."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from annotated.engine.errors import RunError, check_whole
from annotated.engine.files import checksum, flush
from annotated.model import Transformer
from annotated.training import Trainer

__all__ = [
    "save_weights", "write_weights", "read_weights", "load_weights",
    "write_checkpoint", "drop", "load_checkpoint", "save_checkpoint",
    "drop_old", "checkpoints", "average_weights", "choose_checkpoints",
]  # fmt: skip


# 15-checkpoints.md: Written whole, or not at all
def save_weights(model: Transformer, path: Path) -> None:
    """Write the parameters, a shared one once, as safetensors."""
    write_weights(dict(model.named_parameters()), path)


def write_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors by name. OSError where there is no room."""
    whole = {n: w.detach().cpu().contiguous() for n, w in weights.items()}
    try:
        safetensors.torch.save_file(whole, path)
    except safetensors.SafetensorError as error:
        raise OSError(f"{path}: not written ({error})") from None


def read_weights(
    path: Path, like: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """What write_weights wrote. RunError where it cannot be read, or has
    other names or shapes than like.
    """
    try:
        weights = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
    there, here = (
        {name: tuple(w.shape) for name, w in some.items()}
        for some in (weights, weights if like is None else like)
    )
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            raise RunError(
                f"{path} does not fit the model: {name} is "
                f"{there.get(name, 'absent')} in the file, not "
                f"{here.get(name, 'absent')}"
            )
    return weights


def load_weights(model: Transformer, path: Path) -> None:
    """Read what save_weights wrote. RunError where it does not fit."""
    own = dict(model.named_parameters())
    weights = read_weights(path, own)
    with torch.no_grad():
        for name, parameter in own.items():
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
    write_weights(weights, fresh / "model.safetensors")
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
    """Delete a checkpoint; its name never belongs to half of one."""
    hidden = place.with_name(f".{place.name}.old")
    place.rename(hidden)
    shutil.rmtree(hidden)


def load_checkpoint(trainer: Trainer, place: Path) -> None:
    """Go on from a checkpoint. RunError, naming the file, where it is
    damaged; TrainingError where it belongs to another run.
    """
    name = "checksums.json"
    try:
        sums = dict(json.loads((place / name).read_text("utf-8")))
        for name in ("model.safetensors", "state.pt"):
            if checksum(place / name) != sums.get(name):
                raise ValueError("by its checksum, it has changed")
        state = torch.load(place / name, "cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds
        raise RunError(f"{place / name} cannot be read: {error}") from None
    own = dict(trainer.model.named_parameters())
    trainer.load(read_weights(place / "model.safetensors", own), state)


def save_checkpoint(
    trainer: Trainer, folder: Path, keep: int = 5, every: int = 1
) -> Path:
    """Write folder/STEP, whole or not at all, and drop_old."""
    place = folder / f"{trainer.step:08d}"
    write_checkpoint(trainer.weights(), trainer.state(), place)
    drop_old(place, keep, every)
    return place


def drop_old(place: Path, keep: int, every: int) -> None:
    """Drop all checkpoints except place and the last keep of those whose
    step is a multiple of every.
    """
    kept = [place, *checkpoints(place.parent, every)[-keep:]]
    for old in checkpoints(place.parent):
        if old not in kept:
            drop(old)


def checkpoints(folder: Path, every: int = 1) -> list[Path]:
    """The finished checkpoints in folder whose step is a multiple of
    every, the oldest first.
    """
    named = [p for p in folder.glob("[0-9]*") if p.name.isdecimal()]
    steps = sorted((int(p.name), p) for p in named if p.is_dir())
    whole = [(s, p) for s, p in steps if p.name == f"{s:08d}"]
    return [place for step, place in whole if step % every == 0]


# 15-checkpoints.md: How it ends: trembling
def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints (§6.1). RunError
    where there are none, or where one cannot be read or does not fit.
    """
    if not paths:
        raise RunError("there are no checkpoints to average")
    first = read_weights(paths[0])
    total = {name: weight.double() for name, weight in first.items()}
    for path in paths[1:]:
        for name, weight in read_weights(path, first).items():
            total[name] += weight.double()
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
    the validation loss by step. RunError if there are fewer than count,
    or fewer that were validated.
    """
    check_whole("the number of checkpoints", count, least=1)
    what = "checkpoints"
    if nll is not None:
        places = [p for p in places if int(p.name) in nll]
        places = sorted(places, key=lambda p: -nll[int(p.name)])
        what = "validated checkpoints"
    if len(places) < count:
        raise RunError(
            f"{count} {what} are wanted, but there are {len(places)}: a "
            "run keeps as many as keep says"
        )
    return list(places[-count:])
