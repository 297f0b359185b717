"""Chapter 06: the matrices between tokens and vectors."""

import copy
import math

import pytest
import torch
from torch import nn

from annotated.embeddings import Embeddings

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
ALL_TIES = ["all", "decoder", "none"]


def sharing(e):
    """(source is target, output is target)"""
    return e.source is e.target, e.output is e.target


@pytest.mark.parametrize(
    ("tie", "shared", "tables"),
    [
        ("all", (True, True), 1),
        ("decoder", (False, True), 2),
        ("none", (False, False), 3),
    ],
)
def test_tie_shares_exactly_the_right_tensors(tie, shared, tables):
    e = Embeddings(9, 9, 4, tie)
    assert sharing(e) == shared
    assert e.output is not e.source or tie == "all"
    assert len(list(e.parameters())) == tables


@pytest.mark.parametrize("tie", ALL_TIES)
def test_sharing_survives_conversion_copying_loading_and_a_step(tie):
    e = Embeddings(9, 9, 4, tie)
    before = sharing(e)
    e = copy.deepcopy(e).double()
    e.load_state_dict(Embeddings(9, 9, 4, tie).state_dict())
    optimiser = torch.optim.SGD(e.parameters(), lr=1.0)
    e.logits(e.read_source(torch.tensor([1]))).square().sum().backward()
    optimiser.step()
    assert sharing(e) == before
    assert torch.equal(e.source, e.target) == before[0]
    assert torch.equal(e.output, e.target) == before[1]


@pytest.mark.parametrize("tie", ALL_TIES)
def test_a_bias_is_added_to_the_logits_and_to_nothing_else(tie):
    torch.manual_seed(0)
    plain = Embeddings(9, 9, 4, tie)
    e = Embeddings(9, 9, 4, tie, bias=True)
    assert plain.bias is None
    assert not e.load_state_dict(plain.state_dict(), strict=False)[1]
    ids, x = torch.tensor([1, 7]), torch.randn(2, 4)
    torch.testing.assert_close(e.logits(x), plain.logits(x))  # zeros
    e.bias.data = torch.arange(9.0)
    assert torch.equal(e.read_source(ids), plain.read_source(ids))
    assert torch.equal(e.read_target(ids), plain.read_target(ids))
    torch.testing.assert_close(
        e.logits(x) - plain.logits(x), torch.arange(9.0).expand(2, 9)
    )


def three_uses(e, source, target, mix):
    x = e.read_source(source) + e.read_target(target)
    return (e.logits(x.tanh()) * mix).sum()


@pytest.mark.parametrize("tie", ["all", "decoder"])
def test_a_shared_matrix_gets_one_gradient_the_sum_of_its_uses(tie):
    torch.manual_seed(0)
    tied = Embeddings(9, 9, 4, tie).double()
    free = Embeddings(9, 9, 4, "none").double()
    for name in ("source", "target", "output"):
        getattr(free, name).data.copy_(getattr(tied, name))
    source, target = torch.randint(9, (2, 3, 5))
    mix = torch.randn(3, 5, 9).double()
    three_uses(tied, source, target, mix).backward()
    three_uses(free, source, target, mix).backward()
    expected = free.target.grad + free.output.grad
    if tie == "all":
        expected = expected + free.source.grad
    else:
        torch.testing.assert_close(tied.source.grad, free.source.grad)
    torch.testing.assert_close(tied.target.grad, expected)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_embeddings_agree_with_torch(dtype):
    torch.manual_seed(0)
    ours = Embeddings(30, 30, 16).to(dtype)
    embedding = nn.Embedding(30, 16, dtype=dtype)
    linear = nn.Linear(16, 30, bias=False, dtype=dtype)
    linear.weight = embedding.weight
    embedding.weight.data.copy_(ours.target)
    ids, mix = torch.randint(30, (4, 9)), torch.randn(4, 9, 30, dtype=dtype)
    close = {"rtol": 0.0, "atol": TOLERANCE[dtype]}
    for read in (ours.read_source, ours.read_target):
        ours.zero_grad(), linear.zero_grad()
        a, b = ours.logits(read(ids)), linear(embedding(ids) * 4.0)
        torch.testing.assert_close(a, b, **close)
        for logits in (a, b):
            (logits * mix).mean().backward()
        torch.testing.assert_close(
            ours.target.grad, embedding.weight.grad, **close
        )


def test_reading_multiplies_by_the_root_of_d_model_and_scoring_does_not():
    e = Embeddings(5, 5, 9)
    row = e.target[3]
    torch.testing.assert_close(e.read_source(torch.tensor(3)), 3 * row)
    torch.testing.assert_close(e.read_target(torch.tensor(3)), 3 * row)
    torch.testing.assert_close(e.logits(row)[3], row @ row)


def test_logits_become_the_probabilities_computed_by_hand():
    e = Embeddings(3, 3, 4, "none")
    e.output.data[:, 0] = torch.tensor([1.0, 2.0, 5.0]).log()
    p = e.logits(torch.tensor([1.0, 0.0, 0.0, 0.0])).softmax(dim=-1)
    torch.testing.assert_close(p, torch.tensor([1.0, 2.0, 5.0]) / 8)


@pytest.mark.parametrize("tie", ["decoder", "none"])
def test_two_languages_may_have_vocabularies_of_their_own(tie):
    e = Embeddings(7, 11, 4, tie)
    assert e.read_source(torch.tensor([6])).shape == (1, 4)
    assert e.read_target(torch.tensor([10])).shape == (1, 4)
    assert e.logits(torch.randn(2, 4)).shape == (2, 11)


def test_vectors_enter_and_logits_leave_at_size_1():
    torch.manual_seed(0)
    e = Embeddings(2000, 2000, 256)
    entering = e.read_source(torch.arange(2000))
    leaving = e.logits(torch.randn(100, 256))
    assert entering.std().item() == pytest.approx(1, abs=0.01)
    assert leaving.std().item() == pytest.approx(1, abs=0.02)
    # and not the same size, which is what the factor is for
    assert e.target.std().item() == pytest.approx(1 / math.sqrt(256), 0.01)
