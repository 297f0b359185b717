"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from annotated.attention import MultiHeadAttention
from annotated.engine.errors import UsageError

__all__ = [
    "attention_blocks", "recorded_weights", "replace", "used_weights",
]  # fmt: skip


# E1-plots.md: The weights of a model
def attention_blocks(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """A model's attention: "encoder.0", …, "decoder.0", …, "cross.0", …;
    one that stands elsewhere has its own name.
    """
    blocks = {}
    for name, part in model.named_modules():
        if isinstance(part, MultiHeadAttention):
            where = name.split(".")  # such as decoder.layers.0.attention
            if len(where) == 4 and where[1] == "layers":
                side = where[0] if where[3] == "attention" else "cross"
                name = f"{side}.{where[2]}"
            blocks[name] = part
    return blocks


@contextmanager
def recorded_weights(
    blocks: Mapping[str, nn.Module],
) -> Iterator[dict[str, Tensor]]:
    """Context manager that yields a dictionary of the weights, (batch,
    heads, q_len, k_len), of each block's latest call, by block name.
    """
    maps: dict[str, Tensor] = {}

    def keep(name: str, block: Any, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            maps[name] = block.weights(*args, **kwargs)

    with ExitStack() as stack:
        for name, block in blocks.items():
            handle = block.register_forward_pre_hook(
                partial(keep, name), with_kwargs=True
            )
            stack.callback(handle.remove)
        yield maps


# E15-running-example.md: Taking a part out
def replace(
    model: nn.Module,
    kind: type[nn.Module],
    make: Callable[[Any], nn.Module],
) -> int:
    """Replace each part of the kind with make(part); return how many."""
    parts = [
        (parent, name, part)
        for parent in model.modules()
        for name, part in parent.named_children()
        if isinstance(part, kind)
    ]
    for parent, name, part in parts:
        setattr(parent, name, make(part))
    return len(parts)


# E32-change-the-model.md: The weights that were used
@contextmanager
def used_weights(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Context manager that yields a dictionary of the weights, (batch,
    heads, q_len, k_len), that each block's latest call has used, by block
    name: after dropout, and part of the graph. UsageError when a block
    that computes none is called.
    """
    maps: dict[str, Tensor] = {}

    def forget(name: str, *_: Any) -> None:
        maps.pop(name, None)

    def keep(name: str, block: Any, args: Any, weights: Tensor) -> None:
        maps[name] = weights

    def check(name: str, *_: Any) -> None:
        if name not in maps:
            raise UsageError(
                f"{name} is packed and has no weights: call the plain "
                "model, such as unpacked(model)"
            )

    with ExitStack() as stack:
        for name, block in attention_blocks(model).items():
            for handle in (
                block.register_forward_pre_hook(partial(forget, name)),
                block.dropout.register_forward_hook(partial(keep, name)),
                block.register_forward_hook(partial(check, name)),
            ):
                stack.callback(handle.remove)
        yield maps
