"""The paper's four tables, typed once more, cell by cell.

Each block below was typed from the paper and not from the book. Whatever a
page or the package says of a table must be in the block: every name, every
setting, every number. A blank cell is "-"; names end at the first bar.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from annotated.complexity import (
    Convolution,
    Recurrent,
    RestrictedSelfAttention,
    SelfAttention,
    SeparableConvolution,
)
from annotated.engine.recipes import RECIPES
from annotated.parsing import TABLE4
from annotated.variations import TABLE2, TABLE3

BOOK = Path(__file__).resolve().parents[1] / "book"


def cells(block: str) -> list[list[str]]:
    """The rows of a block, blank cells as empty strings."""
    rows = [line.split("|") for line in block.strip().splitlines()]
    return [
        ["" if cell.strip() == "-" else cell.strip() for cell in row]
        for row in rows
    ]


def number(cell: str) -> float | None:
    return float(cell) if cell else None


def card(page: str, title: str) -> str:
    """What a page's card of this title holds."""
    text = (BOOK / f"{page}.md").read_text(encoding="utf-8")
    after = text[text.index(f"{{admonition}} {title}\n") :]
    return after[: after.index("\n:::\n")]


# --- Table 1: layer, complexity, operations in a row, longest path --------

PAPERS_TABLE_1 = """
self-attention             | n^2 d   | 1 | 1
recurrent                  | n d^2   | n | n
convolutional              | k n d^2 | 1 | log_k n
self-attention, restricted | r n d   | 1 | n/r
"""


def test_table_1_is_the_papers_cell_by_cell() -> None:
    lines = card("09-why-self-attention", "Paper Table 1").splitlines()
    rows = [line.strip("| ").split("|") for line in lines if "$O(" in line]
    plain = str.maketrans({"$": "", "O": "", "(": "", ")": ""})

    def bare(cell: str) -> str:
        cell = cell.replace(r"\cdot", "").replace(r"\log", "log")
        return " ".join(cell.translate(plain).split())

    assert [[bare(cell) for cell in row] for row in rows] == cells(
        PAPERS_TABLE_1
    )


@pytest.mark.parametrize(
    ("operations", "formula"),
    [
        (lambda n, d, k: SelfAttention(d).operations(n), "n^2 d"),
        (lambda n, d, k: Recurrent(d).operations(n), "n d^2"),
        (lambda n, d, k: Convolution(d, k).operations(n), "k n d^2"),
        (
            lambda n, d, k: RestrictedSelfAttention(d, k).operations(n),
            "k n d",
        ),
    ],
)
def test_a_layers_operations_are_its_cell_of_table_1(
    operations: Callable[[int, int, int], int], formula: str
) -> None:
    """Up to a constant, which is 1 or 2, at three shapes."""
    shapes = [(32, 16, 3), (64, 16, 5), (32, 48, 9)]
    ratios = set()
    for n, d, k in shapes:
        stated = 1
        for factor in formula.split():
            name, _, power = factor.partition("^")
            stated *= {"n": n, "d": d, "k": k}[name] ** int(power or 1)
        ratios.add(operations(n, d, k) / stated)
    assert ratios in ({1.0}, {2.0})


def test_a_separable_convolution_costs_what_section_4_says() -> None:
    for n, d, k in ((32, 16, 3), (64, 48, 5)):
        assert SeparableConvolution(d, k).operations(n) == (
            k * n * d + n * d**2
        )


# --- Table 2: BLEU on newstest2014, and operations of training ------------
# The two last rows have one cost, which stands under both languages.

PAPERS_TABLE_2 = """
ByteNet                    | 23.75 | -     | -      | -
Deep-Att + PosUnk          | -     | 39.2  | -      | 1.0e20
GNMT + RL                  | 24.6  | 39.92 | 2.3e19 | 1.4e20
ConvS2S                    | 25.16 | 40.46 | 9.6e18 | 1.5e20
MoE                        | 26.03 | 40.56 | 2.0e19 | 1.2e20
Deep-Att + PosUnk ensemble | -     | 40.4  | -      | 8.0e20
GNMT + RL ensemble         | 26.30 | 41.16 | 1.8e20 | 1.1e21
ConvS2S ensemble           | 26.36 | 41.29 | 7.7e19 | 1.2e21
base                       | 27.3  | 38.1  | 3.3e18 | 3.3e18
big                        | 28.4  | 41.8  | 2.3e19 | 2.3e19
"""


def test_table_2_is_the_papers_cell_by_cell() -> None:
    ours = [
        (name, row.german, row.french, row.german_cost, row.french_cost)
        for name, row in TABLE2.items()
    ]
    assert ours == [
        (name, *map(number, rest)) for name, *rest in cells(PAPERS_TABLE_2)
    ]


# --- Table 3: row, what it changes, perplexity, BLEU, parameters ----------
# base: N 6, d_model 512, d_ff 2048, h 8, d_k 64, d_v 64, dropout 0.1,
# smoothing 0.1, 100,000 steps, sinusoids

