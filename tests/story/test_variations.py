"""Tables 2 and 3 as data, and Table 3 in small: chapter 23."""

from __future__ import annotations

import itertools
import math
import re
from statistics import mean, stdev, variance

import pytest

from annotated.book.results import ledger
from annotated.costs import PAPER_HOURS, forward_flops, paper_cost
from annotated.engine.recipes import RECIPES, Recipe
from annotated.model import count_parameters
from annotated.variations import (
    _ABOUT_EQUAL,
    _COMPARISONS,
    TABLE2,
    TABLE3,
    _Difference,
    _in_small,
    difference,
    small_rows,
    small_runs,
)
from tests.helpers import ROOT, benchmark

# --- Table 2


def test_the_transformers_costs_are_recomputed() -> None:
    for size, hours in PAPER_HOURS.items():
        cost = TABLE2[size].german_cost
        assert paper_cost(hours) == pytest.approx(cost, rel=0.02)


def test_the_sentences_of_6_1_hold_for_table_2() -> None:
    own = {"base", "big"}
    others = [s for name, s in TABLE2.items() if name not in own]
    best = max(s.german or 0 for s in others)
    assert TABLE2["big"].german - best > 2.0
    assert TABLE2["base"].german > best
    singles = [
        s
        for name, s in TABLE2.items()
        if name not in own and "ensemble" not in name
    ]
    rival = max(singles, key=lambda s: s.french or 0)
    assert TABLE2["big"].french > rival.french
    assert TABLE2["big"].french_cost < rival.french_cost / 4
    assert TABLE2["base"].french < min(s.french for s in others if s.french)


# --- Table 3


def test_each_recipe_has_the_size_of_its_row() -> None:
    """By one vocabulary for the base family, and another for big."""
    assert {f"table3-{row}" for row in TABLE3} == {
        name for name in RECIPES if name.startswith("table3-")
    }
    stated = 0
    for row, paper in TABLE3.items():
        vocab = 36_000 if row == "big" else 41_000
        config = RECIPES[f"table3-{row}"].config(vocab, vocab)
        count = round(count_parameters(config) / 1e6)
        if paper.millions:
            stated += 1
            assert count == paper.millions, row
        elif row == "E-learned":  # and two tables of positions
            assert count == TABLE3["base"].millions + 1
        else:
            assert count == TABLE3["base"].millions, row
    assert stated == 11


def test_rows_a_cost_the_same() -> None:
    costs = {
        forward_flops(RECIPES[f"table3-{row}"].config(1000, 1000))
        for row in ("base", "A-h1", "A-h4", "A-h16", "A-h32")
    }
    assert len(costs) == 1


def test_each_row_is_compared_by_one_rule() -> None:
    """Stated from 0.01 nats on, about equal below; two layers with four."""
    others = {row: "base" for row in TABLE3 if row != "base"}
    others["C-N2"] = "C-N4"
    stated, equal = set(), set()
    for pair in others.items():
        first, second = (TABLE3[row].perplexity for row in pair)
        gap = math.log(first / second)
        if abs(gap) < 0.01:
            equal.add(pair)
        else:
            stated.add(pair if gap > 0 else pair[::-1])
    assert set(_COMPARISONS) == stated and len(_COMPARISONS) == 15
    assert set(_ABOUT_EQUAL) == equal and len(_ABOUT_EQUAL) == 4


def test_every_row_changes_in_small_what_it_changes_in_large() -> None:
    """And by the same factor: the ratio to base is kept."""
    small = small_rows(100)
    assert small.keys() == TABLE3.keys()
    for row, recipe in small.items():
        large = RECIPES[f"table3-{row}"]
        for name in ("d_model", "d_ff", "num_heads", "num_encoder_layers"):
            ratios = {
                getattr(one.model, name) / getattr(base.model, name)
                for one, base in (
                    (recipe, small["base"]),
                    (large, RECIPES["table3-base"]),
                )
            }
            assert len(ratios) == 1, (row, name)
        for name in ("dropout", "positions", "norm"):
            assert getattr(recipe.model, name) == getattr(large.model, name)
        smoothing = large.training.label_smoothing
        assert recipe.training.label_smoothing == smoothing
        configs = [r.config(1000, 1000) for r in (recipe, large)]
        sizes = [(c.key_size, c.value_size) for c in configs]
        assert [8 * n for n in sizes[0]] == list(sizes[1]), row


