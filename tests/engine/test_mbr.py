"""The translation that the draws are most like comes first."""

from __future__ import annotations

import pytest
from sacrebleu.metrics import CHRF

from annotated.engine.mbr import by_risk
from annotated.engine.translate import Translation


def those(*texts: str) -> list[Translation]:
    """Less probable from one to the next."""
    return [Translation(text, -i, -i) for i, text in enumerate(texts)]


def test_the_text_that_is_most_like_the_draws_comes_first() -> None:
    found = those("a cat", "the dog runs", "the dog walks")
    draws = those("the dog walked", "a dog walks", "the dog walks", "no")
    [ordered] = by_risk([found], [draws])
    means = {
        one.text: sum(
            CHRF().sentence_score(one.text, [draw.text]).score
            for draw in draws
        )
        for one in found
    }
    assert [one.text for one in ordered] == sorted(
        means, key=lambda text: -means[text]
    )
    assert ordered[0] is found[2]


def test_a_draw_counts_as_often_as_it_was_drawn() -> None:
    found = those("aaaa", "bbbb")
    [ordered] = by_risk([found], [those("aaaa", "bbbb", "bbbb")])
    assert ordered[0].text == "bbbb"


def test_where_nothing_decides_the_order_stays() -> None:
    found = those("ab", "cd", "cd", "")
    assert by_risk([found, those("")], [those("xyz"), those("")]) == [
        found, those(""),
    ]  # fmt: skip


def test_each_line_has_draws_of_its_own() -> None:
    with pytest.raises(ValueError, match="shorter"):
        by_risk([those("a"), those("b")], [those("a")])
