"""Chapter 05: every block against torch.nn or a number by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from annotated.attention import MultiHeadAttention
from annotated.layers import (
    DecoderLayer,
    Dropout,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    Residual,
    keep_mask,
)
from annotated.masks import Packing
from tests.helpers import torch_name

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
both_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
both_norms = pytest.mark.parametrize("norm", ["post", "pre"])

# what torch calls the norm around the feed-forward network
ENCODER, DECODER = "norm2", "norm3"


def shake(module):
    """Give every parameter a value of its own, norms and biases too."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


def encoder_layer(d_model=16, heads=4, d_ff=24, norm="post", dropout=0.0):
    return EncoderLayer(
        MultiHeadAttention(d_model, heads),
        FeedForward(d_model, d_ff),
        dropout,
        norm,
    )


def decoder_layer(d_model=16, heads=4, d_ff=24, norm="post", dropout=0.0):
    return DecoderLayer(
        MultiHeadAttention(d_model, heads),
        MultiHeadAttention(d_model, heads),
        FeedForward(d_model, d_ff),
        dropout,
        norm,
    )


def assert_same(ours, theirs, last_norm, outputs, inputs, real):
    """Outputs at real places, and all gradients, agree."""
    a, b = outputs
    close = {"rtol": 0.0, "atol": TOLERANCE[a.dtype]}
    torch.testing.assert_close(a[real], b[real], **close)
    # of size 1 in all, so that the tolerance means what it says
    mix = torch.randn_like(a) * real[:, :, None] / math.sqrt(a.numel())
    wanted = [*ours.parameters(), *inputs]
    got = torch.autograd.grad((a * mix).sum(), wanted)
    by_name = dict(theirs.named_parameters())
    same = [
        by_name[torch_name(name, last_norm)]
        for name, _ in ours.named_parameters()
    ]
    expected = torch.autograd.grad((b * mix).sum(), [*same, *inputs])
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e, **close)


def copy_weights(ours, theirs, last_norm):
    state = ours.state_dict().items()
    theirs.load_state_dict({torch_name(k, last_norm): v for k, v in state})


def lengths_mask(lengths):
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


# --- the position-wise network


def test_feed_forward_is_equation_2():
    network = shake(FeedForward(6, 10)).double()
    x = torch.randn(2, 3, 6).double()
    w1, b1 = network.inner.weight.T, network.inner.bias
    w2, b2 = network.outer.weight.T, network.outer.bias
    by_formula = torch.clamp(x @ w1 + b1, min=0) @ w2 + b2
    torch.testing.assert_close(network(x), by_formula, rtol=0, atol=1e-12)


def test_feed_forward_computes_exclusive_or_with_weights_by_hand():
    network = FeedForward(2, 2)
    network.inner.weight.data = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    network.outer.weight.data = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    assert network(x)[:, 0].tolist() == [0.0, 1.0, 1.0, 0.0]


def test_feed_forward_is_two_convolutions_with_kernel_1():
    network = shake(FeedForward(6, 10)).double()
    x = torch.randn(2, 7, 6).double()
    wide = F.conv1d(
        x.mT, network.inner.weight[:, :, None], network.inner.bias
    )
    narrow = F.conv1d(
        wide.relu(), network.outer.weight[:, :, None], network.outer.bias
    )
    torch.testing.assert_close(network(x), narrow.mT, rtol=0, atol=1e-12)


def test_feed_forward_hears_one_position():
    network, x = FeedForward(6, 10), torch.randn(1, 5, 6)
    y = network(x)
    x[:, 2] += 1
    changed = (network(x) != y).any(dim=-1)
    assert changed.tolist() == [[False, False, True, False, False]]


def test_feed_forward_without_bias_has_two_matrices():
    network = FeedForward(6, 10, bias=False)
    assert [p.dim() for p in network.parameters()] == [2, 2]


def test_feed_forward_drops_hidden_units_only():
    torch.manual_seed(0)
    network = FeedForward(6, 10_000, dropout=0.3)
    network.outer.weight.data.fill_(1.0)
    x = torch.randn(1, 6)
    hidden = F.relu(network.inner(x))
    seen = network(x)[0]
    # every output is one and the same sum: nothing was dropped after it
    torch.testing.assert_close(seen, seen[:1].expand(6))
    assert 1e-4 < abs(seen[0] / hidden.sum() - 1) < 0.1


# --- layer normalisation


def test_layer_norm_gives_the_value_by_hand():
    # mean 2, variance 1: (x - 2) / sqrt(1 + eps)
    x = torch.tensor([1.0, 1.0, 3.0, 3.0]).double()
    one = 1 / math.sqrt(1 + 1e-5)
    expected = torch.tensor([-one, -one, one, one], dtype=torch.float64)
    got = LayerNorm(4).double()(x)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_layer_norm_divides_by_d_and_adds_eps_inside_the_root():
    # variance 1e-6 by d: 1e-3 / sqrt(1e-6 + 1e-5)
    x = torch.tensor([0.001, 0.001, 0.003, 0.003]).double()
    expected = 1e-3 / math.sqrt(1.1e-5)
    assert LayerNorm(4).double()(x)[-1].item() == pytest.approx(expected)


