"""What the paper says of distance, recurrence and convolution (§1, §2, §4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from annotated.attention import (
    attention,
)
from annotated.book.counters import multiplications
from annotated.book.results import ledger
from annotated.complexity import (
    Convolution,
    Recurrent,
    RestrictedSelfAttention,
    SelfAttention,
    SeparableConvolution,
    _one_step,
    path_length,
)
from annotated.costs import P100, PAPER_HOURS, paper_cost
from annotated.engine.hooks import attention_blocks
from annotated.masks import causal_mask, window_mask
from annotated.model import ModelShape
from annotated.pocket import pocket_pairs
from annotated.seq2seq import (
    LSTM,
    AdditiveAttention,
    Convolutions,
    EncoderDecoder,
    sequential_products,
)
from annotated.variations import TABLE2
from tests.pages.cards import card
from tests.pages.small import SRC, TGT, model

# --- 1 and 2: what is not in it, and what distance costs ------------------


def test_a_look_up_takes_no_notice_of_distance() -> None:
    """1 p3: beside recurrence, attention finds a state wherever it is."""
    torch.manual_seed(0)
    part = AdditiveAttention(12).double()
    query, memory = torch.randn(2, 12).double(), torch.randn(2, 30, 12)
    memory = memory.double()
    order = torch.randperm(30)
    weights = part.weights(query, memory)
    torch.testing.assert_close(
        part.weights(query, memory[:, order]), weights[:, order]
    )
    for attends in (False, True):
        reader = EncoderDecoder(LSTM(12, 12), 40, 12, attends).double()
        reader.encoder = nn.Identity()  # nothing but the look-up remains
        src = torch.arange(30)[None]
        before = reader(src, TGT)
        far_and_near = src[:, [*range(28, -1, -1), 29]]
        torch.testing.assert_close(reader(far_and_near, TGT), before)
        for place in (0, 14, 28):
            other = src.clone()
            other[0, place] = 39
            felt = (reader(other, TGT) - before).abs().amax(dim=-1)
            assert ((felt > 1e-6) == attends).all(), place


def test_nothing_in_the_model_waits_for_another_position() -> None:
    """1 p4: attention alone, no recurrence and no convolution."""
    whole = model()
    recurrent = (nn.RNNBase, nn.RNNCellBase, nn.modules.conv._ConvNd)
    assert not [m for m in whole.modules() if isinstance(m, recurrent)]
    chains = set()
    for length in (3, 30, 90):
        ids = torch.ones(1, length, dtype=torch.long)
        chains.add(sequential_products(whole(ids, ids)))
    assert len(chains) == 1


def test_each_layer_reaches_both_sentences_whole() -> None:
    """1 p4: a dependency may lie anywhere in the input or the output."""
    whole = model()

    def drawn(length: int) -> Tensor:
        x = torch.randn(1, length, whole.config.d_model).double()
        return x.requires_grad_()

    for layer in whole.encoder.layers:
        x = drawn(9)
        layer(x)[:, 0].pow(3).sum().backward()
        assert x.grad is not None and (x.grad.norm(dim=-1) > 1e-9).all()
    for layer in whole.decoder.layers:
        x, memory = drawn(6), drawn(9)
        layer(x, memory, causal_mask(6))[:, -1].pow(3).sum().backward()
        for side in (x, memory):
            assert side.grad is not None
            assert (side.grad.norm(dim=-1) > 1e-9).all()


def test_without_attention_no_position_hears_another() -> None:
    """1 p4: all that ties positions together goes through attention, and
    with it everything of the source is heard.
    """
    whole = model()
    length = TGT.size(1)

    def heard(src: Tensor, tgt: Tensor) -> list[bool]:
        changed = (whole(src, tgt) - before).abs().amax(dim=-1)[0]
        return (changed > 1e-9).tolist()

    for silent in (False, True):
        if silent:
            for block in attention_blocks(whole).values():
                block.register_forward_hook(
                    lambda m, args, out: torch.zeros_like(out)
                )
        before = whole(SRC, TGT)
        for i in range(SRC.size(1)):
            src = SRC.clone()
            src[0, i] = 11
            assert heard(src, TGT) == [not silent] * length
        for i in range(length):
            tgt = TGT.clone()
            tgt[0, i] = 11
            there = range(length)
            assert heard(SRC, tgt) == [
                j == i if silent else j >= i for j in there
            ]


def test_twelve_hours_on_eight_gpus_were_enough_for_the_best() -> None:
    """1 p4: the base model's, to German, as 5.2 and Table 2 have it."""
    assert PAPER_HOURS["base"] == 12
    assert paper_cost(12) == paper_cost(12, gpus=8, speed=P100)
    others = [
        row.german
        for name, row in TABLE2.items()
        if name not in ("base", "big") and row.german is not None
    ]
    best = TABLE2["base"].german
    assert len(others) == 6 and best is not None and best > max(others)
    said = card("01-before-attention", "Paper §1, paragraph 4")
    assert "twelve hours of training on eight P100 GPUs" in said