def test_rows_in_small_differ_from_each_other_and_share_the_rest() -> None:
    rows = small_rows(100, seed=3)
    models = [(r.model, r.training.label_smoothing) for r in rows.values()]
    assert all(a != b for a, b in itertools.combinations(models, 2))
    shared = {
        (r.data, r.train_pairs, r.vocab, r.training.seed)
        + (r.training.max_steps, r.training.warmup, r.training.rate)
        for r in rows.values()
    }
    assert shared == {("pocket", 2000, 2000, 3, 100, 40, 0.25)}


def test_in_small_takes_any_recipe() -> None:
    made = _in_small(Recipe(about="", data="x").changed(d_k=128), 10)
    assert (made.model.d_k, made.model.d_v) == (16, 8)
    assert (made.training.max_steps, made.training.seed) == (10, 0)
    shortest = _in_small(Recipe(about="", data="x"), 2, seed=5)
    assert (shortest.training.warmup, shortest.training.seed) == (1, 5)


def test_base_in_small_by_hand() -> None:
    base = small_rows(100)["base"]
    assert base.training.seed == 0
    model = base.model
    assert (model.d_model, model.d_ff, model.max_len) == (64, 256, 128)
    assert (model.num_encoder_layers, model.num_decoder_layers) == (3, 3)


# --- comparing rows


def test_a_difference_is_taken_seed_by_seed() -> None:
    values = {
        "a": {0: 1.0, 1: 3.0, 2: 9.0},
        "b": {0: 0.5, 1: 3.5},
        "c": {5: 1.0},
    }
    found = difference(values, "a", "b")
    assert found is not None
    assert (found.mean, found.positive, found.seeds) == (0.0, 1, 2)
    assert found.verdict == "unclear"
    assert difference(values, "a", "c") is None
    assert difference(values, "a", "absent") is None
    assert difference(values, "absent", "a") is None


def test_the_error_is_that_of_all_rows_pooled() -> None:
    """Variances 2 (one degree of freedom) and 1 (two): 4/3 pooled."""
    values = {"a": {0: 1.0, 1: 3.0}, "b": {0: 0.0, 1: 1.0, 2: 2.0}}
    found = difference(values, "a", "b")
    assert found is not None
    assert found.error == pytest.approx(math.sqrt(2 * (4 / 3) / 2))


def test_one_seed_says_nothing_of_chance() -> None:
    assert difference({"a": {0: 1.0}, "b": {0: 2.0}}, "a", "b") is None


@pytest.mark.parametrize(
    ("mean", "verdict"),
    [
        (0.3, "larger"),
        (-0.3, "smaller"),
        (0.21, "larger"),
        (0.1, "unclear"),
        (0.0, "unclear"),
    ],
)
def test_a_verdict_wants_two_errors(mean: float, verdict: str) -> None:
    assert _Difference(mean, 0.1, 2, 3).verdict == verdict


def test_two_rows_with_the_same_values_do_not_differ() -> None:
    same = {0: 1.5, 1: 1.5}
    found = difference({"a": same, "b": same}, "a", "b")
    assert found == _Difference(0.0, 0.0, positive=0, seeds=2)
    assert found.verdict == "unclear"


def test_runs_are_found_in_a_ledger_by_row_and_seed() -> None:
    files = {
        f"table3-small-{seed}": {
            "recipe": "table3",
            "seed": seed,
            "settings": {"steps": 500},
            "metrics": {"runs": {"A-h1": {"bleu": seed}, "base": {}}},
        }
        for seed in (0, 4)
    }
    longer = {
        "recipe": "table3",
        "seed": 0,
        "settings": {"steps": 2000},
        "metrics": {"runs": {"E-learned": {}}},
    }
    others = {"x": {"recipe": "multi30k", "metrics": {}}, "y": longer}
    assert list(small_runs(files | others, steps=2000)) == ["E-learned"]
    found = small_runs(files | others)
    assert list(found) == ["base", "A-h1"]
    assert {s: run["bleu"] for s, run in found["A-h1"].items()} == {
        0: 0,
        4: 4,
    }


