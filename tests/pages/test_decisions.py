"""What chapter 20 says of the decisions, in short and at full length."""

from __future__ import annotations

import re
from statistics import mean, stdev

import pytest
from sacrebleu.metrics import BLEU

from annotated.book.results import ledger

RUNS = ledger()
SHORT, WHOLE = (
    RUNS[name]["metrics"]["rows"]
    for name in ("multi30k-decisions", "multi30k-decisions-full")
)
SEEDS = [
    RUNS[name]["metrics"]["test"]["bleu"]
    for name in ("multi30k-first", "multi30k-first1", "multi30k-first2")
]
STUDENT = 4.303  # 95 percent, two degrees of freedom
CHANCE = STUDENT * stdev(SEEDS) * (1 + 1 / 3) ** 0.5  # of three, and one
FOUR = {"no dropout", "width 192", "vocabulary 8,000", "no cool-down"}


def gain(row: str) -> float:
    return float(WHOLE[row]["bleu"]) - mean(SEEDS)


def test_four_decisions_gain_in_a_fifth_of_the_steps() -> None:
    own = SHORT["recipe"]["valid_bleu"]
    gains = {row: made["valid_bleu"] - own for row, made in SHORT.items()}
    assert {row for row, more in gains.items() if more > 0.05} == FOUR
    assert max(gains, key=gains.__getitem__) == "no dropout"
    assert WHOLE.keys() > FOUR


def test_size_still_gains_after_all_of_them() -> None:
    assert gain("vocabulary 8,000") == pytest.approx(1.6, abs=0.05)
    assert gain("width 192") == pytest.approx(0.8, abs=0.05)
    assert 0 < gain("wider, 8,000") < gain("vocabulary 8,000")


def test_three_seeds_cannot_tell_these_gains_from_chance() -> None:
    assert gain("width 192") < gain("vocabulary 8,000") < CHANCE
    assert CHANCE - gain("vocabulary 8,000") < 0.05
    assert gain("no dropout") < -3 * CHANCE


def test_no_cool_down_gains_nothing_and_no_dropout_loses_six() -> None:
    assert abs(gain("no cool-down")) < CHANCE
    assert gain("no dropout") == pytest.approx(-6, abs=0.3)
    assert WHOLE["no dropout"]["nats"] > SHORT["no dropout"]["nats"]
    for row in FOUR - {"no dropout"}:
        assert WHOLE[row]["nats"] < SHORT[row]["nats"]


def test_twice_the_width_is_no_better_than_half_as_much_again() -> None:
    assert gain("width 256, dropout 0.3") < gain("width 192")


def test_one_head_and_learned_positions_differ_less_than_seeds() -> None:
    for row, least, most in (
        ("one head", -0.5, -0.4),
        ("learned positions", -0.3, -0.2),
    ):
        seeds = WHOLE[row]["seeds"]
        error = stdev(SEEDS) * (1 / seeds + 1 / 3) ** 0.5
        assert least < gain(row) < most
        assert seeds == 2 and abs(gain(row)) < 2 * error
    assert gain("one head") > min(SEEDS) - max(SEEDS)


CAPTIONS = "multi30k-cpu", "multi30k-seed1", "multi30k-seed2"
BEFORE = [f"multi30k-sinusoidal{n}" for n in ("", 1, 2)]  # other positions


def test_the_translations_that_were_kept_have_the_bleu_that_is_told() -> (
    None
):
    """By what BLEU counts in each of them."""
    kept = [RUNS[name]["metrics"] for name in (*CAPTIONS, *BEFORE)]
    for metrics in kept:
        length, reference, *runs = map(sum, zip(*metrics["counts"]))
        total = BLEU.compute_bleu(
            runs[:4], runs[4:], length, reference, smooth_method="exp"
        )
        assert metrics["as_written"]["bleu"] == round(total.score, 2)
        assert len(metrics["translations"]) == len(metrics["counts"])
    others = {n for n, run in RUNS.items() if "counts" in run["metrics"]}
    assert others == {*CAPTIONS, *BEFORE}


def test_the_vote_opened_no_test_set() -> None:
    found = RUNS["multi30k-mbr"]["metrics"]["runs"]
    assert [one["seed"] for one in found] == [0, 1, 2]
    assert all("test" not in one for one in found)


def test_the_trials_spell_out_what_they_tried() -> None:
    """Each is a run of one command, to its end, and reads no test set."""
    trials = RUNS["multi30k-trials"]["metrics"]
    wide = {r["trial"] for r in trials["runs"] if "float32" in r["options"]}
    assert len(wide) == 3
    for run in trials["runs"]:
        assert run["options"] == trials["rows"][run["trial"]]["options"]
        assert re.search(
            "--precision (bfloat16|float32)\\b", run["options"]
        )
        assert not {"bleu", "test"} & run.keys()
        most = 12_300 if "half as long again" in run["trial"] else 8200
        most = 24_600 if run["trial"] == "three times as long" else most
        assert f"--max-steps {most} " in run["options"]
        curve = run.get("valid_curve")  # two were lost with their machine
        assert curve is None or curve[-1][0] == most
        assert (curve is None) == (most == 24_600)
    assert {"half as long again", "BPE-dropout 0.1"} < trials["rows"].keys()
