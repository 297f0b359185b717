"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Collection, Hashable

from torch import Tensor

__all__ = ["alignment_error_rate", "heaviest_links"]


# 19-pocket-german.md: Attention as alignment
def alignment_error_rate(
    gold: Collection[Hashable], predicted: Collection[Hashable]
) -> float:
    """1 - 2 |A ∩ S| / (|A| + |S|): all gold links are sure ones.

    A link is (source, target), or (sentence, source, target) to rate many
    sentences at once. 0 where there is nothing to find and nothing found.
    """
    sure, given = set(gold), set(predicted)
    if not sure and not given:
        return 0.0
    return 1 - 2 * len(sure & given) / (len(sure) + len(given))


def heaviest_links(weights: Tensor) -> set[tuple[int, int]]:
    """(source, target): where each row of (tgt_len, src_len) is largest."""
    return {(i, j) for j, i in enumerate(weights.argmax(dim=-1).tolist())}
