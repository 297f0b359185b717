"""Chapter 13: label smoothing, and the loss in chunks."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated.loss import smoothed_loss, smoothed_targets

calm = settings(deadline=None)  # a busy machine is no failure
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def make(tokens=23, vocab=37, d_model=8, dtype=torch.float64, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, d_model, dtype=dtype, generator=draw)
    weight = torch.randn(vocab, d_model, dtype=dtype, generator=draw)
    labels = torch.randint(vocab, (tokens,), generator=draw)
    return x.requires_grad_(), weight.requires_grad_(), labels


def reference(x, weight, labels, smoothing):
    logits = x @ weight.T
    return F.cross_entropy(
        logits, labels, reduction="sum", label_smoothing=smoothing
    )


# --- the targets ---


def test_four_words_have_the_targets_computed_by_hand():
    targets = smoothed_targets(torch.tensor([2, 0]), 4, 0.2)
    expected = [[0.05, 0.05, 0.85, 0.05], [0.85, 0.05, 0.05, 0.05]]
    torch.testing.assert_close(targets, torch.tensor(expected))


@calm
@given(st.integers(2, 50), st.floats(0, 0.99), st.integers(0, 3))
def test_targets_are_distributions_with_the_label_on_top(
    vocab, smoothing, more
):
    labels = torch.arange(vocab).expand((2,) * more + (vocab,))
    targets = smoothed_targets(labels, vocab, smoothing)
    assert targets.shape == (*labels.shape, vocab)
    torch.testing.assert_close(
        targets.sum(dim=-1), torch.ones(labels.shape), rtol=0, atol=1e-5
    )
    assert torch.equal(targets.argmax(dim=-1), labels)


def test_without_smoothing_the_target_is_the_label():
    labels = torch.tensor([1, 3])
    assert torch.equal(
        smoothed_targets(labels, 4, 0.0), F.one_hot(labels, 4).float()
    )


# --- the loss ---


@pytest.mark.parametrize("rows", [None, 1, 5, 23, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_gradient_agree_with_torch(dtype, smoothing, rows):
    x, weight, labels = make(dtype=dtype)
    loss, _ = smoothed_loss(x, weight, labels, smoothing, rows)
    assert loss.dtype == dtype
    theirs = reference(x, weight, labels, smoothing)
    ours_grad = torch.autograd.grad(3 * loss / 23, (x, weight))
    their_grad = torch.autograd.grad(3 * theirs / 23, (x, weight))
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(loss, theirs, **close)
    torch.testing.assert_close(ours_grad, their_grad, **close)


@calm
@given(
    st.integers(1, 12),
    st.integers(1, 30),
    st.integers(1, 9),
    st.integers(1, 14),
    st.floats(0, 0.99),
)
def test_it_agrees_for_every_shape(tokens, vocab, d_model, rows, smoothing):
    x, weight, labels = make(tokens, vocab, d_model)
    loss, _ = smoothed_loss(x, weight, labels, smoothing, rows)
    theirs = reference(x, weight, labels, smoothing)
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(loss, theirs, **close)
    torch.testing.assert_close(
        torch.autograd.grad(loss, (x, weight)),
        torch.autograd.grad(theirs, (x, weight)),
        **close,
    )


def test_the_gradient_agrees_with_small_differences():
    x, weight, labels = make(tokens=5, vocab=7, d_model=3)

    def loss(x, weight):
        return smoothed_loss(x, weight, labels, 0.1, rows=2)[0]

    assert torch.autograd.gradcheck(loss, (x, weight))


def test_it_is_the_cross_entropy_with_the_smoothed_targets():
    x, weight, labels = make()
    targets = smoothed_targets(labels, 37, 0.1).double()
    log_p = (x @ weight.T).log_softmax(dim=-1)
    expected = -(targets * log_p).sum()
    loss, _ = smoothed_loss(x, weight, labels, 0.1)
    # targets are made in float32
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", [None, 4])
def test_nll_is_the_unsmoothed_loss_whatever_the_smoothing(rows):
    x, weight, labels = make()
    expected = reference(x, weight, labels, 0.0)
    for smoothing in (0.0, 0.1, 0.5):
        _, nll = smoothed_loss(x, weight, labels, smoothing, rows)
        torch.testing.assert_close(nll, expected, rtol=1e-12, atol=0)
        assert not nll.requires_grad


def test_a_model_that_knows_nothing_has_the_vocabulary_as_perplexity():
    x, weight, labels = make()
    loss, nll = smoothed_loss(torch.zeros_like(x), weight, labels, 0.1)
    for value in (loss, nll):
        assert math.exp(value.item() / 23) == pytest.approx(37, rel=1e-12)


@pytest.mark.parametrize("smoothing", [0.1, 0.2])
def test_a_model_that_matches_its_target_pays_for_it(smoothing):
    """Where the model says what is asked for, the gradient is 0, the loss
    the target's entropy, and a label has 1 - ε + ε/V and no more.
    """
    labels = torch.arange(37)
    targets = smoothed_targets(labels, 37, smoothing).double()
    x = targets.log().requires_grad_()
    loss, nll = smoothed_loss(x, torch.eye(37).double(), labels, smoothing)
    entropy = -(targets * targets.log()).sum()
    assert loss.item() == pytest.approx(entropy.item(), rel=1e-6)
    own = 1 - smoothing + smoothing / 37
    assert nll.item() / 37 == pytest.approx(-math.log(own), rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, x)
    assert gradient.abs().max() < 1e-7


def test_a_model_that_is_sure_is_punished():
    """Logits of 200 on the label: nll 0, the loss 0.1 · 36/37 · 200."""
    labels = torch.arange(37)
    sure = 200 * torch.eye(37, dtype=torch.float64)
    loss, nll = smoothed_loss(sure, torch.eye(37).double(), labels, 0.1)
    assert nll.item() == pytest.approx(0, abs=1e-12)
    assert loss.item() / 37 == pytest.approx(0.1 * 36 / 37 * 200)


def test_without_gradients_the_values_are_the_same():
    x, weight, labels = make()
    expected = smoothed_loss(x, weight, labels)
    with torch.no_grad():
        found = smoothed_loss(x, weight, labels, rows=4)
    assert not found[0].requires_grad
    torch.testing.assert_close(found, tuple(e.detach() for e in expected))


@pytest.mark.parametrize("learns", ["x", "weight"])
def test_either_side_may_be_frozen(learns):
    x, weight, labels = make()
    frozen = weight if learns == "x" else x
    frozen.requires_grad_(False)
    other = x if learns == "x" else weight
    loss, _ = smoothed_loss(x, weight, labels)
    (found,) = torch.autograd.grad(loss, other)
    theirs = reference(x, weight, labels, 0.1)
    (expected,) = torch.autograd.grad(theirs, other)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_the_inputs_are_left_as_they_were():
    x, weight, labels = make()
    before = x.detach().clone(), weight.detach().clone(), labels.clone()
    smoothed_loss(x, weight, labels)[0].backward()
    for now, then in zip((x, weight, labels), before, strict=True):
        assert torch.equal(now, then)


def test_no_tokens_lose_nothing():
    x, weight, labels = make()
    loss, nll = smoothed_loss(x[:0], weight, labels[:0])
    loss.backward()
    assert loss.item() == nll.item() == 0
    assert not weight.grad.any()


def test_huge_logits_stay_finite():
    x, weight, labels = make(dtype=torch.float32)
    loss, nll = smoothed_loss(x * 1e4, weight, labels)
    gradient = torch.autograd.grad(loss, (x, weight))
    assert torch.isfinite(loss) and torch.isfinite(nll)
    assert all(torch.isfinite(g).all() for g in gradient)


def test_bfloat16_vectors_go_with_float32_weights():
    """As in mixed precision: values in float32, 8 bits of mantissa."""
    x, weight, labels = make(tokens=64, dtype=torch.float32)
    half = x.detach().bfloat16().requires_grad_()
    loss, nll = smoothed_loss(half, weight, labels, rows=10)
    assert loss.dtype == nll.dtype == torch.float32
    gradient = torch.autograd.grad(loss, (half, weight))
    assert [g.dtype for g in gradient] == [torch.bfloat16, torch.float32]
    exact = half.detach().double().requires_grad_()
    theirs = reference(exact, weight.double(), labels, 0.1)
    expected = torch.autograd.grad(theirs, (exact, weight))
    assert loss.item() == pytest.approx(theirs.item(), rel=0.01)
    for found, wanted in zip(gradient, expected, strict=True):
        error = (found.double() - wanted).norm() / wanted.norm()
        assert error < 0.01


def test_a_second_derivative_is_refused_not_wrong():
    x, weight, labels = make()
    loss, _ = smoothed_loss(x, weight, labels)
    (gradient,) = torch.autograd.grad(loss**2, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
