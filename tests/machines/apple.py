"""A GPU without float64 and complex numbers, in the place of Apple's.

The CPU plays the device: a tensor of the model carries a mark, each operation
hands it on, and one that would make a marked tensor of float64 or of complex
numbers is written down, since MPS refuses it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

REFUSED = torch.float64, torch.complex64, torch.complex128


class Apple(TorchDispatchMode):
    """While it is entered, refused lists what MPS would not compute."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.refused: set[str] = set()
        self.operations: set[str] = set()
        self.kept = [*model.parameters(), *model.buffers()]
        self.storages = {t.untyped_storage()._cdata for t in self.kept}

    def __enter__(self) -> Apple:
        self.cpu = torch.Tensor.cpu
        torch.Tensor.cpu = lambda t: torch.from_numpy(  # without a mark
            t.detach().numpy().copy()
        )
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
        if any(map(self.marked, tree_flatten((args, kwargs))[0])):
            self.operations.add(str(func).split(".")[1])
            for made in tree_flatten(result)[0]:
                if isinstance(made, torch.Tensor):
                    if made.dtype in REFUSED:
                        stack = traceback.extract_stack()
                        ours = [
                            f for f in stack if "annotated" in f.filename
                        ]
                        self.refused.add(f"{func} {made.dtype} {ours[-1:]}")
                    self.storages.add(made.untyped_storage()._cdata)
                    self.kept.append(made)
        return result
