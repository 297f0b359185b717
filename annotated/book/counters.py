"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["multiplications", "kept_numbers", "exponent"]


# E3-ground.md: Counters
@torch.no_grad()
def multiplications(layer: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """The number of multiply-adds in the matrix products and convolutions
    of layer(x), counted while it runs.
    """
    with FlopCounterMode(display=False) as counter:
        layer(x)
    return counter.get_total_flops() // 2  # it counts additions separately


def kept_numbers(layer: nn.Module, x: Tensor) -> int:
    """The number of elements that layer(x) saves for its backward pass,
    excluding x and the parameters.
    """
    x = x.detach().requires_grad_()
    known = {
        t.untyped_storage().data_ptr() for t in (x, *layer.parameters())
    }
    kept = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda t: t)
    with hooks:
        out = layer(x)  # kept alive until all is counted
    del out
    return sum(
        size for storage, size in kept.items() if storage not in known
    )


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent p of values ∝ sizes^p, fitted to the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
