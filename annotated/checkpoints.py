"""Exported from the book; edit the chapter, then run `make export`."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors.torch import load_file, save
from torch import Tensor

from annotated.engine.errors import RunError, check_whole
from annotated.engine.tensors import read_tensors
from annotated.model import Transformer
from annotated.training import Trainer

__all__ = [
    "save_weights", "save_checkpoint", "load_checkpoint", "average_weights",
    "choose_checkpoints",
]  # fmt: skip


# 15-checkpoints.md: Written whole, or not at all
def save_weights(model: Transformer, path: Path) -> None:
    """Write the parameters, a shared one once."""
    fresh = path.with_name(f".{path.name}")
    weights = dict(model.named_parameters())
    fresh.write_bytes(save({n: w.detach() for n, w in weights.items()}))
    fresh.replace(path)


# 15-checkpoints.md: What the next step depends on
def save_checkpoint(trainer: Trainer, folder: Path) -> Path:
    """Write folder/STEP, whole or not at all."""
    path = folder / f"{trainer.step:08d}"
    fresh, old = (folder / f".{path.name}{end}" for end in ("", ".old"))
    for left in (fresh, old):  # by a run that was killed in here
        shutil.rmtree(left, ignore_errors=True)
    fresh.mkdir(parents=True)
    (fresh / "model.safetensors").write_bytes(save(trainer.weights()))
    (fresh / "optimizer.safetensors").write_bytes(save(trainer.moments()))
    (fresh / "state.json").write_text(json.dumps(trainer.state()))
    if path.exists():  # of an earlier run
        path.rename(old)
    fresh.rename(path)
    shutil.rmtree(old, ignore_errors=True)
    return path


def load_checkpoint(trainer: Trainer, path: Path) -> None:
    """Continue from a checkpoint. TrainingError if its data differ."""
    weights = load_file(path / "model.safetensors")
    moments = load_file(path / "optimizer.safetensors")
    state = json.loads((path / "state.json").read_text())
    trainer.load(weights, moments, state)


# 15-checkpoints.md: How it ends: trembling
def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints (§6.1). RunError
    where there are none, or where one cannot be read or does not fit.
    """
    if not paths:
        raise RunError("there are no checkpoints to average")
    first = read_tensors(paths[0])
    total = {name: weight.double() for name, weight in first.items()}
    for path in paths[1:]:
        for name, weight in read_tensors(path, first).items():
            total[name] += weight.double()
    return {
        n: (t / len(paths)).to(first[n].dtype) for n, t in total.items()
    }


# 15-checkpoints.md: The last, or the best?
def choose_checkpoints(
    paths: Sequence[Path],
    count: int,
    nll: Mapping[int, float] | None = None,
) -> list[Path]:
    """The last count of paths or, where nll is given, the best count.

    paths are checkpoints named by their steps, the oldest first; nll is
    the validation loss by step. RunError if there are fewer than count,
    or fewer that were validated.
    """
    check_whole("the number of checkpoints", count, least=1)
    what = "checkpoints"
    if nll is not None:
        paths = [p for p in paths if int(p.name) in nll]
        paths = sorted(paths, key=lambda p: -nll[int(p.name)])
        what = "validated checkpoints"
    if len(paths) < count:
        raise RunError(
            f"{count} {what} are wanted, but there are {len(paths)}: a "
            "run keeps as many as keep says"
        )
    return list(paths[-count:])
