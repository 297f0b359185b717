"""Chapter 02: scaled dot-product attention."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated.attention import attention, attention_weights

few = settings(max_examples=25, deadline=None)
sizes = st.integers(1, 6)
seeds = st.integers(0, 2**31 - 1)


def random_qkv(seed, *shape, k_len=None, d_v=None, dtype=torch.float64):
    """q of the shape (…, q_len, d_k), and k and v that go with it."""
    g = torch.Generator().manual_seed(seed)
    *lead, q_len, d_k = shape
    k_len = q_len if k_len is None else k_len
    q = torch.randn(shape, generator=g, dtype=dtype)
    k = torch.randn(*lead, k_len, d_k, generator=g, dtype=dtype)
    v = torch.randn(*lead, k_len, d_v or d_k, generator=g, dtype=dtype)
    return q, k, v


def random_mask(seed, *shape):
    g = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=g) < 0.5


def with_gradients(function, *inputs):
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    out.sin().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


@pytest.fixture
def three_tokens():
    """The example of the chapter, with weights that are fractions."""
    k = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]) * math.log(2)
    q = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]) * math.sqrt(2)
    v = torch.tensor([[0.0, 60.0], [60.0, 0.0], [0.0, 0.0]])
    return q[None, None], k[None, None], v[None, None]


def test_three_tokens_have_the_weights_computed_by_hand(three_tokens):
    q, k, _ = three_tokens
    by_hand = [[1 / 4, 2 / 4, 1 / 4], [1 / 6, 1 / 6, 4 / 6]]
    by_hand.append([1 / 5, 2 / 5, 2 / 5])
    torch.testing.assert_close(
        attention_weights(q, k)[0, 0], torch.tensor(by_hand)
    )


def test_three_tokens_have_the_output_computed_by_hand(three_tokens):
    out = attention(*three_tokens)[0, 0]
    by_hand = torch.tensor([[30.0, 15.0], [10.0, 10.0], [24.0, 12.0]])
    torch.testing.assert_close(out, by_hand)


def test_a_masked_key_leaves_its_share_to_the_others(three_tokens):
    q, k, _ = three_tokens
    weights = attention_weights(q, k, torch.tensor([True, True, False]))
    by_hand = [[1 / 3, 2 / 3, 0], [1 / 2, 1 / 2, 0], [1 / 3, 2 / 3, 0]]
    torch.testing.assert_close(weights[0, 0], torch.tensor(by_hand))


def test_a_forbidden_score_counts_less_than_any_other():
    """It is minus infinity, and not a number that is merely low."""
    q, k = torch.tensor([[1.0]]), torch.tensor([[-1e30], [0.0]])
    weights = attention_weights(q, k, torch.tensor([[True, False]]))
    assert weights.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)]
)
@pytest.mark.parametrize("kind", ["none", "padding", "causal", "both"])
def test_agrees_with_torch_forward_and_gradient(dtype, tolerance, kind):
    length = 7
    qkv = random_qkv(0, 2, 3, length, 8, d_v=5, dtype=dtype)
    mask = torch.ones(2, 1, length, length, dtype=torch.bool)
    if kind in ("padding", "both"):
        mask[1, ..., length // 2 :] = False
    if kind in ("causal", "both"):
        mask = mask.tril()
    given_mask = None if kind == "none" else mask
    ours = with_gradients(
        lambda q, k, v: attention(q, k, v, given_mask), *qkv
    )
    theirs = with_gradients(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask), *qkv
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_gradients_agree_with_finite_differences():
    qkv = random_qkv(2, 1, 2, 3, 4, k_len=5, d_v=2)
    mask = random_mask(3, 1, 1, 3, 5)
    mask[..., 1, :] = False
    leaves = [x.requires_grad_() for x in qkv]
    assert torch.autograd.gradcheck(
        lambda q, k, v: attention(q, k, v, mask), leaves
    )


@few
@given(seed=seeds, q_len=sizes, k_len=sizes)
def test_rows_of_weights_sum_to_one_or_to_zero(seed, q_len, k_len):
    q, k, _ = random_qkv(seed, q_len, 4, k_len=k_len)
    mask = random_mask(seed, q_len, k_len)
    weights = attention_weights(10 * q, k, mask)
    assert (weights[~mask] == 0).all()
    torch.testing.assert_close(
        weights.sum(dim=-1), mask.any(dim=-1).to(weights)
    )


@few
@given(seed=seeds, length=st.integers(2, 8), cut=st.integers(1, 7))
def test_the_future_does_not_change_the_past(seed, length, cut):
    cut = min(cut, length - 1)
    qkv = random_qkv(seed, 2, 2, length, 3)
    later = random_qkv(seed + 1, 2, 2, length, 3)
    for x, y in zip(later, qkv, strict=True):
        x[:, :, :cut] = y[:, :, :cut]
    mask = torch.ones(length, length).tril().bool()
    out, other = (attention(*x, mask=mask) for x in (qkv, later))
    assert torch.equal(out[:, :, :cut], other[:, :, :cut])


@few
@given(seed=seeds, length=sizes, more=sizes)
def test_more_padding_changes_nothing(seed, length, more):
    q, k, v = random_qkv(seed, 2, 2, length, 3)
    _, k_more, v_more = random_qkv(seed + 1, 2, 2, more, 3)
    mask = torch.arange(length + more) < length
    padded = attention(
        q, torch.cat([k, k_more], 2), torch.cat([v, v_more], 2), mask
    )
    torch.testing.assert_close(padded, attention(q, k, v))


@few
@given(seed=seeds, length=sizes)
def test_keys_are_a_set_if_their_values_go_with_them(seed, length):
    q, k, v = random_qkv(seed, 1, 2, length, 3)
    order = torch.randperm(
        length, generator=torch.Generator().manual_seed(seed)
    )
    shuffled = attention(q, k[:, :, order], v[:, :, order])
    torch.testing.assert_close(shuffled, attention(q, k, v))


@few
@given(seed=seeds, length=sizes)
def test_self_attention_is_permutation_equivariant(seed, length):
    q, k, v = random_qkv(seed, 1, 2, length, 3)
    order = torch.randperm(
        length, generator=torch.Generator().manual_seed(seed)
    )
    shuffled = attention(*(x[:, :, order] for x in (q, k, v)))
    torch.testing.assert_close(shuffled, attention(q, k, v)[:, :, order])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_without_keys_gives_zero_and_no_nan(dtype):
    qkv = random_qkv(4, 2, 2, 4, 8, dtype=torch.float32)
    mask = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    mask[0, 0, 2] = False  # one query
    mask[1] = False  # a whole sentence
    out, *grads = with_gradients(
        lambda q, k, v: attention(q, k, v, mask),
        *(x.to(dtype) for x in qkv),
    )
    assert (out[0, :, 2] == 0).all() and (out[1] == 0).all()
    assert all(x.isfinite().all() for x in (out, *grads))
    for grad in grads:
        assert (grad[1] == 0).all()
        assert (grad[0] != 0).any()


@few
@given(seed=seeds, length=sizes)
def test_a_vector_added_to_every_key_changes_nothing(seed, length):
    q, k, _ = random_qkv(seed, length, 4)
    torch.testing.assert_close(
        attention_weights(q, k + q[:1]), attention_weights(q, k)
    )


def test_scores_of_random_vectors_have_variance_one():
    q, k, _ = random_qkv(5, 1000, 64, dtype=torch.float32)
    scores = attention_weights(q, k).log()
    spread = scores.var(dim=-1)  # log-softmax shifts a row, no more
    assert abs(spread.mean() - 1) < 0.05
