"""Chapter 03: masks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated.attention import attention
from annotated.masks import causal_mask, padding_mask, window_mask

few = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31 - 1)
batches = st.lists(st.integers(0, 5), min_size=1, max_size=5)


def drawn(*rows):
    """A mask from a picture of it: x = may attend."""
    return torch.tensor([[cell == "x" for cell in row] for row in rows])


def real_tokens(lengths, width=5):
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def test_padding_is_forbidden_as_a_key():
    ids = torch.tensor([[5, 8, 6], [4, 0, 0]])
    mask = padding_mask(ids)
    assert mask.shape == (2, 1, 1, 3)
    assert torch.equal(mask[:, 0, 0], drawn("xxx", "x.."))


def test_padding_can_have_another_id():
    ids = torch.tensor([[0, 7, 9]])
    assert torch.equal(padding_mask(ids, pad_id=9)[0, 0], drawn("xx."))


def test_causal_allows_the_past_and_the_present():
    assert torch.equal(causal_mask(3), drawn("x..", "xx.", "xxx"))


def test_a_window_allows_its_neighbourhood():
    mask = window_mask(5, 3)
    assert torch.equal(
        mask, drawn("xx...", "xxx..", ".xxx.", "..xxx", "...xx")
    )


@pytest.mark.parametrize(("r", "width"), [(1, 1), (2, 3), (3, 3), (4, 5)])
def test_an_even_window_reaches_as_far_as_the_next_odd_one(r, width):
    assert window_mask(9, r)[4].sum() == width


def test_a_window_of_nothing_is_refused():
    with pytest.raises(ValueError, match="window must be at least 1"):
        window_mask(5, 0)


@few
@given(length=st.integers(1, 12), r=st.integers(1, 30))
def test_a_window_is_symmetric_and_its_layers_reach(length, r):
    mask = window_mask(length, r)
    assert torch.equal(mask, mask.T)
    step = r // 2
    if step:
        layers = -(-(length - 1) // step)
        reach = mask.double().matrix_power(max(layers, 1))
        assert (reach > 0).all()


@few
@given(seed=seeds, length=st.integers(1, 8))
def test_one_causal_pass_is_a_pass_over_every_prefix(seed, length):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(length, 4, generator=g, dtype=torch.float64)
    at_once = attention(x, x, x, causal_mask(length))
    for i in range(length):
        prefix = x[: i + 1]
        torch.testing.assert_close(
            at_once[i], attention(prefix, prefix, prefix)[-1]
        )


@few
@given(seed=seeds, lengths=batches)
def test_a_sentence_has_the_same_answer_alone_and_in_company(seed, lengths):
    ids = real_tokens(lengths).long()
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(len(ids), 1, 5, 4, generator=g, dtype=torch.float64)
    together = attention(x, x, x, padding_mask(ids))
    for i, n in enumerate(lengths):
        alone = x[i : i + 1, :, :n]
        torch.testing.assert_close(
            together[i : i + 1, :, :n], attention(alone, alone, alone)
        )


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_masks_are_made_on_the_device_asked_for(device):
    for mask in (causal_mask(3, device), window_mask(3, 1, device)):
        assert mask.device.type == device
