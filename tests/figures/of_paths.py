"""What figures of paths, positions and caches have to compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from annotated.attention import MultiHeadAttention, attention_weights
from annotated.embeddings import sinusoids
from annotated.masks import causal_mask, window_mask
from annotated.seq2seq import RNN, Convolutions, sequential_products
from annotated.since import GroupedQueryAttention, _RotaryGroups


def path() -> list[dict[str, Any]]:
    """The least layers after which an output depends on an input, and the
    products of a recurrent layer between the two; -1 if it never does.
    """
    torch.manual_seed(0)
    cases = [("recurrent", 9, 5, recurrent(9))]
    for n, k in ((9, 3), (9, 5), (17, 3), (17, 7)):
        mask = window_mask(n, k)
        for kind, stack in (
            ("convolution", convolutions(k, False)),
            ("dilated", convolutions(k, True)),
            ("attention", attentions(None)),
            ("window", attentions(mask)),
        ):
            cases.append((kind, n, k, layers_between(stack, n)))
    return [
        {"kind": kind, "n": n, "k": k, "steps": steps}
        for kind, n, k, steps in cases
    ]


def recurrent(n: int) -> list[list[int]]:
    """The products between letter i, which alone has a gradient, and state
    j: [i][j].
    """
    layer, steps = RNN(4, 4).requires_grad_(False), []
    for i in range(n):
        letters, h = torch.randn(n, 1, 4).unbind(), torch.zeros(1, 4)
        letters[i].requires_grad_()
        steps.append([])
        for x in letters:
            h = layer.step(x, h)
            far = sequential_products(h) if h.requires_grad else -1
            steps[i].append(far)
    return steps


def convolutions(k: int, dilated: bool) -> Callable[[int], nn.Module]:
    return lambda depth: Convolutions(4, depth, k, dilated).double()


def attentions(mask: Tensor | None) -> Callable[[int], nn.Module]:
    return lambda depth: Attentions(depth, mask).double()


class Attentions(nn.Module):
    """So many layers of self-attention, and nothing else."""

    def __init__(self, depth: int, mask: Tensor | None):
        super().__init__()
        blocks = (MultiHeadAttention(4, 2) for _ in range(depth))
        self.layers, self.mask = nn.ModuleList(blocks), mask

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask=self.mask)
        return x


def layers_between(
    stack: Callable[[int], nn.Module], n: int
) -> list[list[int]]:
    """The least depth at which output j depends on input i: [i][j]."""
    found = torch.full((n, n), -1)
    for depth in range(1, n + 1):
        x = torch.randn(16, n, 4, dtype=torch.float64, requires_grad=True)
        sums = stack(depth)(x).sum(dim=(0, 2))
        felt = [
            torch.autograd.grad(one, x, retain_graph=True)[0]
            for one in sums
        ]
        depends = torch.stack(felt).abs().sum(dim=(1, 3)).T > 0
        found[(found < 0) & depends] = depth
        if (found > 0).all():
            break
    return found.tolist()


def switches() -> dict[str, Any]:
    """Maps of the page's layers: with their keys in groups, positions that
    are turned or added, from any start, in a window.
    """
    torch.manual_seed(0)
    x = torch.randn(1, 12, 32, dtype=torch.float64)
    block = MultiHeadAttention(32, 8, bias=False).double()
    cases = []
    for rotary, start, groups, head, window in (
        (True, 0, 8, 0, 12),
        (True, 40, 4, 3, 12),
        (True, 13, 1, 7, 4),
        (False, 0, 8, 5, 12),
        (False, 17, 2, 4, 1),
        (False, 40, 1, 0, 6),
    ):
        layer = grouped(block, groups, rotary)
        places = sinusoids(start + 12, 32, x.dtype)[start:]
        placed = x if rotary else x + places
        q, k = (
            layer.split(layer.w_q(placed)),
            layer.split(layer.w_k(placed)),
        )
        if isinstance(layer, _RotaryGroups):
            q, k = layer.turn(q, start), layer.turn(k, start)
        scores = q @ k.transpose(-2, -1) / 2  # √d_k
        cache = layer.cache(x[:, -window:])
        case = {
            "rotary": rotary,
            "start": start,
            "groups": groups,
            "head": head,
            "window": window,
            "scores": scores[0, head].tolist(),
            "weights": attention_weights(q, k, behind(12, window))[
                0, head
            ].tolist(),
            "kept": cache.k.numel() + cache.v.numel(),
        }
        cases.append(case)
    weights = {"wq": block.w_q.weight, "wk": block.w_k.weight}
    given = {name: one.tolist() for name, one in weights.items()}
    reaches = [
        (layers, window, back(layers, window))
        for layers, window in ((1, 1), (1, 4), (2, 4), (6, 3), (3, 12))
    ]
    return {
        "layer": {**given, "x": x[0].tolist(), "heads": 8},
        "cases": cases,
        "reaches": reaches,
    }


def small_layer() -> dict[str, Any]:
    """What the figure is given: words, and a layer that has learned
    nothing.
    """
    torch.manual_seed(1)
    words = ["the", "dog", "sees", "the", "cat", "and", "the", "cat"]
    words += ["sees", "the", "dog", "again"]
    block = MultiHeadAttention(32, 8, bias=False)
    return {
        "words": words,
        "vectors": {word: torch.randn(32) for word in dict.fromkeys(words)},
        "heads": 8,
        "w_q": block.w_q.weight.detach(),
        "w_k": block.w_k.weight.detach(),
    }


def grouped(
    block: MultiHeadAttention, groups: int, rotary: bool
) -> GroupedQueryAttention:
    """The layer whose groups have the mean keys of their heads."""
    kind = _RotaryGroups if rotary else GroupedQueryAttention
    layer = kind(32, 8, groups, bias=False).double()
    state = block.state_dict()
    for name in ("w_k.weight", "w_v.weight"):
        parts = state[name].unflatten(0, (groups, -1, block.d_k))
        state[name] = parts.mean(dim=1).flatten(0, 1)
    layer.load_state_dict(state)
    return layer.requires_grad_(False)


def behind(length: int, window: int) -> Tensor:
    """Its own key and those before it, as many as the window has."""
    return causal_mask(length) & window_mask(length, 2 * window - 1)


def back(layers: int, window: int) -> int:
    """How far the last of many positions hears through such layers."""
    one = behind(64, window).double()
    heard = torch.linalg.matrix_power(one, layers)[-1].nonzero()
    return int(63 - heard.min())
