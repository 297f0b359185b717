"""Page E32: each part is its plain form, wherever it is computed."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from annotated.attention import MultiHeadAttention, attention_weights
from annotated.engine import kernels
from annotated.engine.packing import (
    PackedMask,
    PackedTransformer,
    Packing,
    check_parts,
)
from annotated.engine.parts import (
    ComposedAttention,
    PartsConfig,
    _NormedLinear,
)
from annotated.engine.search import beam_search
from annotated.layers import FeedForward
from annotated.masks import causal_mask, padding_mask, window_mask
from annotated.model import Transformer
from annotated.search import (
    SearchConfig,
    cached_beam_search,
    plain_beam_search,
)
from annotated.since import (
    GroupedQueryAttention,
    NoPositions,
    RMSNorm,
    RotaryAttention,
    SwiGLU,
    swap,
)
from annotated.tokens import PAD
from tests.engine.parts import PARTS, SRC, TGT, config_of, shaken
from tests.searching import assert_equal, push_end, random_sentences

DOUBLE = torch.float64


def block_of(part: str, layer: int | None = 0, **changes: Any) -> Any:
    torch.manual_seed(1)
    return shaken(
        ComposedAttention(config_of(part, **changes), layer)
    ).double()


# --- the block and its plain form


PLAIN = {
    "rotary": lambda: RotaryAttention(16, 4),
    "groups": lambda: GroupedQueryAttention(16, 4, 2),
    "RMSNorm": lambda: MultiHeadAttention(16, 4),
}


@pytest.mark.parametrize("part", PLAIN)
@pytest.mark.parametrize("cross", [False, True])
def test_a_block_is_that_of_chapter_26(part: str, cross: bool) -> None:
    block = block_of(part, None if cross else 0)
    plain = PLAIN[part]().double()
    plain.load_state_dict(block.state_dict())
    x = 9 * torch.randn(3, 6, 16, dtype=DOUBLE)
    memory = torch.randn(3, 4, 16, dtype=DOUBLE) if cross else None
    mask = padding_mask(SRC[:, :4] if cross else SRC)
    both = block(x, memory, mask), plain(x, memory, mask)
    torch.testing.assert_close(*both, rtol=1e-10, atol=1e-10)


def scores_by_hand(block: Any, x: torch.Tensor) -> torch.Tensor:
    q, k = (
        m(x).unflatten(-1, (4, -1)).transpose(1, 2)
        for m in (block.w_q, block.w_k)
    )
    return q @ k.mT / 2  # √d_k


def test_alibi_subtracts_the_distance() -> None:
    block = block_of("alibi")
    x = torch.randn(1, 6, 16, dtype=DOUBLE)
    far = (torch.arange(6)[:, None] - torch.arange(6)).abs()
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])
    scores = scores_by_hand(block, x) - slopes[:, None, None] * far
    torch.testing.assert_close(block.weights(x), scores.softmax(dim=-1))


def test_a_relative_bias_is_looked_up_by_distance() -> None:
    block = block_of("relative")
    x = torch.randn(1, 20, 16, dtype=DOUBLE)
    scores = scores_by_hand(block, x)
    for i in range(20):
        for j in range(20):
            place = min(16, max(-16, i - j)) + 16
            scores[0, :, i, j] += block.distances.table[:, place]
    torch.testing.assert_close(block.weights(x), scores.softmax(dim=-1))


def test_normed_queries_and_keys_have_one_length() -> None:
    linear = _NormedLinear(8, 12, 4, bias=True).double()
    with torch.no_grad():
        linear.gain.copy_(torch.tensor([1.0, 2.0, 0.5, -1.0]))
    x = torch.randn(3, 8, dtype=DOUBLE)
    heads = F.linear(x, linear.weight, linear.bias).view(3, 3, 4)
    size = (heads.square().sum(-1, keepdim=True) / 4 + 1e-6).sqrt()
    expected = (heads / size * linear.gain).view(3, 12)
    torch.testing.assert_close(linear(x), expected)


def test_windows_go_round_the_layers() -> None:
    sizes = [block_of("windows", layer).window for layer in range(4)]
    assert sizes == [3, None, 3, None]
    assert block_of("windows", None).window is None  # cross-attention
    block, x = block_of("windows"), torch.randn(2, 6, 16, dtype=DOUBLE)
    q, k = (block.split(m(x)) for m in (block.w_q, block.w_k))
    expected = attention_weights(q, k, window_mask(6, 3))
    torch.testing.assert_close(block.weights(x), expected)


# --- the whole model


def pair_of(part: str, **changes: Any) -> tuple[Transformer, Transformer]:
    """The plain and the packed model, with the same numbers."""
    config = config_of(part, **changes)
    plain = shaken(Transformer(config)).double().eval()
    fast = PackedTransformer(config).double().eval()
    fast.load_state_dict(plain.state_dict())
    return plain, fast


@pytest.mark.parametrize("part", PARTS)
def test_packed_and_plain_agree_and_so_do_their_gradients(
    part: str,
) -> None:
    plain, fast = pair_of(part)
    check_parts(plain)
    check_parts(fast)
    grads, outputs = [], []
    for model in (plain, fast):
        logits = model(SRC, TGT)
        real = logits[TGT != PAD]
        (real * torch.arange(1.0, 13)).square().sum().backward()
        outputs.append(real)
        grads.append({n: p.grad for n, p in model.named_parameters()})
    torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-9)
    for name, grad in grads[0].items():
        assert grad is not None and bool(grad.isfinite().all()), name
        torch.testing.assert_close(
            grads[1][name], grad, rtol=1e-7, atol=1e-7
        )


@pytest.mark.parametrize("part", PARTS)
def test_padding_and_the_future_change_nothing(part: str) -> None:
    for model in pair_of(part):
        together = model(SRC, TGT)
        alone = model(SRC[1:2, :2], TGT[1:2, :1])
        torch.testing.assert_close(together[1, 0], alone[0, 0])
        later = TGT.clone()
        later[0, 3:] = 11
        torch.testing.assert_close(
            model(SRC, later)[0, :3], together[0, :3]
        )


@pytest.mark.parametrize("part", ["rotary", "alibi", "relative", "none"])
def test_nothing_is_added_to_the_embeddings(part: str) -> None:
    model = Transformer(config_of(part))
    assert isinstance(model.src_positions, NoPositions)
    assert isinstance(model.tgt_positions, NoPositions)
    swapped = swap(Transformer(config_of("RMSNorm")), "RMSNorm")
    assert not isinstance(swapped.src_positions, NoPositions)


def test_every_norm_and_network_is_another() -> None:
    kinds = [type(m) for m in Transformer(config_of("all")).modules()]
    assert kinds.count(RMSNorm) == 2 * 2 + 2 * 3 + 2
    assert kinds.count(SwiGLU) == 4
    assert nn.LayerNorm not in kinds


def test_a_gate_has_the_activation_that_is_asked_for() -> None:
    network: Any = (
        Transformer(config_of("all")).encoder.layers[0].feed_forward
    )
    assert network.activation is F.relu
    x = torch.randn(2, 16)
    gate, inner = network.gate(x).relu(), network.inner(x)
    torch.testing.assert_close(network(x), network.outer(gate * inner))


def test_gelu_by_its_formula_is_in_every_network() -> None:
    gated = config_of("by tanh", gated=True)
    for config in (config_of("by tanh"), gated):
        networks = [
            part
            for part in Transformer(config).modules()
            if isinstance(part, (FeedForward, SwiGLU))
        ]
        assert len(networks) == 4
        x = torch.tensor(1.0)
        formula = 0.5 * (1 + math.tanh((2 / math.pi) ** 0.5 * 1.044715))
        for network in networks:
            assert network.activation(x).item() == pytest.approx(formula)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("beam", [1, 3])
def test_every_search_finds_the_same(part: str, beam: int) -> None:
    plain, fast = pair_of(part, src_vocab=11, tgt_vocab=11)
    sentences = random_sentences(4, seed=2)
    config = SearchConfig(beam, extra=9, nbest=beam)
    for model in (plain, fast):
        with torch.no_grad():
            push_end(model, -1.0)
            model.embeddings.bias.data = model.embeddings.bias.data.double()
    expected = [plain_beam_search(plain, s, config) for s in sentences]
    for search in (beam_search, cached_beam_search):
        for model in (plain, fast):
            for one, other in zip(
                search(model, sentences, config), expected
            ):
                assert_equal(one, other)


@pytest.mark.skipif(
    kernels._attend is None, reason="torch before 2.4 has no custom_op"
)
@pytest.mark.parametrize("part", ["rotary", "groups", "qk_norm", "windows"])
def test_a_kernel_without_the_rectangle_computes_the_same(
    part: str,
) -> None:
    block = block_of(part).float()
    packing = Packing.of(SRC)
    x = packing.pack(torch.randn(3, 6, 16))
    for causal in (False, True):
        masks = [
            PackedMask.to(packing, packing, causal, kernel=kernel)
            for kernel in (None, "sentences")
        ]
        one, other = (block(x, mask=mask) for mask in masks)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_bias_gets_the_rectangle_where_the_kernel_has_none() -> None:
    block = block_of("relative")
    packing = Packing.of(TGT)
    x = packing.pack(torch.randn(3, 5, 16, dtype=DOUBLE))
    masks = [
        PackedMask.to(packing, packing, True, kernel=kernel)
        for kernel in (None, "sentences")
    ]
    torch.testing.assert_close(*(block(x, mask=m) for m in masks))
    plain = block(packing.pad(x), mask=causal_mask(5))
    torch.testing.assert_close(block(x, mask=masks[0]), packing.pack(plain))


@pytest.mark.parametrize("part", ["rotary", "relative", "qk_norm"])
def test_half_precision_is_near(part: str) -> None:
    plain, _ = pair_of(part)
    fast = PackedTransformer(plain.config).eval()
    fast.load_state_dict(plain.state_dict())
    with torch.autocast("cpu", torch.bfloat16):
        x, packing = fast.hidden(SRC, TGT)
    exact = plain.decode(TGT, plain.encode(SRC), SRC)
    off = (packing.pad(x.double()) - exact)[TGT != PAD]
    assert off.norm() < 0.05 * exact[TGT != PAD].norm()


# --- fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_kv_heads": 3}, "num_kv_heads 3 does not divide num_heads 4"),
        ({"num_kv_heads": 2, "d_v": 5}, "d_k and d_v to be equal"),
        ({"positions": "rotary", "d_k": 3}, "even d_k, not 3"),
        ({"approximate": "tanh"}, "approximate tanh needs activation gelu"),
        ({"windows": (3, -1)}, "windows must be integers >= 0, not -1"),
        ({"windows": (3,), "window": 4}, "window or windows, not both"),
        ({"positions": "spiral"}, "positions must be one of sinusoidal"),
        ({"norm_kind": "mass"}, "norm_kind must be one of layer, rms"),
        ({"parts": ("unheard-of",)}, "no part 'unheard-of'"),
    ],
)
def test_a_wrong_field_is_named(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_of("none", **{"positions": "sinusoidal"} | fields)


def test_without_new_parts_it_is_the_papers_model() -> None:
    shape = vars(config_of("none", positions="sinusoidal"))
    kinds = [
        [type(m) for m in Transformer(PartsConfig(**shape)).modules()],
        [type(m) for m in Transformer(config_of("windows")).modules()],
    ]
    assert ComposedAttention not in kinds[0]
    assert ComposedAttention in kinds[1]
