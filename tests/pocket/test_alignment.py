"""Alignments: the error rate, and the heaviest links."""

from __future__ import annotations

import pytest
import torch

from annotated.alignment import alignment_error_rate, heaviest_links


@pytest.mark.parametrize(
    ("gold", "predicted", "rate"),
    [
        ({(0, 0), (1, 2)}, {(0, 0), (1, 2)}, 0.0),
        ({(0, 0), (1, 2)}, {(0, 0), (1, 1)}, 0.5),
        ({(0, 0)}, {(0, 0), (1, 1), (2, 2)}, 0.5),
        ({(0, 0)}, set(), 1.0),
        (set(), set(), 0.0),
        ([(0, 1, 1), (1, 1, 1)], [(0, 1, 1), (0, 1, 1)], 1 / 3),
    ],
)
def test_the_alignment_error_rate_is_what_one_computes_by_hand(
    gold, predicted, rate
):
    assert alignment_error_rate(gold, predicted) == pytest.approx(rate)


def test_the_heaviest_links_are_the_largest_weights_of_the_rows():
    weights = torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3]])
    assert heaviest_links(weights) == {(1, 0), (1, 1), (0, 2)}
