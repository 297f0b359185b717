"""Page E2: the loss in chunks is the loss."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from annotated.engine.packing import (
    chunked_loss,
)
from annotated.loss import smoothed_targets
from tests.engine.packings import TOLERANCE, calm

# --- the loss in chunks ---


def make(tokens=23, vocab=37, d_model=8, dtype=torch.float64, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, d_model, dtype=dtype, generator=draw)
    weight = torch.randn(vocab, d_model, dtype=dtype, generator=draw)
    labels = torch.randint(vocab, (tokens,), generator=draw)
    return x.requires_grad_(), weight.requires_grad_(), labels


def reference(x, weight, labels, smoothing, bias=0.0):
    logits = x @ weight.T + bias
    return F.cross_entropy(
        logits, labels, reduction="sum", label_smoothing=smoothing
    )


@pytest.mark.filterwarnings("error")  # of an output of the wrong size
@pytest.mark.parametrize("rows", [None, 1, 5, 23, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_gradient_agree_with_torch(dtype, smoothing, rows):
    x, weight, labels = make(dtype=dtype)
    loss, _ = chunked_loss(x, weight, labels, smoothing, rows)
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
    loss, _ = chunked_loss(x, weight, labels, smoothing, rows)
    theirs = reference(x, weight, labels, smoothing)
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(loss, theirs, **close)
    torch.testing.assert_close(
        torch.autograd.grad(loss, (x, weight)),
        torch.autograd.grad(theirs, (x, weight)),
        **close,
    )


@pytest.mark.parametrize("rows", [None, 1, 5, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_an_output_bias_is_added_and_learned(smoothing, rows):
    x, weight, labels = make()
    bias = torch.randn(len(weight)).double().requires_grad_()
    inputs = x, weight, bias
    loss, nll = chunked_loss(x, weight, labels, smoothing, rows, bias)
    theirs = reference(x, weight, labels, smoothing, bias)
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(loss, theirs, **close)
    torch.testing.assert_close(
        torch.autograd.grad(3 * loss / 23, inputs),
        torch.autograd.grad(3 * theirs / 23, inputs),
        **close,
    )
    whole = reference(x, weight, labels, 0.0, bias)
    torch.testing.assert_close(nll, whole, **close)


def test_an_output_bias_may_learn_alone():
    x, weight, labels = make()
    bias = torch.zeros(len(weight)).double().requires_grad_()
    frozen = x.detach(), weight.detach(), labels
    loss, _ = chunked_loss(*frozen, 0.1, bias=bias)
    theirs = reference(*frozen, 0.1, bias)
    torch.testing.assert_close(
        torch.autograd.grad(loss, bias), torch.autograd.grad(theirs, bias)
    )


def test_the_gradient_agrees_with_small_differences():
    x, weight, labels = make(tokens=5, vocab=7, d_model=3)

    def loss(x, weight):
        return chunked_loss(x, weight, labels, 0.1, rows=2)[0]

    assert torch.autograd.gradcheck(loss, (x, weight))


def test_it_is_the_cross_entropy_with_the_smoothed_targets():
    x, weight, labels = make()
    targets = smoothed_targets(labels, 37, 0.1).double()
    log_p = (x @ weight.T).log_softmax(dim=-1)
    expected = -(targets * log_p).sum()
    loss, _ = chunked_loss(x, weight, labels, 0.1)
    # targets are made in float32
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", [None, 4])
def test_nll_is_the_unchunked_loss_whatever_the_smoothing(rows):
    x, weight, labels = make()
    expected = reference(x, weight, labels, 0.0)
    for smoothing in (0.0, 0.1, 0.5):
        _, nll = chunked_loss(x, weight, labels, smoothing, rows)
        torch.testing.assert_close(nll, expected, rtol=1e-12, atol=0)
        assert not nll.requires_grad


def test_a_model_that_knows_nothing_has_the_vocabulary_as_perplexity():
    x, weight, labels = make()
    loss, nll = chunked_loss(torch.zeros_like(x), weight, labels, 0.1)
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
    loss, nll = chunked_loss(x, torch.eye(37).double(), labels, smoothing)
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
    loss, nll = chunked_loss(sure, torch.eye(37).double(), labels, 0.1)
    assert nll.item() == pytest.approx(0, abs=1e-12)
    assert loss.item() / 37 == pytest.approx(0.1 * 36 / 37 * 200)


def test_without_gradients_the_values_are_the_same():
    x, weight, labels = make()
    expected = chunked_loss(x, weight, labels)
    with torch.no_grad():
        found = chunked_loss(x, weight, labels, rows=4)
    assert not found[0].requires_grad
    torch.testing.assert_close(found, tuple(e.detach() for e in expected))


@pytest.mark.parametrize("learns", ["x", "weight"])
def test_either_side_may_be_frozen(learns):
    x, weight, labels = make()
    frozen = weight if learns == "x" else x
    frozen.requires_grad_(False)
    other = x if learns == "x" else weight
    loss, _ = chunked_loss(x, weight, labels)
    (found,) = torch.autograd.grad(loss, other)
    theirs = reference(x, weight, labels, 0.1)
    (expected,) = torch.autograd.grad(theirs, other)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_the_inputs_are_left_as_they_were():
    x, weight, labels = make()
    before = x.detach().clone(), weight.detach().clone(), labels.clone()
    chunked_loss(x, weight, labels)[0].backward()
    for now, then in zip((x, weight, labels), before, strict=True):
        assert torch.equal(now, then)


def test_no_tokens_lose_nothing():
    x, weight, labels = make()
    loss, nll = chunked_loss(x[:0], weight, labels[:0])
    loss.backward()
    assert loss.item() == nll.item() == 0
    assert not weight.grad.any()


def test_huge_logits_stay_finite():
    x, weight, labels = make(dtype=torch.float32)
    loss, nll = chunked_loss(x * 1e4, weight, labels)
    gradient = torch.autograd.grad(loss, (x, weight))
    assert torch.isfinite(loss) and torch.isfinite(nll)
    assert all(torch.isfinite(g).all() for g in gradient)


def test_bfloat16_vectors_go_with_float32_weights():
    """As in mixed precision: values in float32, 8 bits of mantissa."""
    x, weight, labels = make(tokens=64, dtype=torch.float32)
    half = x.detach().bfloat16().requires_grad_()
    loss, nll = chunked_loss(half, weight, labels, rows=10)
    assert loss.dtype == nll.dtype == torch.float32
    gradient = torch.autograd.grad(3 * loss / 64, (half, weight))
    assert [g.dtype for g in gradient] == [torch.bfloat16, torch.float32]
    # from the logits on, nothing is rounded to 16 bits
    logits = (half @ weight.bfloat16().T).float()
    own = F.cross_entropy(logits, labels, reduction="sum")
    assert nll.item() == pytest.approx(own.item(), rel=1e-5)
    exact = half.detach().double().requires_grad_()
    theirs = reference(exact, weight.double(), labels, 0.1)
    expected = torch.autograd.grad(3 * theirs / 64, (exact, weight))
    assert loss.item() == pytest.approx(theirs.item(), rel=0.01)
    for found, wanted in zip(gradient, expected, strict=True):
        error = (found.double() - wanted).norm() / wanted.norm()
        assert error < 0.01


def test_a_sum_over_tokens_may_be_more_than_float16_can_hold():
    """1,000 vectors of 100: their sum is 100,000, and 65,504 the most."""
    x = torch.full((1000, 1), 100.0).half()
    weight = torch.zeros(4, 1, requires_grad=True)
    labels = torch.zeros(1000, dtype=torch.long)
    loss, _ = chunked_loss(x, weight, labels, 0.8, rows=10)
    (gradient,) = torch.autograd.grad(loss, weight)
    # of a token and its label, 100 · (1/4 - 0.2 - 0.8/4); else 1/4 - 0.2
    expected = torch.tensor([[-15_000.0], [5000], [5000], [5000]])
    torch.testing.assert_close(gradient, expected, rtol=1e-2, atol=0)


class Watch(TorchDispatchMode):
    """What torch is asked for, and the shapes of what it gives."""

    def __init__(self):
        super().__init__()
        self.shapes = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            name = function.overloadpacket.__name__
            self.shapes.setdefault(name, []).append(tuple(result.shape))
        return result


@pytest.mark.parametrize(
    ("device", "dtype", "tokens", "vocab", "rows"),
    [
        ("cpu", torch.float32, 2000, 1000, 2**20 // 1000),
        ("meta", torch.float32, 200_000, 1000, 2**27 // 1000),
        ("cpu", torch.float32, 600, 8000, 256),
        ("meta", torch.float32, 600, 2**28, 256),
        ("meta", torch.float16, 10_000, 1000, 4096),
    ],
)
def test_as_many_logits_at_a_time_as_suit_the_device(
    device, dtype, tokens, vocab, rows
):
    x = torch.empty(tokens, 1, dtype=dtype, device=device)
    weight = torch.empty(vocab, 1, dtype=dtype, device=device)
    labels = torch.zeros(tokens, dtype=torch.long, device=device)
    with Watch() as seen:
        chunked_loss(x, weight, labels)
    sizes = [shape[0] for shape in seen.shapes["_log_softmax"]]
    assert sizes[:-1] == [rows] * (tokens // rows - (tokens % rows == 0))
    assert sum(sizes) == tokens


@pytest.mark.parametrize("frozen", [False, True])
def test_where_nothing_learns_no_gradient_is_made(frozen):
    x, weight, labels = make()
    if frozen:
        x, weight = x.detach(), weight.detach()
    with torch.set_grad_enabled(frozen), Watch() as seen:
        chunked_loss(x, weight, labels)
    assert "scatter_add_" not in seen.shapes
    assert seen.shapes["empty_like"] == seen.shapes["zeros_like"][1:]
    assert seen.shapes["empty_like"] == [(0, 8)]


def test_a_second_derivative_is_refused_not_wrong():
    x, weight, labels = make()
    loss, _ = chunked_loss(x, weight, labels)
    (gradient,) = torch.autograd.grad(loss**2, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
