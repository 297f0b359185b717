"""Chapter 04: multi-head attention."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from annotated.attention import MultiHeadAttention, attention
from annotated.engine.hooks import recorded_weights
from annotated.masks import causal_mask, padding_mask

few = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**31 - 1)
precisions = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)]
)


def layer_of(
    seed=0, d_model=12, num_heads=3, dtype=torch.float64, **options
):
    """A layer whose biases are random, too, so that they count."""
    torch.manual_seed(seed)
    layer = MultiHeadAttention(d_model, num_heads, **options).to(dtype)
    for name, parameter in layer.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return layer


def copied_to_torch(layer, d_model, num_heads, dtype):
    theirs = nn.MultiheadAttention(
        d_model, num_heads, batch_first=True, dtype=dtype
    )
    parts = layer.w_q, layer.w_k, layer.w_v
    theirs.load_state_dict(
        {
            "in_proj_weight": torch.cat([part.weight for part in parts]),
            "in_proj_bias": torch.cat([part.bias for part in parts]),
            "out_proj.weight": layer.w_o.weight,
            "out_proj.bias": layer.w_o.bias,
        }
    )
    return theirs


def by_loop(layer, x, memory, mask=None):
    """The formula of §3.2.2, head by head, from the layer's rows."""
    heads = []
    for i in range(layer.num_heads):
        views = []
        for linear, source in (
            (layer.w_q, x),
            (layer.w_k, memory),
            (layer.w_v, memory),
        ):
            weight = linear.weight.chunk(layer.num_heads)[i]
            bias = linear.bias.chunk(layer.num_heads)[i]
            views.append(source @ weight.T + bias)
        heads.append(attention(*views, mask=mask))
    return torch.cat(heads, -1) @ layer.w_o.weight.T + layer.w_o.bias


def lengths_to_mask(lengths, width):
    return torch.arange(width) < torch.tensor(lengths)[:, None]


@precisions
@pytest.mark.parametrize("causal", [False, True])
def test_agrees_with_torch_on_a_padded_batch(dtype, tolerance, causal):
    ours = layer_of(dtype=dtype)
    theirs = copied_to_torch(ours, 12, 3, dtype)
    real = lengths_to_mask([7, 4, 1], 7)
    allowed = causal_mask(7) if causal else torch.ones(7, 7).bool()
    mask = real[:, None, None] & allowed
    a = torch.randn(3, 7, 12, dtype=dtype).requires_grad_()
    b = a.detach().clone().requires_grad_()
    out = ours(a, mask=mask)
    expected, weights = theirs(
        b,
        b,
        b,
        key_padding_mask=~real,
        average_attn_weights=False,
        attn_mask=~allowed,
    )
    seen = ours.weights(a, mask=mask)
    for y in (out, expected):
        y.sin().mean().backward()
    parts = ours.w_q, ours.w_k, ours.w_v
    weight = torch.cat([part.weight.grad for part in parts])
    bias = torch.cat([part.bias.grad for part in parts])
    for ours_, theirs_ in [
        (out, expected),
        (seen, weights),
        (a.grad, b.grad),
        (weight, theirs.in_proj_weight.grad),
        (bias, theirs.in_proj_bias.grad),
        (ours.w_o.weight.grad, theirs.out_proj.weight.grad),
        (ours.w_o.bias.grad, theirs.out_proj.bias.grad),
    ]:
        torch.testing.assert_close(
            ours_, theirs_, rtol=tolerance, atol=tolerance
        )


@precisions
def test_agrees_with_torch_where_keys_come_from_elsewhere(dtype, tolerance):
    ours = layer_of(dtype=dtype)
    theirs = copied_to_torch(ours, 12, 3, dtype)
    real = lengths_to_mask([6, 2], 6)
    x = torch.randn(2, 4, 12, dtype=dtype)
    memory = torch.randn(2, 6, 12, dtype=dtype)
    pairs = []
    for layer in (ours, theirs):
        leaves = [t.clone().requires_grad_() for t in (x, memory)]
        if layer is ours:
            out = ours(*leaves, real[:, None, None])
        else:
            out, _ = theirs(*leaves, leaves[1], key_padding_mask=~real)
        out.sin().sum().backward()
        pairs.append([out, *(leaf.grad for leaf in leaves)])
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("d_k", "d_v"), [(5, 3), (3, 5), (None, 7), (2, None)]
)
@pytest.mark.parametrize("masked", [False, True])
def test_separate_key_and_value_sizes_agree_with_the_loop(d_k, d_v, masked):
    layer = layer_of(d_k=d_k, d_v=d_v)
    x, memory = (
        torch.randn(2, 4, 12).double(),
        torch.randn(2, 6, 12).double(),
    )
    real = lengths_to_mask([6, 2], 6)
    out = layer(x, memory, real[:, None, None] if masked else None)
    expected = by_loop(layer, x, memory, real[:, None] if masked else None)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    grads = [
        torch.autograd.grad(y.sin().sum(), layer.parameters())
        for y in (out, expected)
    ]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_gradients_agree_with_finite_differences():
    layer = layer_of(d_model=4, num_heads=2, d_k=3, d_v=1)
    x = torch.randn(2, 3, 4).double().requires_grad_()
    mask = lengths_to_mask([3, 0], 3)[:, None, None] & causal_mask(3)
    assert torch.autograd.gradcheck(lambda x: layer(x, mask=mask), x)


