"""Chapter 05: every block against torch.nn or a number by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from annotated.attention import MultiHeadAttention
from annotated.layers import DecoderLayer, EncoderLayer, FeedForward
from annotated.masks import causal_mask
from annotated.model import ModelShape
from annotated.school.milestones import _torch_state

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
both_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
both_norms = pytest.mark.parametrize("norm", ["post", "pre"])


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
        pre_norm=norm == "pre",
    )


def decoder_layer(d_model=16, heads=4, d_ff=24, norm="post", dropout=0.0):
    return DecoderLayer(
        MultiHeadAttention(d_model, heads),
        MultiHeadAttention(d_model, heads),
        FeedForward(d_model, d_ff),
        dropout,
        pre_norm=norm == "pre",
    )


def assert_same(ours, theirs, outputs, inputs, real):
    """Outputs at real places, and all gradients, agree."""
    a, b = outputs
    close = {"rtol": 0.0, "atol": TOLERANCE[a.dtype]}
    torch.testing.assert_close(a[real], b[real], **close)
    # of size 1 in all, so that the tolerance means what it says
    mix = torch.randn_like(a) * real[:, :, None] / math.sqrt(a.numel())
    a_names, b_names = (
        [name for name, _ in module.named_parameters()]
        for module in (ours, theirs)
    )
    got = torch.autograd.grad(
        (a * mix).sum(), [*ours.parameters(), *inputs]
    )
    expected = torch.autograd.grad(
        (b * mix).sum(), [*theirs.parameters(), *inputs]
    )
    by_name = _torch_state(dict(zip(a_names, got, strict=False)))
    assert by_name.keys() == set(b_names)
    for name, gradient in zip(b_names, expected, strict=False):
        torch.testing.assert_close(by_name[name], gradient, **close)
    for i in range(1, len(inputs) + 1):
        torch.testing.assert_close(got[-i], expected[-i], **close)


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


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("relu", lambda z: z * (z > 0)),
        ("silu", lambda z: z / (1 + (-z).exp())),
        ("gelu", lambda z: z * (1 + (z / 2**0.5).erf()) / 2),
    ],
)
def test_another_activation_takes_the_place_of_the_relu(name, formula):
    network = shake(FeedForward(6, 10, activation=name)).double()
    x = torch.randn(2, 3, 6).double()
    by_formula = network.outer(formula(network.inner(x)))
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
    assert (ModelShape().d_model, ModelShape().d_ff) == (512, 2048)


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


# --- the order of sum, dropout and norm


class Constant(nn.Module):
    """Stands for a sub-layer: the same number everywhere."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x, *args, **kwargs):
        return torch.full_like(x, self.value)


def test_post_norm_is_the_formula_of_the_paper():
    layer, x = shake(encoder_layer()).double(), torch.randn(2, 5, 16)
    x = x.double()
    a = layer.norm1(x + layer.attention(x))
    assert torch.equal(layer(x), layer.norm2(a + layer.feed_forward(a)))


def test_pre_norm_norms_what_the_sublayer_reads():
    layer = shake(encoder_layer(norm="pre")).double()
    x = torch.randn(2, 5, 16).double()
    a = x + layer.attention(layer.norm1(x))
    assert torch.equal(layer(x), a + layer.feed_forward(layer.norm2(a)))


def test_a_decoder_layer_has_three_sublayers_in_the_order_of_the_paper():
    layer = shake(decoder_layer()).double()
    x, memory = torch.randn(2, 2, 5, 16).double()
    mask = causal_mask(5)
    a = layer.norm1(x + layer.attention(x, mask=mask))
    b = layer.norm2(a + layer.cross_attention(a, memory))
    c = layer.norm3(b + layer.feed_forward(b))
    assert torch.equal(layer(x, memory, mask), c)


SUBLAYERS = {
    EncoderLayer: ["attention", "feed_forward"],
    DecoderLayer: ["attention", "cross_attention", "feed_forward"],
}


