"""Chapter 13: label smoothing and the loss."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated.loss import smoothed_loss, smoothed_targets
from annotated.tokens import PAD

calm = settings(deadline=None)  # a busy machine is no failure


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


def draw(shape, vocab=37, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(*shape, vocab, dtype=dtype, generator=g)
    labels = torch.randint(1, vocab, shape, generator=g)
    return logits.requires_grad_(), labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_the_loss_and_its_gradient_are_those_of_torch(smoothing):
    logits, labels = draw((4, 6))
    labels[1, 4:] = labels[3, 1:] = PAD
    loss, nll = smoothed_loss(logits, labels, smoothing)
    theirs = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="sum",
        label_smoothing=smoothing, ignore_index=PAD,
    )  # fmt: skip
    torch.testing.assert_close(loss, theirs, rtol=1e-12, atol=0)
    grads = [torch.autograd.grad(x, logits)[0] for x in (loss, theirs)]
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)
    plain, _ = smoothed_loss(logits, labels, 0.0)
    assert nll.item() == pytest.approx(plain.item(), rel=1e-12)


def test_the_loss_is_the_cross_entropy_with_the_smoothed_targets():
    logits, labels = draw((5,))
    targets = smoothed_targets(labels, 37, 0.1).double()
    expected = -(targets * logits.log_softmax(-1)).sum()
    loss, _ = smoothed_loss(logits, labels, 0.1)
    # targets are made in float32
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)


def test_a_model_that_knows_nothing_has_the_vocabulary_as_perplexity():
    _, labels = draw((23,))
    loss, nll = smoothed_loss(torch.zeros(23, 37).double(), labels, 0.1)
    for value in (loss, nll):
        assert math.exp(value.item() / 23) == pytest.approx(37, rel=1e-12)


def test_a_model_that_is_sure_is_punished():
    """Logits of 200 on the label: nll 0, the loss 0.1 · 36/37 · 200."""
    labels = torch.arange(1, 37)
    sure = 200 * F.one_hot(labels, 37).double()
    loss, nll = smoothed_loss(sure, labels, 0.1)
    assert nll.item() == pytest.approx(0, abs=1e-12)
    assert loss.item() / 36 == pytest.approx(0.1 * 36 / 37 * 200)


def test_padding_costs_nothing_whatever_the_model_says_there():
    logits, labels = draw((3, 5))
    labels[:, 3:] = PAD
    with_padding = smoothed_loss(logits, labels)
    without = smoothed_loss(logits[:, :3], labels[:, :3])
    torch.testing.assert_close(with_padding, without)


def test_smoothing_is_the_papers_where_none_is_given() -> None:
    logits, labels = torch.randn(2, 3, 7), torch.randint(4, 7, (2, 3))
    as_in_paper = smoothed_loss(logits, labels, 0.1)
    assert smoothed_loss(logits, labels) == as_in_paper