def test_layer_norm_stretches_and_shifts_by_what_it_learns():
    norm = LayerNorm(4, eps=1e-12)
    norm.gain.data = torch.tensor([1.0, 2.0, 3.0, 4.0])
    norm.bias.data = torch.tensor([10.0, 0.0, 0.0, 1.0])
    y = norm(torch.tensor([1.0, 1.0, 3.0, 3.0]))
    torch.testing.assert_close(y, torch.tensor([9.0, -2.0, 3.0, 5.0]))


@both_dtypes
def test_layer_norm_agrees_with_torch(dtype):
    torch.manual_seed(0)
    ours = shake(LayerNorm(16)).to(dtype)
    theirs = nn.LayerNorm(16, dtype=dtype)
    theirs.load_state_dict({"weight": ours.gain, "bias": ours.bias})
    x = (5 + 3 * torch.randn(2, 7, 16)).to(dtype).requires_grad_()
    everywhere = torch.ones(2, 7, dtype=torch.bool)
    assert_same(
        ours, theirs, ENCODER, (ours(x), theirs(x)), [x], everywhere
    )


# --- dropout


@pytest.mark.parametrize("p", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_dropout_drops_at_its_rate_and_scales_the_rest(p):
    torch.manual_seed(0)
    n = 1_000_000
    y = Dropout(p)(torch.ones(n))
    dropped = (y == 0).double().mean().item()
    assert abs(dropped - p) < 5 * math.sqrt(p * (1 - p) / n)
    survivors = y[y != 0]
    assert (survivors == survivors[0]).all()
    assert survivors[0].item() == pytest.approx(1 / (1 - p), abs=1e-2)
    # rounding p to 16 bits does not move the mean
    assert abs(y.double().mean().item() - 1) < 5 * math.sqrt(
        p / n / (1 - p)
    )


def test_dropout_draws_each_number_by_itself():
    torch.manual_seed(0)
    kept = (keep_mask(torch.ones(100_000, 4), 0.5) > 0).double()
    # four draws come from one 64-bit number: they must not be related
    correlation = torch.corrcoef(kept.T) - torch.eye(4)
    assert correlation.abs().max() < 0.02


@pytest.mark.parametrize("p", [1e-9, 1e-6, 1 / 2**17])
def test_dropout_with_a_tiny_rate_keeps_nearly_everything(p):
    mask = keep_mask(torch.ones(10_000), p)
    assert (mask == 0).sum() < 10
    assert mask.max().item() == pytest.approx(1, abs=1e-4)


def test_dropout_with_rate_1_keeps_nothing_and_stays_finite():
    assert (Dropout(1.0)(torch.ones(1000)) == 0).all()


def test_dropout_is_the_identity_when_evaluating_or_at_rate_0():
    x = torch.randn(5, 7)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_dropout_follows_the_seed():
    dropout, x = Dropout(0.5), torch.ones(1000)
    torch.manual_seed(3)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(second, first)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dropout_keeps_shape_and_dtype(shape, dtype):
    y = Dropout(0.5)(torch.ones(shape, dtype=dtype))
    assert (y.shape, y.dtype) == (shape, dtype)


def test_dropout_takes_a_tensor_that_is_not_contiguous():
    x = torch.arange(1.0, 7.0).reshape(2, 3).T
    y = Dropout(0.5)(x)
    assert ((y == 0) | (y == 2 * x)).all()


def test_dropout_drops_the_gradients_that_it_dropped_the_values_of():
    x = torch.ones(1000, requires_grad=True)
    y = Dropout(0.3)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y)


# --- the residual connection


def test_post_norm_is_the_formula_of_the_paper():
    around = shake(Residual(6, 0.0, "post")).double()
    x = torch.randn(2, 3, 6).double()
    expected = around.norm(x + x.sin())
    assert torch.equal(around(x, torch.sin), expected)


def test_pre_norm_norms_what_the_sublayer_reads():
    around = shake(Residual(6, 0.0, "pre")).double()
    x = torch.randn(2, 3, 6).double()
    expected = x + around.norm(x).sin()
    assert torch.equal(around(x, torch.sin), expected)


def test_dropout_hits_what_is_added_and_never_the_stream():
    torch.manual_seed(0)
    around, x = Residual(50, 0.5, "pre"), torch.randn(20, 50)
    added = around(x, torch.ones_like) - x
    values = added.round(decimals=4).unique().tolist()
    assert values == pytest.approx([0.0, 2.0])


# --- whole layers


def encoder_case(norm, dtype, d_model, heads, d_ff, lengths):
    shape = {"dropout": 0.0, "batch_first": True, "dtype": dtype}
    ours = shake(encoder_layer(d_model, heads, d_ff, norm)).to(dtype)
    theirs = nn.TransformerEncoderLayer(
        d_model, heads, d_ff, norm_first=norm == "pre", **shape
    )
    copy_weights(ours, theirs, ENCODER)
    real = lengths_mask(lengths)
    x = torch.randn(*real.shape, d_model, dtype=dtype, requires_grad=True)
    outputs = (
        ours(x, real[:, None, None, :]),
        theirs(x, src_key_padding_mask=~real),
    )
    assert_same(ours, theirs, ENCODER, outputs, [x], real)


