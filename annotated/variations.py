"""annotated.variations.

Exported from the book; edit the chapter, then run `make export`.

- 23-variations.md: Results and variations
"""

from __future__ import annotations

from dataclasses import dataclass

from annotated.engine.recipes import RECIPES, Recipe

__all__ = ["Variation", "TABLE3", "in_small", "small_rows"]


# 23-variations.md: The tables as data
@dataclass(frozen=True)
class Variation:
    """A row of Table 3: on newstest2013, with the last weights."""

    perplexity: float  # per token of its vocabulary
    bleu: float
    millions: int | None = None  # of parameters; None: as base


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


# 23-variations.md: The same table, small
def in_small(recipe: Recipe, steps: int, seed: int = 0) -> Recipe:
    """A row of Table 3, an eighth as wide and half as deep, for so many
    steps of pocket German (chapter 19).

    What a row changes, it changes here by the same factor.
    """
    model = recipe.model
    sizes = {
        "d_model": model.d_model // 8,
        "d_ff": model.d_ff // 8,
        "d_k": (model.d_k or model.d_model // model.num_heads) // 8,
        "d_v": (model.d_v or model.d_model // model.num_heads) // 8,
        "num_encoder_layers": model.num_encoder_layers // 2,
        "num_decoder_layers": model.num_decoder_layers // 2,
        "max_len": model.max_len // 8,
    }
    return recipe.changed(
        **sizes,
        data="pocket",
        source="de",
        target="en",
        train_pairs=2000,
        tokenizer="word",
        vocab=2000,
        tie="decoder",
        batch_tokens=500,
        max_steps=steps,
        warmup=max(1, 2 * steps // 5),
        rate=0.25,
        precision="float32",
        seed=seed,
    )


def small_rows(steps: int, seed: int = 0) -> dict[str, Recipe]:
    """Every row of Table 3, in_small, by name."""
    return {
        row: in_small(RECIPES[f"table3-{row}"], steps, seed)
        for row in TABLE3
    }
