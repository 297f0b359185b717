"""Exported from the book; edit the chapter, then run `make export`."""

from collections import Counter
from collections.abc import Sequence

from sacrebleu.metrics import CHRF

from annotated.engine.translate import Translation

__all__ = ["by_risk"]


# E6-search.md: The translation that is most like the others
def by_risk(
    found: Sequence[Sequence[Translation]],
    draws: Sequence[Sequence[Translation]],
) -> list[list[Translation]]:
    """The translations of each line, first those of least Bayes risk: most
    like that line's draws, by the mean chrF of a sentence. ValueError if
    the numbers of lines differ.
    """
    chrf, ordered = CHRF(), []
    for some, drawn in zip(found, draws, strict=True):
        votes = Counter(one.text for one in drawn)
        gains = {
            text: sum(
                count * chrf.sentence_score(text, [vote]).score
                for vote, count in votes.items()
            )
            for text in {one.text for one in some}
        }
        ordered.append(sorted(some, key=lambda one: -gains[one.text]))
    return ordered