@both_norms
@pytest.mark.parametrize(
    ("kind", "sublayer"),
    [(kind, name) for kind, names in SUBLAYERS.items() for name in names],
)
def test_dropout_hits_what_each_sublayer_adds_and_never_the_stream(
    kind, sublayer, norm
):
    torch.manual_seed(0)
    make = {EncoderLayer: encoder_layer, DecoderLayer: decoder_layer}[kind]
    layer = make(norm=norm, dropout=0.5)
    for name in SUBLAYERS[kind]:
        setattr(layer, name, Constant(1.0 if name == sublayer else 0.0))
    for number in range(1, len(SUBLAYERS[kind]) + 1):
        setattr(layer, f"norm{number}", nn.Identity())
    x = torch.randn(1, 20, 16)
    added = layer(x) if kind is EncoderLayer else layer(x, x)
    values = (added - x).round(decimals=4).unique().tolist()
    assert values == pytest.approx([0.0, 2.0])


def test_no_sublayer_is_left_out_of_these_tests():
    for kind, names in SUBLAYERS.items():
        make = encoder_layer if kind is EncoderLayer else decoder_layer
        parts = dict(make().named_children())
        norms = [name for name in parts if name.startswith("norm")]
        assert {*parts} == {*names, *norms, "dropout"}
        assert len(norms) == len(names)


# --- whole layers


def encoder_case(norm, dtype, d_model, heads, d_ff, lengths):
    shape = {"dropout": 0.0, "batch_first": True, "dtype": dtype}
    ours = shake(encoder_layer(d_model, heads, d_ff, norm)).to(dtype)
    theirs = nn.TransformerEncoderLayer(
        d_model, heads, d_ff, norm_first=norm == "pre", **shape
    )
    theirs.load_state_dict(_torch_state(ours.state_dict()))
    real = lengths_mask(lengths)
    x = torch.randn(*real.shape, d_model, dtype=dtype, requires_grad=True)
    outputs = (
        ours(x, real[:, None, None, :]),
        theirs(x, src_key_padding_mask=~real),
    )
    assert_same(ours, theirs, outputs, [x], real)


def decoder_case(norm, dtype, d_model, heads, d_ff, src, tgt):
    shape = {"dropout": 0.0, "batch_first": True, "dtype": dtype}
    ours = shake(decoder_layer(d_model, heads, d_ff, norm)).to(dtype)
    theirs = nn.TransformerDecoderLayer(
        d_model, heads, d_ff, norm_first=norm == "pre", **shape
    )
    theirs.load_state_dict(_torch_state(ours.state_dict()))
    real_src, real_tgt = lengths_mask(src), lengths_mask(tgt)
    x, memory = (
        torch.randn(*real.shape, d_model, dtype=dtype, requires_grad=True)
        for real in (real_tgt, real_src)
    )
    future = torch.ones(2 * real_tgt.shape[1:], dtype=torch.bool).triu(1)
    outputs = (
        ours(x, memory, ~future, real_src[:, None, None, :]),
        theirs(x, memory, future, memory_key_padding_mask=~real_src),
    )
    inputs = [x, memory]
    assert_same(ours, theirs, outputs, inputs, real_tgt)


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
def test_decoder_layer_does_not_hear_the_future(norm):
    layer = decoder_layer(norm=norm)
    x, memory = torch.randn(1, 6, 16), torch.randn(1, 4, 16)
    y = layer(x, memory, causal_mask(6))
    x[:, 4:] += 1
    changed = layer(x, memory, causal_mask(6))
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


@pytest.mark.parametrize("layer", [EncoderLayer, DecoderLayer])
def test_a_layer_is_as_in_the_paper_unless_told(layer):
    kinds = {EncoderLayer: encoder_layer, DecoderLayer: decoder_layer}
    told = shake(kinds[layer](norm="post", dropout=0.0))
    parts = told.attention, told.feed_forward
    if layer is DecoderLayer:
        parts = told.attention, told.cross_attention, told.feed_forward
    untold = layer(*parts)
    untold.load_state_dict(told.state_dict())
    sides = torch.randn(2, 2, 5, 16)[: len(parts) - 1]
    assert torch.equal(untold.train()(*sides), told.eval()(*sides))