def test_a_hand_made_head_looks_at_the_previous_token():
    layer = MultiHeadAttention(4, 1, bias=False)
    eye, back = torch.eye(4), torch.diag(torch.ones(3), -1)
    with torch.no_grad():  # x is a one-hot position; rows are W transposed
        layer.w_q.weight.copy_(60 * back.T)
        for linear in (layer.w_k, layer.w_v, layer.w_o):
            linear.weight.copy_(eye)
    out = layer(eye[None])[0]
    torch.testing.assert_close(out[1:], eye[:-1])
    torch.testing.assert_close(out[0], torch.full((4,), 0.25))


@few
@given(seed=seeds, length=st.integers(2, 7), cut=st.integers(1, 6))
def test_the_future_does_not_change_the_past(seed, length, cut):
    cut = min(cut, length - 1)
    layer = layer_of(seed)
    x = torch.randn(2, length, 12).double()
    later = x.clone()
    later[:, cut:] = torch.randn(2, length - cut, 12)
    out, other = (layer(t, mask=causal_mask(length)) for t in (x, later))
    torch.testing.assert_close(
        out[:, :cut], other[:, :cut], rtol=0, atol=1e-13
    )


@few
@given(seed=seeds, length=st.integers(1, 6), more=st.integers(1, 4))
def test_more_padding_changes_nothing(seed, length, more):
    layer = layer_of(seed)
    ids = torch.randint(1, 9, (2, length))
    longer = nn.functional.pad(ids, (0, more))
    table = torch.randn(9, 12).double()
    out, padded = (
        layer(table[i], mask=padding_mask(i)) for i in (ids, longer)
    )
    torch.testing.assert_close(padded[:, :length], out)


@few
@given(seed=seeds, length=st.integers(1, 7))
def test_self_attention_is_permutation_equivariant(seed, length):
    layer = layer_of(seed)
    x, order = torch.randn(2, length, 12).double(), torch.randperm(length)
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])


def test_an_empty_sentence_gives_the_bias_and_finite_gradients():
    layer = layer_of(dtype=torch.float32)
    x = torch.randn(2, 5, 12, requires_grad=True)
    out = layer(x, mask=lengths_to_mask([5, 0], 5)[:, None, None])
    out.square().sum().backward()
    assert torch.equal(out[1], layer.w_o.bias.expand(5, 12))
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    assert x.grad.isfinite().all() and (x.grad[1] == 0).all()


def test_the_keys_bias_has_no_gradient():
    layer = layer_of()
    layer(torch.randn(2, 5, 12).double()).square().sum().backward()
    assert layer.w_k.bias.grad.abs().max() < 1e-12
    assert layer.w_q.bias.grad.abs().max() > 1e-3
    assert layer.w_v.bias.grad.abs().max() > 1e-3


@pytest.mark.parametrize("masked", [False, True])
def test_the_weights_shown_are_those_that_forward_uses(masked):
    layer = layer_of(d_v=3)
    x = torch.randn(2, 5, 12).double()
    mask = lengths_to_mask([5, 2], 5)[:, None, None] if masked else None
    heads = layer.weights(x, mask=mask) @ layer.split(layer.w_v(x))
    torch.testing.assert_close(
        layer.w_o(heads.transpose(1, 2).flatten(2)), layer(x, mask=mask)
    )


def test_heads_add_up_as_messages():
    layer = layer_of(d_v=3)
    x = torch.randn(2, 5, 12).double()
    heads = layer.weights(x) @ layer.split(layer.w_v(x))
    blocks = layer.w_o.weight.T.unflatten(0, (3, 3))  # (heads, d_v, …)
    messages = heads @ blocks  # (batch, heads, length, d_model)
    torch.testing.assert_close(
        messages.sum(dim=1) + layer.w_o.bias, layer(x)
    )


def test_weights_are_recorded_within_the_block_alone():
    layer, x = layer_of(), torch.randn(2, 5, 12).double()
    with recorded_weights({"here": layer}) as maps:
        layer(x, mask=causal_mask(5))
    expected = layer.weights(x, mask=causal_mask(5))
    assert torch.equal(maps["here"], expected)
    layer(x)
    assert torch.equal(maps["here"], expected)


def test_weights_are_dropped_in_training_only():
    layer = layer_of(dropout=0.5)
    x = torch.randn(2, 5, 12).double()
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_heads", [1, 2, 8])
def test_the_number_of_heads_changes_no_number_of_parameters(
    num_heads, bias
):
    layer = MultiHeadAttention(64, num_heads, bias=bias)
    count = sum(p.numel() for p in layer.parameters())
    assert count == 4 * 64 * 64 + 4 * 64 * bias


def test_narrow_keys_save_what_the_chapter_says():
    layer = MultiHeadAttention(512, 8, d_k=16, d_v=64)
    assert sum(p.numel() for p in layer.parameters()) == 656_640


def test_heads_have_equal_sizes_whatever_the_width():
    assert MultiHeadAttention(10, 3).w_o.in_features == 9
    assert MultiHeadAttention(10, 3, 4, 2).w_o.in_features == 6


@pytest.mark.parametrize("name", ["w_q", "w_k", "w_v", "w_o"])
def test_each_projection_begins_as_glorot_has_it(name):
    linear = getattr(MultiHeadAttention(64, 2, d_k=8, d_v=8), name)
    bound = math.sqrt(6 / (64 + 16))
    assert 0.95 * bound < linear.weight.abs().max() <= bound
    assert not linear.bias.any()
