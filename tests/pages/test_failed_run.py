"""What chapter 20 says of the run that failed, and of its repetitions."""

from __future__ import annotations

import math
from statistics import mean
from typing import Any

import pytest

from annotated.book.results import ledger
from tests.helpers import benchmark

ENTROPY = ledger()["news-commentary-words"]["metrics"]["entropy"]
FAILED = ledger()["news-commentary-cpu"]
AGAIN = ledger()["news-failed"]


def training(run: dict[str, Any], first: int, last: int) -> float:
    return mean(
        nll for step, _, _, nll in run["curve"] if first < step <= last
    )


def test_training_was_below_the_entropy_and_validation_near_it() -> None:
    run = FAILED["metrics"]
    assert training(run, 0, 100) > ENTROPY > training(run, 250, 350)
    assert training(run, 2300, 2466) < ENTROPY - 1.5
    valid = [math.log(perplexity) for _, perplexity in run["valid_curve"]]
    assert valid[0] > ENTROPY > valid[-1] > ENTROPY - 0.5


def test_it_wrote_one_sentence_whatever_it_read() -> None:
    made = [translation for *_, translation in FAILED["samples"]]
    assert len(set(made)) < len(made) / 2


def test_the_entropy_is_that_of_the_failed_runs_corpus() -> None:
    files = FAILED, ledger()["news-commentary-words"]
    assert len({file["corpus"]["fingerprint"] for file in files}) == 1


def test_the_repetitions_had_nearly_the_same_corpus() -> None:
    pairs = [
        file["corpus"]["splits"]["train"]["pairs"]
        for file in (FAILED, AGAIN)
    ]
    assert pairs[0] == pytest.approx(pairs[1], rel=0.005)
    assert pairs[1] == 265_170  # as the page says


def test_the_repetition_went_as_the_failed_run_did() -> None:
    again = AGAIN["metrics"]["runs"]["as it was"]
    for first in range(100, 800, 100):
        both = [
            training(run, first, first + 100)
            for run in (FAILED["metrics"], again)
        ]
        assert both[0] == pytest.approx(both[1], abs=0.16)


def test_the_norm_before_learns_faster_from_the_start() -> None:
    runs = AGAIN["metrics"]["runs"]
    post, pre = runs["as it was"], runs["norm before"]
    reached = min(post["curve"][-1][0], pre["curve"][-1][0])
    for last in range(400, reached, 100):
        gap = training(post, last - 100, last) - training(
            pre, last - 100, last
        )
        assert gap > 0.1
    by_step = [dict(run["valid_curve"]) for run in (post, pre)]
    common = max(by_step[0].keys() & by_step[1].keys())
    assert common >= 548
    assert by_step[1][common] < 0.9 * by_step[0][common]


def test_the_norm_saves_most_and_the_rate_some_of_it() -> None:
    runs = AGAIN["metrics"]["runs"]
    assert all(run["curve"][-1][0] > 2450 for run in runs.values())

    def gains(values: dict[str, float]) -> float:
        """The rate's share of what the norm gains."""
        gained = values["as it was"] - values["norm before"]
        assert gained > 0.7
        return (values["as it was"] - values["half the rate"]) / gained

    late = {name: training(run, 2366, 2466) for name, run in runs.items()}
    valid = {
        name: math.log(run["valid_curve"][-1][1])
        for name, run in runs.items()
    }
    for share in (gains(late), gains(valid)):
        assert share == pytest.approx(0.4, abs=0.06)  # two fifths
    early = {name: training(run, 600, 822) for name, run in runs.items()}
    assert abs(early["as it was"] - early["half the rate"]) < 0.1


def test_only_the_run_as_it_was_writes_one_sentence() -> None:
    first_words = {
        name: [" ".join(made.split()[:5]) for *_, made in run["samples"]]
        for name, run in AGAIN["metrics"]["runs"].items()
    }
    kinds = {name: len(set(words)) for name, words in first_words.items()}
    assert kinds["as it was"] <= 4
    assert kinds["half the rate"] == kinds["norm before"] == 6
    assert "In the case of the" in first_words["norm before"]


def test_each_repetition_changes_one_thing() -> None:
    with benchmark("failed_run") as script:
        assert script.ROWS["as it was"] == {}
        for row, change in script.ROWS.items():
            assert len(change) == (row != "as it was")
        stated = FAILED["settings"]
        for name in (
            "d_model",
            "d_ff",
            "dropout",
            "batch_tokens",
            "warmup",
        ):
            assert script.AS_IT_WAS[name] == stated[name]
        assert script.AS_IT_WAS["rate"] == stated["rate"]