def test_the_runs_of_the_ledger_are_of_rows_as_they_are() -> None:
    """Made with the recipes of today: the models have their sizes, for
    one pair of vocabularies.
    """
    files = [f for f in ledger().values() if f["recipe"] == "table3"]
    assert files
    words, all_steps = set(), set()
    for file in files:
        steps = file["settings"]["steps"]
        rows = small_rows(steps, file["seed"])
        all_steps.add(steps)
        assert file["settings"]["base"] == rows["base"].unlike(
            RECIPES["table3-base"]
        )
        for row, run in file["metrics"]["runs"].items():
            layers = count_parameters(rows[row].config(1, 1))
            width = rows[row].model.d_model
            words.add((run["parameters"] - layers) / width)
            assert run["perplexity"] > 1
            assert run["signature"].startswith("nrefs:1|case:mixed")
    assert len(words) == 1
    assert all_steps == {500, 2000}


def test_the_benchmark_takes_number_and_width_of_heads_apart() -> None:
    base = small_rows(100)["base"]
    with benchmark("head_size") as script:
        made = [base.changed(**change) for change in script.ROWS.values()]
    sizes = [
        (one.model.num_heads, one.config(9, 9).key_size) for one in made
    ]
    assert sizes == [(8, 64), (1, 8)]  # base is (8, 8), A-h1 (1, 64)
    assert all(
        one.config(9, 9).value_size == one.config(9, 9).key_size
        for one in made
    )


# --- what the chapter says of the ledger's runs


@pytest.fixture(scope="module")
def nats() -> dict[str, dict[int, float]]:
    return {
        row: {seed: math.log(run["perplexity"]) for seed, run in by.items()}
        for row, by in small_runs(ledger()).items()
    }


@pytest.fixture(scope="module")
def bleu() -> dict[str, dict[int, float]]:
    return {
        row: {seed: run["bleu"] for seed, run in by.items()}
        for row, by in small_runs(ledger()).items()
    }


Values = dict[str, dict[int, float]]


def verdict(values: Values, one: str, other: str) -> str:
    found = difference(values, one, other)
    assert found is not None
    return found.verdict


def test_pairing_the_seeds_buys_nothing(nats: Values) -> None:
    paired = mean(
        variance([nats[a][s] - nats[b][s] for s in nats[a]])
        for a, b in itertools.combinations(nats, 2)
    )
    apart = 2 * mean(variance(row.values()) for row in nats.values())
    assert 0.8 < paired / apart < 1.25


def test_more_heads_are_worse_in_small(nats: Values, bleu: Values) -> None:
    order = ["A-h1", "A-h4", "base", "A-h16", "A-h32"]
    losses = [mean(nats[row].values()) for row in order]
    scores = [mean(bleu[row].values()) for row in order]
    assert losses == sorted(losses)
    assert scores == sorted(scores, reverse=True)


def test_dropout_costs_bleu_in_small(nats: Values, bleu: Values) -> None:
    gained = difference(bleu, "D-drop0.0", "base")
    worse = difference(nats, "D-drop0.0", "base")
    assert gained is not None and worse is not None
    assert (gained.positive, worse.positive) == (5, 4)
    assert gained.mean == pytest.approx(3.5, abs=0.2)
    assert (gained.verdict, worse.verdict) == ("larger", "unclear")
    assert TABLE3["base"].bleu - TABLE3["D-drop0.0"].bleu > 1
    assert verdict(nats, "D-drop0.2", "base") == "larger"


# --- and of those that are four times as long


@pytest.fixture(scope="module")
def longer() -> tuple[Values, Values]:
    """Nats and BLEU after 2,000 steps."""
    runs = small_runs(ledger(), steps=2000)
    assert len(runs["base"]) == 5
    assert all(by.keys() == runs["base"].keys() for by in runs.values())
    nats = {
        row: {seed: math.log(run["perplexity"]) for seed, run in by.items()}
        for row, by in runs.items()
    }
    scores = {
        row: {seed: run["bleu"] for seed, run in by.items()}
        for row, by in runs.items()
    }
    return nats, scores


