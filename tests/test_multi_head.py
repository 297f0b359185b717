"""Chapter 04: multi-head attention."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from annotated.attention import (
    CPU_PLAIN_KEYS,
    MultiHeadAttention,
    attention,
)
from annotated.masks import Packing, causal_mask, padding_mask

few = settings(max_examples=20, deadline=None, derandomize=True)
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
    theirs.load_state_dict(
        {
            "in_proj_weight": layer.projection.weight,
            "in_proj_bias": layer.projection.bias,
            "out_proj.weight": layer.output.weight,
            "out_proj.bias": layer.output.bias,
        }
    )
    return theirs


def by_loop(layer, x, memory, mask=None):
    """The formula of §3.2.2, a head at a time, from the layer's rows."""
    d_k, d_v, h = layer.d_k, layer.d_v, layer.num_heads
    sizes = [d_k] * h + [d_k] * h + [d_v] * h
    w = layer.projection.weight.split(sizes)
    b = layer.projection.bias.split(sizes)
    heads = []
    for i in range(h):
        q = x @ w[i].T + b[i]
        k = memory @ w[h + i].T + b[h + i]
        v = memory @ w[2 * h + i].T + b[2 * h + i]
        heads.append(attention(q, k, v, mask))
    return torch.cat(heads, -1) @ layer.output.weight.T + layer.output.bias


def lengths_to_mask(lengths, width):
    return torch.arange(width) < torch.tensor(lengths)[:, None]


@precisions
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [7, CPU_PLAIN_KEYS + 1])
def test_agrees_with_torch_on_a_padded_batch(
    dtype, tolerance, causal, length
):
    ours = layer_of(dtype=dtype)
    theirs = copied_to_torch(ours, 12, 3, dtype)
    real = lengths_to_mask([length, 4, 1], length)
    a = torch.randn(3, length, 12, dtype=dtype).requires_grad_()
    b = a.detach().clone().requires_grad_()
    out = ours(a, mask=real[:, None, None], causal=causal)
    expected, weights = theirs(
        b,
        b,
        b,
        key_padding_mask=~real,
        average_attn_weights=False,
        attn_mask=~causal_mask(length) if causal else None,
    )
    seen = ours.weights(a, mask=real[:, None, None], causal=causal)
    for y in (out, expected):
        y.sin().mean().backward()
    for ours_, theirs_ in [
        (out, expected),
        (seen, weights),
        (a.grad, b.grad),
        (ours.projection.weight.grad, theirs.in_proj_weight.grad),
        (ours.projection.bias.grad, theirs.in_proj_bias.grad),
        (ours.output.weight.grad, theirs.out_proj.weight.grad),
        (ours.output.bias.grad, theirs.out_proj.bias.grad),
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
    mask = lengths_to_mask([3, 0], 3)[:, None, None]
    assert torch.autograd.gradcheck(
        lambda x: layer(x, mask=mask, causal=True), x
    )


def test_a_hand_made_head_looks_at_the_previous_token():
    layer = MultiHeadAttention(4, 1, bias=False)
    eye, back = torch.eye(4), torch.diag(torch.ones(3), -1)
    with torch.no_grad():  # x is a one-hot position; rows are W transposed
        layer.projection.weight.copy_(torch.cat([60 * back.T, eye, eye]))
        layer.output.weight.copy_(eye)
    out = layer(eye[None])[0]
    torch.testing.assert_close(out[1:], eye[:-1])
    torch.testing.assert_close(out[0], torch.full((4,), 0.25))


@few
@given(
    seed=seeds,
    x_lengths=st.lists(st.integers(0, 5), min_size=2, max_size=2),
    lengths=st.lists(st.integers(0, 4), min_size=2, max_size=2),
    causal=st.booleans(),
)
def test_packed_and_padded_agree(seed, x_lengths, lengths, causal):
    layer = layer_of(seed)
    packing = Packing.of(lengths_to_mask(x_lengths, 5))
    memory_packing = Packing.of(lengths_to_mask(lengths, 4))
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    memory = torch.randn(2, 4, 12, dtype=torch.float64)
    itself = layer(x, mask=packing.mask, causal=causal)
    other = layer(x, memory, memory_packing.mask)
    packed = packing.pack(x)
    torch.testing.assert_close(
        layer(packed, mask=packing.mask, causal=causal, packing=packing),
        packing.pack(itself),
    )
    torch.testing.assert_close(
        layer(
            packed,
            memory_packing.pack(memory),
            memory_packing.mask,
            packing=packing,
            memory_packing=memory_packing,
        ),
        packing.pack(other),
    )


@few
@given(seed=seeds, length=st.integers(2, 7), cut=st.integers(1, 6))
def test_the_future_does_not_change_the_past(seed, length, cut):
    cut = min(cut, length - 1)
    layer = layer_of(seed)
    x = torch.randn(2, length, 12).double()
    later = x.clone()
    later[:, cut:] = torch.randn(2, length - cut, 12)
    out, other = (layer(t, causal=True) for t in (x, later))
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


@pytest.mark.parametrize("length", [5, CPU_PLAIN_KEYS + 1])
def test_an_empty_sentence_gives_the_bias_and_finite_gradients(length):
    layer = layer_of(dtype=torch.float32)
    x = torch.randn(2, length, 12, requires_grad=True)
    mask = lengths_to_mask([length, 0], length)[:, None, None]
    out = layer(x, mask=mask)
    out.square().sum().backward()
    assert torch.equal(out[1], layer.output.bias.expand(length, 12))
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    assert x.grad.isfinite().all() and (x.grad[1] == 0).all()


def test_the_keys_bias_has_no_gradient():
    layer = layer_of()
    layer(torch.randn(2, 5, 12).double()).square().sum().backward()
    q, k, v = layer.projection.bias.grad.split(layer.sizes)
    assert k.abs().max() < 1e-12
    assert q.abs().max() > 1e-3 and v.abs().max() > 1e-3


def test_queries_keys_and_values_alone_are_those_of_the_layer():
    layer = layer_of(d_k=5, d_v=3)
    x = torch.randn(2, 4, 12).double()
    q, k, v = layer.heads(x)
    assert (q.shape, v.shape) == ((2, 3, 4, 5), (2, 3, 4, 3))
    torch.testing.assert_close(layer.split(layer.queries(x)), q)
    for alone, whole in zip(layer.keys_values(x), (k, v), strict=True):
        torch.testing.assert_close(layer.split(alone), whole)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_weights_shown_are_those_that_forward_uses(causal, masked):
    layer = layer_of(d_v=3)
    x = torch.randn(2, 5, 12).double()
    mask = lengths_to_mask([5, 2], 5)[:, None, None] if masked else None
    _, _, v = layer.heads(x)
    mixed = layer.weights(x, mask=mask, causal=causal) @ v
    torch.testing.assert_close(
        layer.output(mixed.transpose(1, 2).flatten(2)),
        layer(x, mask=mask, causal=causal),
    )


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


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="num_heads 5 does not divide"):
        MultiHeadAttention(12, 5)
    MultiHeadAttention(12, 5, d_k=3, d_v=2)
