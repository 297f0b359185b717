"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from annotated.engine.errors import RunError

__all__ = [
    "write_tensors", "read_tensors", "check_fit", "load_weights",
    "check_numbers",
]  # fmt: skip


# E3-ground.md: Tensors in a file
def write_tensors(
    tensors: Mapping[str, Tensor],
    path: Path,
    metadata: dict[str, str] | None = None,
) -> None:
    """Write tensors by name. OSError where there is no room."""
    copies = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
    path.touch()
    mode = path.stat().st_mode  # safetensors lets only the owner read
    try:
        safetensors.torch.save_file(copies, path, metadata)
        path.chmod(mode)
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
    shapes, expected = (
        {name: tuple(t.shape) for name, t in some.items()}
        for some in (tensors, like)
    )
    for name in sorted(shapes.keys() | expected.keys()):
        if shapes.get(name) != expected.get(name):
            raise RunError(
                f"{path} does not fit the model: {name} is "
                f"{shapes.get(name, 'absent')} in the file, not "
                f"{expected.get(name, 'absent')}"
            )


def load_weights(model: nn.Module, path: Path) -> None:
    """Read a model's parameters. RunError where they do not fit."""
    parameters = dict(model.named_parameters())
    weights = read_tensors(path, parameters)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def check_numbers(x: Tensor) -> None:
    """RunError where x has a NaN. Waits for the device."""
    if bool(x.isnan().any()):
        raise RunError(
            "the model's numbers are not finite: either its weights are "
            "damaged, or --precision float32 is needed"
        )