def gaps(values: Values, row: str) -> list[float]:
    """Of a row from base, seed by seed."""
    return [
        values[row][seed] - value for seed, value in values["base"].items()
    ]


def test_dropout_is_needed_after_two_thousand_steps(
    longer: tuple[Values, Values],
) -> None:
    nats, scores = longer
    assert min(gaps(nats, "D-drop0.0")) > 1
    assert mean(gaps(scores, "D-drop0.0")) == pytest.approx(-40, abs=3)


def test_four_layers_have_nearly_caught_up(
    nats: Values, longer: tuple[Values, Values]
) -> None:
    assert mean(gaps(nats, "C-N8")) > 0.8
    assert 0 < mean(gaps(longer[0], "C-N8")) < 0.05


def test_one_head_is_ahead_by_less_but_ahead(
    nats: Values, longer: tuple[Values, Values]
) -> None:
    assert f"{mean(gaps(nats, 'A-h1')):.1f}" == "-0.2"
    assert -0.05 < mean(gaps(longer[0], "A-h1")) < -0.01
    assert max(gaps(longer[0], "A-h1")) < 0
    assert min(gaps(longer[1], "A-h1")) > 2
    assert mean(gaps(longer[1], "A-h1")) == pytest.approx(4, abs=0.6)


def test_learned_positions_still_lose(
    longer: tuple[Values, Values],
) -> None:
    assert min(gaps(longer[0], "E-learned")) > 0
    assert f"{mean(gaps(longer[0], 'E-learned')):.2f}" == "0.06"


def test_without_smoothing_four_of_five_seeds_are_a_little_worse(
    longer: tuple[Values, Values],
) -> None:
    worse = [gap > 0.005 for gap in gaps(longer[0], "D-eps0.0")]
    fewer = [gap < 0 for gap in gaps(longer[1], "D-eps0.0")]
    assert sum(worse) == sum(fewer) == 4 and len(worse) == 5
    assert mean(gaps(longer[0], "D-eps0.0")) < 0.05


def test_smoothing_costs_perplexity_in_small() -> None:
    """As §5.4 says; of accuracy and BLEU these runs cannot say."""
    small = small_runs(ledger())
    rows = "D-eps0.0", "base", "D-eps0.2"

    def means(name: str) -> list[float]:
        return [mean(run[name] for run in small[r].values()) for r in rows]

    lost = means("perplexity")
    assert lost == sorted(lost) and lost[2] - lost[1] > 0.3
    assert means("bleu")[0] == max(means("bleu"))
    for name in ("bleu", "accuracy"):
        each = means(name)
        spread = min(
            stdev(run[name] for run in small[r].values()) for r in rows
        )
        assert max(abs(each[1] - x) for x in each) < spread


def test_five_seeds_take_back_what_three_say_of_learned_positions(
    nats: Values, bleu: Values
) -> None:
    few = {row: {s: by[s] for s in range(3)} for row, by in nats.items()}
    assert verdict(few, "E-learned", "base") == "larger"
    for values in (nats, bleu):
        assert verdict(values, "E-learned", "base") == "unclear"
    spreads = {row: stdev(by.values()) for row, by in nats.items()}
    assert max(spreads, key=spreads.__getitem__) == "E-learned"
    gaps = sorted(
        bleu["E-learned"][s] - value for s, value in bleu["base"].items()
    )
    assert [gap > 0 for gap in gaps] == [False] * 3 + [True] * 2
    assert gaps[0] < gaps[1] < -3 and gaps[-1] > 6


def test_what_chapter_23_says_of_luck(bleu: Values) -> None:
    base, wide = bleu["base"], bleu["C-ff4096"]
    gains = [round(wide[s], 1) - round(base[s], 1) for s in range(5)]
    assert f"{gains[0]:.1f}" == "1.0" and sum(g > 0 for g in gains) == 3
    assert max(gains) == pytest.approx(2, abs=0.2)
    assert min(gains) == pytest.approx(-5, abs=0.4)
    spans = [max(row.values()) - min(row.values()) for row in (base, wide)]
    assert [round(span) for span in spans] == [6, 10]