@pytest.mark.parametrize(
    ("dilated", "wanted"), [(False, [1, 2, 4, 8]), (True, [1, 2, 3, 4])]
)
def test_distance_costs_convolutions_layers(
    dilated: bool, wanted: list[int]
) -> None:
    """2 p1: as many as the distance in ConvS2S, as its logarithm in
    ByteNet, where the gaps double.
    """
    found = []
    for distance in (1, 3, 7, 15) if dilated else (1, 2, 4, 8):
        x = torch.randn(1, 2 * distance + 1, 4, requires_grad=True)
        for layers in range(1, 20):
            stack = Convolutions(4, layers, dilated=dilated)
            for layer in stack.layers:  # no unit is ever silent
                layer.weight.data.abs_()
            y = stack(x.abs())[0, distance].sum()
            (gradient,) = torch.autograd.grad(y, x)
            if gradient[0, 0].abs().sum() > 0:
                found.append(layers)
                break
    assert found == wanted
    for distance in (1, 8, 15):  # the paper's own: a constant number
        everybody = torch.ones(distance + 1, distance + 1).bool()
        assert path_length(lambda _: SelfAttention(4), everybody, 4) == 1


# --- 4: Table 1, row by row -----------------------------------------------

Make = Callable[[int, int, int], Any]
ROWS: dict[str, tuple[Make, Make, Make]] = {
    # complexity per layer, sequential operations, longest path
    "self-attention": (
        lambda n, d, w: 2 * n * n * d, lambda n, d, w: 1, lambda n, d, w: 1,
    ),
    "recurrent": (
        lambda n, d, w: n * d * d,
        lambda n, d, w: n,
        lambda n, d, w: n - 1,
    ),
    "convolutional": (
        lambda n, d, w: w * n * d * d,
        lambda n, d, w: 1,
        lambda n, d, w: math.ceil(round(math.log(n, w), 9)),
    ),
    "restricted": (
        lambda n, d, w: 2 * w * n * d,
        lambda n, d, w: 1,
        lambda n, d, w: math.ceil((n - 1) / (w // 2)),
    ),
}  # fmt: skip


def one_level(step: Any, level: int) -> Any:
    """The same step at every level."""
    return step


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_table_1_holds_for_our_layer(row: str) -> None:
    """Its three cells, in numbers, at several n and d, k or r = 5."""
    work, waits, path = ROWS[row]
    w = 5

    def layer_at(d: int, level: int) -> Any:
        return {
            "self-attention": lambda: SelfAttention(d),
            "recurrent": lambda: Recurrent(d),
            "convolutional": lambda: Convolution(d, w, dilation=w**level),
            "restricted": lambda: RestrictedSelfAttention(d, w),
        }[row]()

    waited = set()
    for n, d in ((12, 4), (24, 4), (24, 8)):
        layer, x = layer_at(d, 0), torch.randn(1, n, d, requires_grad=True)
        found = multiplications(layer, x)
        if row == "recurrent":  # it also multiplies its input, U x
            found //= 2
        assert found == work(n, d, w)
        waited.add(sequential_products(layer(x)) / waits(n, d, w))
        past = row in ("recurrent", "convolutional")
        wanted = causal_mask(n) if past else torch.ones(n, n).bool()
        levels: Any = partial(layer_at, 4)
        if row == "recurrent":
            levels = partial(one_level, partial(_one_step, Recurrent(4)))
        assert path_length(levels, wanted, 4) == path(n, d, w)
    assert len(waited) == 1


def test_convolutions_beside_recurrence_and_attention() -> None:
    """4 p5: short kernels want a stack; k times the work, or separable."""
    n, d, k = 28, 8, 3
    x = torch.randn(1, n, d)
    everybody = torch.ones(n, n).bool()
    assert path_length(lambda i: Convolution(4, k), causal_mask(n), 4) == 14
    assert (
        path_length(  # log_3 28, rounded up
            lambda i: Convolution(4, k, dilation=k**i), causal_mask(n), 4
        )
        == 4
    )
    recurrent = multiplications(Recurrent(d), x) / 2  # without U x
    assert multiplications(Convolution(d, k), x) == k * recurrent
    for width in (k, n):
        found = multiplications(SeparableConvolution(d, width), x)
        assert found == width * n * d + n * d * d
    attention = multiplications(SelfAttention(d), x) / 2  # scores alone
    pointwise = multiplications(nn.Linear(d, d), x)
    assert found == attention + pointwise
    assert path_length(lambda _: SelfAttention(4), everybody, 4) == 1


def test_the_window_of_restricted_attention_is_r_wide() -> None:
    """4 p4: around the position itself; the path grows to n/r."""
    everybody = torch.ones(20, 20).bool()
    for r in (1, 3, 5, 9):
        mask = window_mask(20, r)
        seen = mask[10].nonzero().flatten().tolist()
        assert seen == list(range(10 - r // 2, 10 + r // 2 + 1))
        assert mask.sum(dim=-1).max() == r
        if r > 1:
            levels: Any = partial(one_level, partial(attend_within, mask))
            found = path_length(levels, everybody, 4)
            assert found == math.ceil(19 / (r // 2))


def attend_within(mask: Tensor, x: Tensor) -> Tensor:
    return attention(x, x, x, mask)


def test_attention_beside_recurrence_and_within_a_window() -> None:
    """4 p4: nothing waits; less work where n < d, as in sentences; a
    window of r takes less still, and n/r layers.
    """
    d, r = 16, 5
    chains: dict[Any, list[int]] = {}
    for n in (d - 1, d + 1, 4 * d):
        x = torch.randn(1, n, d, requires_grad=True)
        attend, recur = SelfAttention(d), Recurrent(d)
        work = [multiplications(one, x) for one in (attend, recur)]
        assert (work[0] < work[1]) == (n < d)
        for one in (attend, recur):
            chains.setdefault(type(one), []).append(
                sequential_products(one(x))
            )
        near = RestrictedSelfAttention(d, r)
        assert n * multiplications(near, x) == r * work[0]
        everybody = torch.ones(n, n).bool()
        layers = path_length(
            lambda _: RestrictedSelfAttention(4, r), everybody, 4
        )
        assert layers == math.ceil((n - 1) / (r // 2))
    assert len(set(chains[SelfAttention])) == 1
    assert chains[Recurrent] == [d - 1, d + 1, 4 * d]
    words = [len(pair.source.split()) for pair in pocket_pairs(1000)]
    assert max(words) < ModelShape().d_model


def test_what_chapter_09_says_of_additive_attention() -> None:
    """3.2.1 p4: as good with small keys, and with large ones better than
    products without the factor; with it, products keep up.
    """
    rows = {
        (row["d_k"], row["kind"]): row["exact"]
        for d_k in (4, 16, 64)
        for row in ledger()[f"additive-{d_k}"]["metrics"]["rows"]
    }
    assert len(rows) == 9
    for (d_k, kind), exact in rows.items():
        assert len(exact) == 3
        if kind != "unscaled" or d_k == 4:
            assert min(exact) > 0.97, (d_k, kind)
    assert min(rows[16, "unscaled"]) < 0.1 < 0.9 < max(rows[16, "unscaled"])
    assert max(rows[64, "unscaled"]) < 0.1
