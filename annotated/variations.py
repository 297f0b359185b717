"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, variance
from typing import Any

from annotated.engine.recipes import RECIPES, Recipe

__all__ = [
    "small_rows", "small_runs", "difference", "Variation", "TABLE3",
    "TABLE2",
]  # fmt: skip


# 23-variations.md: The same table, small
_SMALL = {
    "data": "pocket",
    "source": "de",
    "target": "en",
    "train_pairs": 2000,
    "tokenizer": "word",
    "vocab": 2000,
    "tie": "decoder",
    "batch_tokens": 500,
    "rate": 0.25,
    "precision": "float32",
}


def _in_small(recipe: Recipe, steps: int, seed: int = 0) -> Recipe:
    """A row of Table 3 with an eighth of the width and half the depth, to
    train on Pocket German (chapter 19) for the given number of steps.

    Whatever a row changes, it changes here by the same factor.
    """
    model = recipe.model
    sizes = {
        "d_model": model.d_model // 8,
        "d_ff": model.d_ff // 8,
        "d_k": model.key_size // 8,
        "d_v": model.value_size // 8,
        "num_encoder_layers": model.num_encoder_layers // 2,
        "num_decoder_layers": model.num_decoder_layers // 2,
        "max_len": model.max_len // 8,
    }
    schedule = {"max_steps": steps, "warmup": max(1, 2 * steps // 5)}
    return recipe.changed(**_SMALL, **sizes, **schedule, seed=seed)


def small_rows(steps: int, seed: int = 0) -> dict[str, Recipe]:
    """All rows of Table 3, scaled down by _in_small, by name."""
    return {
        row: _in_small(RECIPES[f"table3-{row}"], steps, seed)
        for row in TABLE3
    }


def small_runs(
    ledger: Mapping[str, Mapping[str, Any]], steps: int = 500
) -> dict[str, dict[int, dict[str, Any]]]:
    """The sweep's runs of that many steps in a ledger: row -> seed -> the
    run's metrics.
    """
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    for file in [f for f in ledger.values() if f["recipe"] == "table3"]:
        if file["settings"]["steps"] == steps:
            for row, run in file["metrics"]["runs"].items():
                runs.setdefault(row, {})[file["seed"]] = run
    return {row: runs[row] for row in TABLE3 if row in runs}


# 23-variations.md: How much is luck?
@dataclass(frozen=True)
class _Difference:
    """How much larger a value is in one row than in another."""

    mean: float  # over the seeds that both rows have
    error: float  # standard error of the mean
    positive: int  # number of seeds in which it is larger
    seeds: int

    @property
    def verdict(self) -> str:
        """larger or smaller; unclear if within two standard errors of 0."""
        if abs(self.mean) <= 2 * self.error:
            return "unclear"
        return "larger" if self.mean > 0 else "smaller"


def difference(
    values: Mapping[str, Mapping[int, float]], one: str, other: str
) -> _Difference | None:
    """Row one minus row other, by seed; values are row -> seed -> value.

    The error comes from the variance pooled over all rows. None if the
    two rows have no seed in common, or no row has two seeds.
    """
    both = values.get(one, {}).keys() & values.get(other, {}).keys()
    each = [values[one][seed] - values[other][seed] for seed in both]
    spreads = [
        (len(row) - 1, variance(row.values()))
        for row in values.values()
        if len(row) > 1
    ]
    if not each or not spreads:
        return None
    freedom = sum(n for n, _ in spreads)
    pooled = sum(n * s for n, s in spreads) / freedom
    error = (2 * pooled / len(each)) ** 0.5
    larger = sum(d > 0 for d in each)
    return _Difference(mean(each), error, larger, len(each))


# 23-variations.md: What does one run prove?
_COMPARISONS = (  # more than 0.01 nats apart in Table 3: (worse, better)
    ("A-h1", "base"),
    ("A-h4", "base"),
    ("A-h32", "base"),
    ("B-dk16", "base"),
    ("B-dk32", "base"),
    ("C-N2", "C-N4"),
    ("C-N4", "base"),
    ("C-d256", "base"),
    ("base", "C-d1024"),
    ("C-ff1024", "base"),
    ("base", "C-ff4096"),
    ("base", "big"),
    ("D-drop0.0", "base"),
    ("base", "D-eps0.0"),
    ("D-eps0.2", "base"),
)
_ABOUT_EQUAL = (  # less than 0.01 nats apart in Table 3
    ("A-h16", "base"),
    ("C-N8", "base"),
    ("D-drop0.2", "base"),
    ("E-learned", "base"),
)


# 23-variations.md: Is each row what it says?
@dataclass(frozen=True)
class Variation:
    """A row of Table 3: newstest2013, without checkpoint averaging."""

    perplexity: float  # per token, not per word
    bleu: float
    millions: int | None = None  # of parameters; None: same as base


TABLE3 = {
    "base": Variation(4.92, 25.8, 65),
    "A-h1": Variation(5.29, 24.9),
    "A-h4": Variation(5.00, 25.5),
    "A-h16": Variation(4.91, 25.8),
    "A-h32": Variation(5.01, 25.4),
    "B-dk16": Variation(5.16, 25.1, 58),
    "B-dk32": Variation(5.01, 25.4, 60),
    "C-N2": Variation(6.11, 23.7, 36),
    "C-N4": Variation(5.19, 25.3, 50),
    "C-N8": Variation(4.88, 25.5, 80),
    "C-d256": Variation(5.75, 24.5, 28),
    "C-d1024": Variation(4.66, 26.0, 168),
    "C-ff1024": Variation(5.12, 25.4, 53),
    "C-ff4096": Variation(4.75, 26.2, 90),
    "D-drop0.0": Variation(5.77, 24.6),
    "D-drop0.2": Variation(4.95, 25.5),
    "D-eps0.0": Variation(4.67, 25.3),
    "D-eps0.2": Variation(5.47, 25.7),
    "E-learned": Variation(4.92, 25.7),
    "big": Variation(4.33, 26.4, 213),
}


# 23-variations.md: Table 2: what was bought, and for how much
@dataclass(frozen=True)
class _System:
    """A row of Table 2; None where the paper gives no number."""

    german: float | None = None  # BLEU on newstest2014, from English
    french: float | None = None
    german_cost: float | None = None  # training cost in operations
    french_cost: float | None = None


TABLE2 = {
    "ByteNet": _System(23.75),
    "Deep-Att + PosUnk": _System(None, 39.2, None, 1.0e20),
    "GNMT + RL": _System(24.6, 39.92, 2.3e19, 1.4e20),
    "ConvS2S": _System(25.16, 40.46, 9.6e18, 1.5e20),
    "MoE": _System(26.03, 40.56, 2.0e19, 1.2e20),
    "Deep-Att + PosUnk ensemble": _System(None, 40.4, None, 8.0e20),
    "GNMT + RL ensemble": _System(26.30, 41.16, 1.8e20, 1.1e21),
    "ConvS2S ensemble": _System(26.36, 41.29, 7.7e19, 1.2e21),
    "base": _System(27.3, 38.1, 3.3e18, 3.3e18),
    "big": _System(28.4, 41.8, 2.3e19, 2.3e19),
}