DESCRIBED = {  # by the row, what the description says of us in nats
    "A-h1": "one head is better by {}",
    "A-h4": "four heads better by {}",
    "A-h16": "sixteen worse by {}",
    "A-h32": "thirty-two worse by {}",
    "B-dk16": "keys of 2 are worse by {}",
    "B-dk32": "keys of 4 by {}",
    "C-N8": "eight layers worse by {}",
    "C-d256": "width 256 is worse by {}",
    "C-d1024": "width 1024 better by {}",
    "C-ff1024": "d_ff 1024 is worse by {}",
    "big": "big is worse by {}",
    "D-drop0.2": "dropout of 0.2 is worse by {}",
    "D-eps0.2": "smoothing of 0.2 worse by {}",
}
OF_THE_PAPER = {
    "A-h1": "one head is worse by {}",
    "B-dk16": "keys of 16 are worse by {}",
    "B-dk32": "keys of 32 by {}",
    "C-N2": "two layers are worse by {}",
    "C-N4": "four by {}",
    "C-d256": "width 256 by {}",
    "C-ff1024": "d_ff 1024 by {}",
    "D-drop0.0": "no dropout is worse by {}",
    "D-eps0.0": "no smoothing better by {}",
    "D-eps0.2": "smoothing of 0.2 worse by {}",
}


def test_rows_differ_from_base_as_the_figures_are_described(
    nats: Values,
) -> None:
    text = (ROOT / "book" / "23-variations.md").read_text(encoding="utf-8")
    alts = re.findall(r'alt: "Differences from .*?"', text)
    theirs, ours = (
        " ".join(alt.split("Right, ours:")[side] for alt in alts)
        for side in (0, 1)
    )
    for row, words in DESCRIBED.items():
        found = difference(nats, row, "base")
        assert found is not None
        assert words.format(f"{abs(found.mean):.2f}") in ours, row
        better = "better" in words
        assert found.verdict == ("smaller" if better else "larger"), row
    for row, words in OF_THE_PAPER.items():
        paper = TABLE3[row].perplexity / TABLE3["base"].perplexity
        assert words.format(f"{abs(math.log(paper)):.2f}") in theirs, row
    assert "two and four layers are better" in ours
    assert "d_ff 4096 equal" in ours
    for row, wanted in {
        "C-N2": "smaller",
        "C-N4": "smaller",
        "C-ff4096": "unclear",
        "D-eps0.0": "unclear",
    }.items():
        assert verdict(nats, row, "base") == wanted


def test_depth_and_big_are_reversed_and_width_is_not(nats: Values) -> None:
    for worse, better in _COMPARISONS:
        if better in ("C-N8", "big") or worse in ("C-N4", "A-h1"):
            assert verdict(nats, worse, better) == "smaller"
        if worse in ("A-h32", "B-dk16", "B-dk32", "C-d256", "C-ff1024"):
            assert verdict(nats, worse, better) == "larger"


def test_what_chapter_23_says_of_number_and_width() -> None:
    apart = ledger()["head-size"]["metrics"]["runs"]
    small = small_runs(ledger())

    def bleu(row: str) -> list[float]:
        found = [one["bleu"] for one in apart if one["row"] == row]
        return found or [run["bleu"] for run in small[row].values()]

    def parameters(row: str) -> int:
        found = [one["parameters"] for one in apart if one["row"] == row]
        return (found or [small[row][0]["parameters"]])[0]

    one, eight = bleu("1 head of 8"), bleu("base")
    assert max(one) > min(eight) and abs(mean(one) - mean(eight)) < 1.5
    assert 9 < mean(bleu("A-h1")) - mean(eight) < 13
    assert mean(bleu("8 heads of 64")) - mean(bleu("A-h1")) > 11
    assert min(bleu("8 heads of 64")) > max(bleu("A-h1"))
    assert parameters("A-h1") == parameters("base")
    more = parameters("8 heads of 64") / parameters("base")
    assert more == pytest.approx(3.5, abs=0.05)


def test_no_row_was_trained_at_full_size() -> None:
    """Chapter 23 and the map say so: a run that changes it has to be told."""
    full = {f"table3-{row}" for row in TABLE3}
    told = {run["recipe"] for run in ledger().values()}
    assert not told & full
    assert not any(name.startswith("wmt14-") for name in told)
