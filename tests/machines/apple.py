"""A GPU without float64 and complex numbers, in the place of Apple's.

The CPU plays the device: a tensor of the model carries a mark, each operation
hands it on, and one of ours that would make a marked tensor of float64 or of
complex numbers is written down, since MPS refuses it. With
`python -m pytest -p tests.machines.apple` every test has such a device: all
models lie on it, and a test fails where our code asks for what it refuses.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import annotated
from annotated.model import Transformer

REFUSED = torch.float64, torch.complex64, torch.complex128
PACKAGE = str(Path(annotated.__file__).parent)
TORCH = str(Path(torch.__file__).parent)


def whose() -> str:
    """The line of the package that asks for this operation; "" where it
    is somebody else's, as when a test makes a model of float64."""
    for frame in reversed(traceback.extract_stack()):
        if (
            frame.filename not in (__file__,)
            and TORCH not in frame.filename
        ):
            ours = frame.filename.startswith(PACKAGE)
            return f"{frame.filename}:{frame.lineno}" if ours else ""
    return ""


class Apple(TorchDispatchMode):
    """While it is entered, refused lists what MPS would not compute."""

    def __init__(self, model: torch.nn.Module | None = None):
        super().__init__()
        self.refused: set[str] = set()
        self.operations: set[str] = set()
        self.kept: list[
            torch.Tensor
        ] = []  # no storage's number comes again
        self.storages: set[int] = set()
        if model is not None:
            self.move(model)

    def move(self, model: torch.nn.Module) -> None:
        """Let a model lie on the device."""
        for tensor in (*model.parameters(), *model.buffers()):
            self.mark(tensor)

    def mark(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self.kept.append(storage)
        self.storages.add(storage._cdata)

    def __enter__(self) -> Apple:
        self.cpu = torch.Tensor.cpu

        def cpu(tensor: torch.Tensor) -> torch.Tensor:
            back = tensor.clone()
            self.storages.discard(back.untyped_storage()._cdata)
            return back

        torch.Tensor.cpu = cpu
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.Tensor.cpu = self.cpu
        super().__exit__(*error)

    def marked(self, value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.untyped_storage()._cdata in self.storages
        )

    def __torch_dispatch__(
        self, func: Callable, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = [
            x for x in tree_flatten((args, kwargs))[0] if self.marked(x)
        ]
        if given:
            self.operations.add(str(func).split(".")[1])
            before = {tensor.dtype for tensor in given}
            for made in tree_flatten(result)[0]:
                if isinstance(made, torch.Tensor):
                    strange = made.dtype in REFUSED
                    if (
                        strange
                        and made.dtype not in before
                        and (at := whose())
                    ):
                        self.refused.add(f"{func} {made.dtype} {at}")
                    self.mark(made)
        return result


@pytest.fixture(autouse=True)
def apples_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every model lies on it; where this module is a plugin."""
    apple, plain = Apple(), Transformer.__init__

    def begin(model: Any, *args: Any, **more: Any) -> None:
        plain(model, *args, **more)
        apple.move(model)

    monkeypatch.setattr(Transformer, "__init__", begin)
    with apple:
        yield
    assert apple.refused == set(), "Apple's GPU refuses this"