def decoder_case(norm, dtype, d_model, heads, d_ff, src, tgt):
    shape = {"dropout": 0.0, "batch_first": True, "dtype": dtype}
    ours = shake(decoder_layer(d_model, heads, d_ff, norm)).to(dtype)
    theirs = nn.TransformerDecoderLayer(
        d_model, heads, d_ff, norm_first=norm == "pre", **shape
    )
    copy_weights(ours, theirs, DECODER)
    real_src, real_tgt = lengths_mask(src), lengths_mask(tgt)
    x, memory = (
        torch.randn(*real.shape, d_model, dtype=dtype, requires_grad=True)
        for real in (real_tgt, real_src)
    )
    future = torch.ones(2 * real_tgt.shape[1:], dtype=torch.bool).triu(1)
    outputs = (
        ours(x, memory, memory_mask=real_src[:, None, None, :]),
        theirs(x, memory, future, memory_key_padding_mask=~real_src),
    )
    inputs = [x, memory]
    assert_same(ours, theirs, DECODER, outputs, inputs, real_tgt)


@both_dtypes
@both_norms
@pytest.mark.parametrize("lengths", [[5, 5], [7, 4, 1]])
def test_encoder_layer_agrees_with_torch(norm, dtype, lengths):
    torch.manual_seed(0)
    encoder_case(norm, dtype, 16, 4, 24, lengths)


@both_dtypes
@both_norms
@pytest.mark.parametrize("src", [[6, 6, 6], [6, 3, 1]])
@pytest.mark.parametrize("tgt", [[5, 5, 5], [2, 5, 4]])
def test_decoder_layer_agrees_with_torch(norm, dtype, src, tgt):
    torch.manual_seed(0)
    decoder_case(norm, dtype, 16, 4, 24, src, tgt)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000),
    norm=st.sampled_from(["post", "pre"]),
    heads=st.integers(1, 4),
    d_head=st.integers(1, 5),
    d_ff=st.integers(1, 30),
    src=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    data=st.data(),
)
def test_layers_agree_with_torch_in_any_shape(
    seed, norm, heads, d_head, d_ff, src, data
):
    tgt = [data.draw(st.integers(1, 6)) for _ in src]
    torch.manual_seed(seed)
    # two components would leave one bit after a norm: its gradient is
    # steep enough to magnify rounding beyond any fixed tolerance
    d_model = heads * (d_head + 2)
    encoder_case(norm, torch.float64, d_model, heads, d_ff, src)
    decoder_case(norm, torch.float64, d_model, heads, d_ff, src, tgt)


@both_norms
def test_packed_layers_give_what_padded_ones_give(norm):
    torch.manual_seed(0)
    src, tgt = lengths_mask([6, 3, 1]), lengths_mask([2, 5, 4])
    src_packing, packing = Packing.of(src), Packing.of(tgt)
    x = torch.randn(3, 6, 16).double()
    y = torch.randn(3, 5, 16).double()
    encoder = shake(encoder_layer(norm=norm)).double()
    mask = src[:, None, None, :]
    memory = encoder(x, mask)
    packed_memory = encoder(src_packing.pack(x), mask, src_packing)
    close = {"rtol": 0.0, "atol": 1e-12}
    torch.testing.assert_close(packed_memory, memory[src], **close)
    decoder = shake(decoder_layer(norm=norm)).double()
    padded = decoder(y, memory, memory_mask=mask)
    packed = decoder(
        packing.pack(y),
        packed_memory,
        memory_mask=mask,
        packing=packing,
        memory_packing=src_packing,
    )
    torch.testing.assert_close(packed, padded[tgt], **close)


@both_norms
def test_decoder_layer_does_not_hear_the_future(norm):
    layer = decoder_layer(norm=norm)
    x, memory = torch.randn(1, 6, 16), torch.randn(1, 4, 16)
    y = layer(x, memory)
    x[:, 4:] += 1
    changed = layer(x, memory)
    torch.testing.assert_close(changed[:, :4], y[:, :4])
    assert not torch.allclose(changed[:, 4:], y[:, 4:])


@both_norms
def test_layers_drop_when_training_and_never_when_evaluating(norm):
    encoder = encoder_layer(norm=norm, dropout=0.5)
    decoder = decoder_layer(norm=norm, dropout=0.5)
    x, memory = torch.randn(1, 6, 16), torch.randn(1, 4, 16)
    assert not torch.equal(encoder(x), encoder(x))
    assert not torch.equal(decoder(x, memory), decoder(x, memory))
    encoder.eval(), decoder.eval()
    assert torch.equal(encoder(x), encoder(x))
    assert torch.equal(decoder(x, memory), decoder(x, memory))
