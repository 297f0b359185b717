"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from annotated.engine.errors import RunError

__all__ = [
    "write_tensors", "read_tensors", "check_fit", "load_weights",
    "check_numbers", "take_tensors", "put_tensors",
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


def take_tensors(
    value: Any, path: str = ""
) -> tuple[Any, dict[str, Tensor]]:
    """A nested value as JSON can hold it, and its tensors, named by their
    paths in it. TypeError, with the path, where neither can hold a part.
    """
    if isinstance(value, Tensor):
        return {"tensor": path}, {path: value}
    if isinstance(value, (list, tuple)):
        parts = {str(i): each for i, each in enumerate(value)}
        rest, tensors = take_tensors(parts, path)
        return [*rest.values()], tensors
    if value is None or isinstance(value, (bool, int, float, str)):
        return value, {}
    if not isinstance(value, dict) or not all(
        isinstance(key, str) for key in value
    ):
        raise TypeError(f"{path} is a {type(value).__name__}")
    rest, tensors = {}, {}
    for key, each in value.items():
        inner = f"{path}.{key}" if path else key
        rest[key], some = take_tensors(each, inner)
        tensors |= some
    return rest, tensors


def put_tensors(rest: Any, tensor: Callable[[str], Tensor]) -> Any:
    """What take_tensors took apart, with tensor(path) for each tensor; a
    tuple is a list now.
    """
    if isinstance(rest, list):
        return [put_tensors(each, tensor) for each in rest]
    if not isinstance(rest, dict):
        return rest
    if rest.keys() == {"tensor"} and isinstance(rest["tensor"], str):
        return tensor(rest["tensor"])
    return {key: put_tensors(each, tensor) for key, each in rest.items()}
