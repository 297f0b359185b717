"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from annotated.engine.errors import RunError

__all__ = ["write_tensors", "read_tensors", "check_fit", "load_weights"]


# E3-ground.md: Tensors in a file
def write_tensors(
    tensors: Mapping[str, Tensor],
    path: Path,
    metadata: dict[str, str] | None = None,
) -> None:
    """Write tensors by name. OSError where there is no room."""
    whole = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
    path.touch()
    rights = path.stat().st_mode  # safetensors lets only the owner read
    try:
        safetensors.torch.save_file(whole, path, metadata)
        path.chmod(rights)
    except safetensors.SafetensorError as error:
        raise OSError(f"{path}: not written ({error})") from None


def read_tensors(
    path: Path, like: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """What write_tensors wrote. RunError where it cannot be read, or has
    other names or shapes than like.
    """
    try:
        tensors = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
    if like is not None:
        check_fit(path, tensors, like)
    return tensors


def check_fit(
    path: Path, tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]
) -> None:
    """RunError unless tensors, read from path, have the names and shapes
    of like.
    """
    there, here = (
        {name: tuple(t.shape) for name, t in some.items()}
        for some in (tensors, like)
    )
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            raise RunError(
                f"{path} does not fit the model: {name} is "
                f"{there.get(name, 'absent')} in the file, not "
                f"{here.get(name, 'absent')}"
            )


def load_weights(model: nn.Module, path: Path) -> None:
    """Read a model's parameters. RunError where they do not fit."""
    own = dict(model.named_parameters())
    weights = read_tensors(path, own)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