PAPERS_TABLE_3 = """
base      | -                                              | 4.92 | 25.8 | 65
A-h1      | h 1, d_k 512, d_v 512                          | 5.29 | 24.9 | -
A-h4      | h 4, d_k 128, d_v 128                          | 5.00 | 25.5 | -
A-h16     | h 16, d_k 32, d_v 32                           | 4.91 | 25.8 | -
A-h32     | h 32, d_k 16, d_v 16                           | 5.01 | 25.4 | -
B-dk16    | d_k 16                                         | 5.16 | 25.1 | 58
B-dk32    | d_k 32                                         | 5.01 | 25.4 | 60
C-N2      | N 2                                            | 6.11 | 23.7 | 36
C-N4      | N 4                                            | 5.19 | 25.3 | 50
C-N8      | N 8                                            | 4.88 | 25.5 | 80
C-d256    | d_model 256, d_k 32, d_v 32                    | 5.75 | 24.5 | 28
C-d1024   | d_model 1024, d_k 128, d_v 128                 | 4.66 | 26.0 | 168
C-ff1024  | d_ff 1024                                      | 5.12 | 25.4 | 53
C-ff4096  | d_ff 4096                                      | 4.75 | 26.2 | 90
D-drop0.0 | dropout 0.0                                    | 5.77 | 24.6 | -
D-drop0.2 | dropout 0.2                                    | 4.95 | 25.5 | -
D-eps0.0  | smoothing 0.0                                  | 4.67 | 25.3 | -
D-eps0.2  | smoothing 0.2                                  | 5.47 | 25.7 | -
E-learned | learned                                        | 4.92 | 25.7 | -
big       | d_model 1024, d_ff 4096, h 16, dropout 0.3, steps 300000 | 4.33 | 26.4 | 213
"""
BASE_OF_TABLE_3 = {
    "N": 6,
    "d_model": 512,
    "d_ff": 2048,
    "h": 8,
    "d_k": 64,
    "d_v": 64,
    "dropout": 0.1,
    "smoothing": 0.1,
    "steps": 100_000,
    "positions": "sinusoidal",
}


def settings_of(row: str) -> dict[str, float | str]:
    """A recipe's, by the names of the table's columns."""
    recipe = RECIPES[f"table3-{row}"]
    config = recipe.config()
    assert config.num_encoder_layers == config.num_decoder_layers
    return {
        "N": config.num_encoder_layers,
        "d_model": config.d_model,
        "d_ff": config.d_ff,
        "h": config.num_heads,
        "d_k": config.key_size,
        "d_v": config.value_size,
        "dropout": config.dropout,
        "smoothing": recipe.training.label_smoothing,
        "steps": recipe.training.max_steps,
        "positions": config.positions,
    }


def test_table_3_is_the_papers_cell_by_cell() -> None:
    ours = [
        (name, row.perplexity, row.bleu, row.millions)
        for name, row in TABLE3.items()
    ]
    assert ours == [
        (name, *map(number, rest))
        for name, _, *rest in cells(PAPERS_TABLE_3)
    ]


@pytest.mark.parametrize("line", cells(PAPERS_TABLE_3), ids=lambda x: x[0])
def test_a_recipe_has_the_settings_of_its_row(line: list[str]) -> None:
    row, changes, *_ = line
    wanted: dict[str, float | str] = dict(BASE_OF_TABLE_3)
    for change in filter(None, changes.split(", ")):
        name, _, value = change.partition(" ")
        if name == "learned":
            wanted["positions"] = "learned"
        else:
            wanted[name] = float(value)
    assert settings_of(row) == wanted


# --- Table 4: parser, training, F1 on section 23 --------------------------

PAPERS_TABLE_4 = """
Vinyals & Kaiser        | WSJ only        | 88.3
Petrov (BerkeleyParser) | WSJ only        | 90.4
Zhu                     | WSJ only        | 90.4
Dyer                    | WSJ only        | 91.7
Transformer             | WSJ only        | 91.3
Zhu                     | semi-supervised | 91.3
Huang & Harper          | semi-supervised | 91.3
McClosky                | semi-supervised | 92.1
Vinyals & Kaiser        | semi-supervised | 92.1
Transformer             | semi-supervised | 92.7
Luong                   | multi-task      | 93.0
Dyer                    | generative      | 93.3
"""


def test_table_4_is_the_papers_cell_by_cell() -> None:
    assert [list(map(str, row)) for row in TABLE4] == cells(PAPERS_TABLE_4)


def test_the_card_of_table_4_has_its_numbers_in_order() -> None:
    said = re.findall(
        r"(?<!\d)\d\d\.\d(?!\d)", card("24-parsing", "Paper Table 4")
    )
    assert said == [row[-1] for row in cells(PAPERS_TABLE_4)]
