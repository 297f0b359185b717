"""Scores and their differences: annotated.evaluation, from chapter 18."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from annotated.book import results
from annotated.book.results import ledger
from annotated.evaluation import _split_hyphens, compare, score

HYPOTHESES = [
    "a dog runs across the grass .",
    "two men sit on a bench .",
    "the woman sings the song in the rain .",
]
REFERENCES = [
    "a dog is running across the grass .",
    "two men are sitting on a wooden bench .",
    "a woman sings her song in the rain .",
]


# --- score ----------------------------------------------------------------


def test_bleu_is_what_a_person_counts() -> None:
    # clipped matches of runs of 1 to 4 words, and 23 words against 26
    product = 19 / 23 * 12 / 20 * 5 / 17 * 3 / 14
    by_hand = 100 * math.exp(1 - 26 / 23) * product ** (1 / 4)
    assert score(HYPOTHESES, REFERENCES)["bleu"] == round(by_hand, 2)


def test_score_is_sacrebleus() -> None:
    found = score(HYPOTHESES, REFERENCES)
    bleu, chrf = BLEU(), CHRF()
    exact = bleu.corpus_score(HYPOTHESES, [REFERENCES]).score
    assert found["bleu"] == round(exact, 2)
    assert found["signature"] == str(bleu.get_signature())
    exact = chrf.corpus_score(HYPOTHESES, [REFERENCES]).score
    assert found["chrf"] == round(exact, 2)


def test_the_signature_names_case_and_tokeniser() -> None:
    parts = score(HYPOTHESES, REFERENCES)["signature"].split("|")
    assert {"nrefs:1", "case:mixed", "tok:13a"} <= set(parts)


def test_case_counts() -> None:
    upper = [line.upper() for line in REFERENCES]
    assert score(upper, REFERENCES)["bleu"] < 20


def test_exact_match_is_the_share_of_equal_lines() -> None:
    found = score(["a", "b", "c", ""], ["a", "B", "c", ""])
    assert found["exact_match"] == 75.0
    assert found["sentences"] == 4
    assert score(["a", "b", "c"], ["a", "?", "?"])["exact_match"] == 33.33


def test_a_perfect_system_has_a_hundred_everywhere() -> None:
    found = score(REFERENCES, REFERENCES)
    assert [found[k] for k in ("bleu", "chrf", "exact_match")] == [100] * 3


@pytest.mark.parametrize("silent", [[""] * 3, ["   "] * 3])
def test_saying_nothing_scores_nothing(silent: list[str]) -> None:
    found = score(silent, REFERENCES)
    assert (found["bleu"], found["chrf"], found["exact_match"]) == (0, 0, 0)


def test_sides_of_unlike_number_are_refused() -> None:
    with pytest.raises(ValueError, match="2 and 3 lines: all sides need"):
        score(HYPOTHESES[:2], REFERENCES)


def test_a_string_is_no_list_of_lines() -> None:
    for sides in (("ab", ["ab", "b"]), (["a", "b"], "ab"), ("ab", "ab")):
        with pytest.raises(ValueError, match="a string is given"):
            score(*sides)
        with pytest.raises(ValueError, match="a string is given"):
            compare(["a", "b"], *sides)


def test_half_of_a_character_is_scored_like_any_other() -> None:
    lines = ["a b-c d \ud800-e", "b c d e f"]
    found = score(lines, lines, split_compounds=True)
    assert found["bleu"] == found["split_bleu"] == 100
    assert compare(lines, lines, lines, draws=5)["bleu"]["p"] == 1.0


def test_nothing_to_score_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to score"):
        score([], [])


# --- the paper's way of counting ------------------------------------------


def test_words_are_split_at_inner_hyphens_only() -> None:
    split = "Rhein ##AT##-##AT## Main ##AT##-##AT## Region"
    assert _split_hyphens("Rhein-Main-Region") == split
    assert _split_hyphens("Haus- und Hof - ja") == "Haus- und Hof - ja"


# what perl makes of these
PERL = {
    "a-t-il": "a ##AT##-##AT## t-il",
    "jack-o-lantern": "jack ##AT##-##AT## o-lantern",
    "y-a-t-il, n'est-ce pas": (
        "y ##AT##-##AT## a-t ##AT##-##AT## il , n'est ##AT##-##AT## ce pas"
    ),
    "Haus- und Hof - ja": "Haus- und Hof - ja",
    "--": "--",
    "a--b": "a ##AT##-##AT## -b",
    "---": "- ##AT##-##AT## -",
    # perl reads bytes, of which é has two
    "a-é-b": "a ##AT##-##AT## é ##AT##-##AT## b",
    "東-京-都": "東 ##AT##-##AT## 京 ##AT##-##AT## 都",
    "": "",
}


@pytest.mark.parametrize("line", PERL)
def test_hyphens_are_split_as_the_published_script_splits_them(
    line: str,
) -> None:
    assert _split_hyphens(line) == PERL[line]


@pytest.mark.skipif(shutil.which("perl") is None, reason="needs perl")
def test_perl_says_the_same() -> None:
    draw = np.random.default_rng(0)
    signs = np.array([*"aaabé東😀1.,- -- \u00a0\u2028"])
    lines = [*PERL, *("".join(draw.choice(signs, 12)) for _ in range(500))]
    tokens = "\n".join(Tokenizer13a()(line) for line in lines)
    script = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"  # get_ende_bleu.sh's
    done = subprocess.run(
        ["perl", "-ple", script],
        input=tokens.encode(),
        capture_output=True,
        check=True,
    )
    found = [_split_hyphens(line) for line in lines]
    assert done.stdout.decode().split("\n")[:-1] == found


def test_split_compounds_counts_the_split_words() -> None:
    hyp = ["Der SPD-Politiker fordert eine EU-weite Regelung."]
    ref = ["Der CDU-Politiker fordert eine EU-weite Regelung."]
    # by hand: 11 tokens on both sides, of which one is wrong, the second
    assert len(_split_hyphens(hyp[0]).split()) == 11
    product = 10 / 11 * 8 / 10 * 7 / 9 * 6 / 8
    found = score(hyp, ref, split_compounds=True)
    assert found["split_bleu"] == round(100 * product**0.25, 2)
    assert found["split_bleu"] > found["bleu"]


def test_the_two_ways_of_counting_cannot_be_confused() -> None:
    plain = score(HYPOTHESES, REFERENCES)
    both = score(HYPOTHESES, REFERENCES, split_compounds=True)
    # the second way adds keys and changes none
    assert both | plain == both
    assert both.keys() - plain.keys() == {"split_bleu", "split_signature"}
    assert "tok:13a|" in both["signature"]
    assert "tok:13a+hyphens|" in both["split_signature"]


# --- is the difference chance? --------------------------------------------

WORDS = ["the", "a", "dog", "cat", "sees", "hears", "old", "new", "in", "."]


def system(truth: list[str], rate: float, seed: int) -> list[str]:
    """truth with a share of its words exchanged."""
    draw = np.random.default_rng(seed)
    return [
        " ".join(
            str(draw.choice(WORDS)) if draw.random() < rate else word
            for word in line.split()
        )
        for line in truth
    ]


@pytest.fixture(scope="module")
def truth() -> list[str]:
    draw = np.random.default_rng(0)
    return [
        " ".join(draw.choice(WORDS, draw.integers(3, 15)))
        for _ in range(200)
    ]


def test_differences_are_those_of_the_scores(truth: list[str]) -> None:
    one, other = system(truth, 0.1, 1), system(truth, 0.3, 2)
    scores = score(one, truth), score(other, truth)
    found = compare(one, other, truth, draws=50)
    for name in ("bleu", "chrf"):
        exact = scores[0][name] - scores[1][name]
        assert found[name]["difference"] == pytest.approx(exact, abs=0.011)


@settings(deadline=None, max_examples=100)
@given(
    said=st.text("ab c", max_size=12), right=st.text("ab c", max_size=12)
)
def test_what_a_line_is_worth_beside_silence_is_its_score(
    said: str, right: str
) -> None:
    """All our counts are sacreBLEU's: of lines too short for its longest
    runs, of spaces, of nothing in common.
    """
    lines, truth = [said, "a b c a"], [right, "a b a a c"]
    found, exact = compare(lines, ["", ""], truth, 1), score(lines, truth)
    for name in ("bleu", "chrf"):
        assert found[name]["difference"] == exact[name]


@pytest.mark.parametrize("odd", ["", " ", "a", "a b", "日本語", "a-b c"])
def test_differences_are_those_of_the_scores_for_odd_lines(
    odd: str,
) -> None:
    one = [*HYPOTHESES, odd]
    truth = [*REFERENCES, "a b c"]
    found = compare(one, [*REFERENCES, ""], truth, draws=3)
    scores = score(one, truth), score([*REFERENCES, ""], truth)
    for name in ("bleu", "chrf"):
        exact = scores[0][name] - scores[1][name]
        assert found[name]["difference"] == pytest.approx(exact, abs=0.011)


def test_counts_of_zero_are_smoothed_as_in_the_score() -> None:
    """No run of four words is right, nor of three in the other one."""
    one, other, truth = ["a b c x d"], ["a b x c d"], ["a b c d e"]
    scores = score(one, truth), score(other, truth)
    exact = scores[0]["bleu"] - scores[1]["bleu"]
    assert exact > 1
    found = compare(one, other, truth, draws=3)["bleu"]["difference"]
    assert found == pytest.approx(exact, abs=0.011)


def test_a_system_that_is_all_wrong_is_worth_nothing() -> None:
    """Smoothing is for some right words, not for none."""
    wrong, truth = ["p q r s t"], ["a b c d e"]
    assert score(wrong, truth)["bleu"] == 0
    assert compare(wrong, [""], truth, 3)["bleu"]["difference"] == 0


def test_saying_nothing_can_be_compared() -> None:
    found = compare([""] * 3, REFERENCES, REFERENCES, draws=20)
    for name in ("bleu", "chrf"):
        assert found[name]["difference"] == -100
        assert (found[name]["low"], found[name]["high"]) == (-100, -100)


def test_a_system_does_not_differ_from_itself(truth: list[str]) -> None:
    one = system(truth, 0.2, 1)
    for found in compare(one, one, truth, draws=100).values():
        assert found == {"difference": 0, "low": 0, "high": 0, "p": 1}


def test_a_clear_difference_is_not_chance(truth: list[str]) -> None:
    one, other = system(truth, 0.1, 1), system(truth, 0.4, 2)
    for found in compare(one, other, truth).values():
        assert found["low"] > 0
        assert found["p"] == pytest.approx(1 / 1001, abs=1e-4)


def test_sides_may_be_exchanged(truth: list[str]) -> None:
    one, other = system(truth, 0.2, 1), system(truth, 0.22, 2)
    there = compare(one, other, truth, draws=200)["bleu"]
    back = compare(other, one, truth, draws=200)["bleu"]
    assert there["difference"] == -back["difference"]
    assert (there["low"], there["high"]) == (-back["high"], -back["low"])
    assert there["p"] == back["p"]


def test_equal_systems_are_seldom_told_apart(truth: list[str]) -> None:
    """Of twenty pairs of systems of one quality, one is to be expected
    below 5 %, and more than four would be a surprise of 1 in 300.
    """
    few = truth[:60]
    p = [
        compare(
            system(few, 0.2, 2 * i), system(few, 0.2, 2 * i + 1), few, 100
        )["bleu"]["p"]
        for i in range(20)
    ]
    assert sum(value < 0.05 for value in p) <= 4


def test_a_comparison_can_be_repeated(truth: list[str]) -> None:
    sides = system(truth, 0.2, 1), system(truth, 0.25, 2), truth
    assert compare(*sides, draws=50) == compare(*sides, draws=50)


def test_p_is_the_share_of_exchanges_that_differ_as_much() -> None:
    """Four sentences have sixteen exchanges; A is right in all, B in none.
    Only to leave all as they are, or to exchange all, differs as much.
    """
    truth = ["a b c d", "e f g h", "i j k l", "m n o p"]
    other = ["q r s t", "u v w x", "y z q r", "s t u v"]
    p = compare(truth, other, truth, draws=4000)["bleu"]["p"]
    assert p == pytest.approx(2 / 16, abs=0.02)


@pytest.mark.parametrize("seed", [5, 8, 10])
def test_p_is_sacrebleus(truth: list[str], seed: int) -> None:
    """Its PairedTest draws other exchanges, and counts larger ones only,
    which is the same where no two exchanges are as good.
    """
    one, other = system(truth, 0.2, 1), system(truth, 0.2, seed)
    metrics = {"bleu": BLEU(), "chrf": CHRF()}
    test = PairedTest(
        [("one", one), ("other", other)], metrics, [truth], "ar", 1000
    )
    theirs, ours = test()[1], compare(one, other, truth)
    for name, key in (("bleu", "BLEU"), ("chrf", "chrF2")):
        _, result = theirs[key]
        assert ours[name]["p"] == pytest.approx(result.p_value, abs=0.06)


def test_the_interval_holds_the_true_difference_nearly_always() -> None:
    """On forty test sets drawn from one language, 95 % are 38; fewer than
    33 would be a surprise of 1 in 100.
    """
    draw = np.random.default_rng(5)
    truth = [
        " ".join(draw.choice(WORDS, draw.integers(4, 9)))
        for _ in range(2400)
    ]
    one, other = system(truth, 0.15, 1), system(truth, 0.25, 2)
    whole = score(one, truth)["bleu"] - score(other, truth)["bleu"]
    held = 0
    for i in range(0, 2400, 60):
        sides = (side[i : i + 60] for side in (one, other, truth))
        found = compare(*sides, draws=200)["bleu"]
        held += found["low"] <= whole <= found["high"]
    assert held >= 33


def test_of_two_sentences_the_interval_runs_from_one_to_the_other() -> None:
    """A quarter of the draws has the first twice, a quarter the second."""
    others = ["a dog is in the grass .", "men are sitting on a bench ."]
    sides = HYPOTHESES[:2], others, REFERENCES[:2]
    found = compare(*sides, draws=100)
    for name in ("bleu", "chrf"):
        ends = []
        for i in (0, 1):
            one, other, truth = ([side[i]] * 2 for side in sides)
            ends.append(score(one, truth)[name] - score(other, truth)[name])
        low, high = found[name]["low"], found[name]["high"]
        assert [low, high] == pytest.approx(sorted(ends), abs=0.011)
        assert all(round(x) != x == round(x, 2) for x in (low, high))


def test_a_difference_has_two_decimals_and_p_four() -> None:
    found = compare(HYPOTHESES, REFERENCES, REFERENCES, draws=6)["bleu"]
    assert found["difference"] == round(found["difference"], 2)
    assert found["p"] in [round(k / 7, 4) for k in range(1, 7)]


def test_a_thousand_exchanges_are_drawn(truth: list[str]) -> None:
    few = truth[:20]
    sides = system(few, 0.2, 1), system(few, 0.2, 8), few
    assert compare(*sides) == compare(*sides, draws=1000)


def test_no_warning_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    """sacreBLEU warns of a text that looks tokenised, which the paper's
    counting makes of it, and of BLEU for one sentence.
    """
    lines = ["a dog runs."] * 100
    assert score(lines, lines, split_compounds=True)["split_bleu"] == 100
    compare(lines, lines, lines, draws=1)
    assert caplog.messages == []


@pytest.mark.parametrize("short", [0, 1, 2])
def test_three_sides_must_be_as_long(short: int) -> None:
    sides = [HYPOTHESES, HYPOTHESES, REFERENCES]
    sides[short] = sides[short][:2]
    counts = " and ".join("2" if i == short else "3" for i in range(3))
    with pytest.raises(ValueError, match=f"^{counts} lines"):
        compare(*sides)
    with pytest.raises(ValueError, match="nothing to score"):
        compare([], [], [])


# --- the ledger -----------------------------------------------------------


def test_an_empty_ledger_has_no_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results.resources, "files", lambda _: tmp_path)
    assert ledger() == {}


def test_the_ledger_gives_runs_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {"multi30k-cpu": {"metrics": {"test": {"bleu": 1.5}}}}
    (tmp_path / "results.json").write_text(json.dumps(runs), "utf-8")
    monkeypatch.setattr(results.resources, "files", lambda _: tmp_path)
    assert ledger()["multi30k-cpu"]["metrics"]["test"]["bleu"] == 1.5


def test_every_run_of_the_ledger_can_be_repeated() -> None:
    for name, run in ledger().items():
        for key in ("recipe", "commit", "command", "hardware", "versions",
                    "seed", "wall_seconds", "metrics"):  # fmt: skip
            assert key in run, f"{name} does not say its {key}"
