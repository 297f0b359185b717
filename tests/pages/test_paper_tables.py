"""The paper's tables 2 to 4, typed once more, cell by cell.

Each block below was typed from the paper and not from the book. Whatever a
page or the package says of a table must be in the block: every name, every
setting, every number. A blank cell is "-"; names end at the first bar.
"""

from __future__ import annotations

import re

import pytest

from annotated.engine.recipes import RECIPES
from annotated.parsing import TABLE4
from annotated.variations import TABLE2, TABLE3
from tests.pages.cards import (
    BOOK,
    card,
    cells,
    decimals,
    described,
    literal,
    number,
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


def german_costs() -> dict[str, tuple[float, float]]:
    """BLEU and cost to German, of the rows that have both."""
    return {
        name: (float(bleu), float(cost))
        for name, bleu, _, cost, _ in cells(PAPERS_TABLE_2)
        if bleu and cost
    }


def test_chapter_22_charges_what_table_2_does() -> None:
    """The cell of its figure, its description, and the card."""
    names = {
        "base": "Transformer, base",
        "big": "Transformer, big",
        "GNMT + RL ensemble": "GNMT + RL, ensemble",
        "ConvS2S ensemble": "ConvS2S, ensemble",
    }
    wanted = {names.get(n, n): row for n, row in german_costs().items()}
    assert literal("22-costs", "table2") == wanted

    small = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
    said = card("22-costs", "Paper Table 2, the columns of the cost")
    charged = re.findall(r"(\d\.\d) · 10([⁰¹²³⁴⁵⁶⁷⁸⁹]+)", said)
    order = ("GNMT + RL", "ConvS2S", "MoE", "GNMT + RL ensemble")
    order += ("ConvS2S ensemble", "base")
    assert [float(f"{a}e{b.translate(small)}") for a, b in charged] == [
        german_costs()[name][1] for name in order
    ]
    plain = re.sub(r" \d\.\d · 10[⁰¹²³⁴⁵⁶⁷⁸⁹]+", "", said)
    assert (
        "English–German: GNMT + RL, ConvS2S, MoE, and the ensembles of the "
        "first two and. The base Transformer." in plain
    )
    alt = described("22-costs", "from Table 2")
    costs = german_costs()
    assert (
        f"at {costs['base'][0]} with {costs['base'][1] / 1e18:.1f} times 10"
        f" to the 18" in alt
    )
    assert (
        f"at {costs['big'][0]} with {costs['big'][1] / 1e19:.1f} times 10"
        f" to the 19" in alt
    )


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


def paper(row: str) -> list[str]:
    """Perplexity, BLEU and millions of a row, as typed above."""
    return next(
        rest for name, _, *rest in cells(PAPERS_TABLE_3) if name == row
    )


def test_chapter_08_counts_what_table_3_counts() -> None:
    counted = {
        name: int(millions)
        for name, *_, millions in cells(PAPERS_TABLE_3)
        if millions
    }
    assert literal("08-transformer", "PAPER") == counted
    said = card(
        "08-transformer", "Paper Table 3: the shapes and their sizes"
    )
    stated = said[said.index("base 65") : said.index("[Table 3")]
    assert list(map(int, re.findall(r"\d+", stated))) == [*counted.values()]


def test_chapter_13_has_rows_d_of_table_3() -> None:
    said = card("13-regularisation", "Paper Table 3, rows D")
    rows = [line.strip("| ").split("|") for line in said.splitlines()]
    there = {row[0].strip(): [c.strip() for c in row[1:]] for row in rows}
    for row, name in {
        "base": r"base: $P_\text{drop}=0.1$, $\epsilon_{ls}=0.1$",
        "D-drop0.0": r"$P_\text{drop}=0.0$",
        "D-drop0.2": r"$P_\text{drop}=0.2$",
        "D-eps0.0": r"$\epsilon_{ls}=0.0$",
        "D-eps0.2": r"$\epsilon_{ls}=0.2$",
    }.items():
        assert there[name] == paper(row)[:2]
    text = (BOOK / "13-regularisation.md").read_text(encoding="utf-8")
    none, tenth, fifth = (
        paper(row)[0] for row in ("D-eps0.0", "base", "D-eps0.2")
    )
    ratios = f"0.0: 1.0, 0.1: {tenth} / {none}, 0.2: {fifth} / {none}\n"
    assert ratios in text


def test_chapter_04_has_rows_a_of_table_3() -> None:
    """One head, eight, and too many."""
    text = (BOOK / "04-multi-head.md").read_text(encoding="utf-8")
    one, eight, many = (paper(row)[1] for row in ("A-h1", "base", "A-h32"))
    worse = f"{float(eight) - float(one):.1f}"
    assert (
        f"is {worse} BLEU worse than eight ({one} against {eight})" in text
    )
    assert f"with 32 heads of $d_k=16$ it is {many}." in text


def test_chapter_07_has_row_e_of_table_3() -> None:
    said = card("07-positions", "Paper §3.5, paragraph 3")
    row, base = paper("E-learned"), paper("base")
    assert f"BLEU {row[1]} and {base[1]}, perplexity {row[0]}" in said
    assert row[0] == base[0]


def test_the_card_of_table_3_has_the_settings_of_all_rows() -> None:
    said = card("23-variations", "Paper Table 3")
    said = said.replace("$", "").replace(r"\text{model}", "model")
    said = said.replace(r"\text{ff}", "ff").replace("_", "")
    changed: dict[str, dict[str, str]] = {}
    for row, changes, *_ in cells(PAPERS_TABLE_3):
        words = [change.split() for change in changes.split(", ") if change]
        changed[row] = {word[0]: word[-1] for word in words}

    def column(group: str, name: str) -> list[str]:
        rows = [c for row, c in changed.items() if row.startswith(group)]
        return [c[name] for c in rows if name in c]

    heads, keys = column("A-", "h"), column("A-", "d_k")
    assert keys == column("A-", "d_v")
    assert f"(A) {', '.join(heads)} heads with keys and values of " in said
    assert f" of {', '.join(keys)}. (B)" in said
    assert f"(B) keys of {' and '.join(column('B-', 'd_k'))}. (C)" in said
    *few, most = column("C-", "N")
    assert f"(C) {', '.join(few)}, {most} layers; " in said
    widths, sizes = column("C-", "d_model"), column("C-", "d_k")
    assert sizes == column("C-", "d_v")
    assert (
        f"width {widths[0]} with keys and values of {sizes[0]}, and "
        f"{widths[1]} with {sizes[1]}; " in said
    )
    assert f"dff {' and '.join(column('C-', 'd_ff'))}. (D)" in said
    for name, word in (("dropout", "dropout"), ("smoothing", "smoothing")):
        values = [float(value) for value in column("D-", name)]
        assert f"{word} {values[0]:g} and {values[1]:g}" in said
    assert "(E) learned positions. Big: " in said
    big, base = changed["big"], BASE_OF_TABLE_3
    assert (
        f"Big: width {big['d_model']}, dff {big['d_ff']}, {big['h']} heads,"
        f" dropout {big['dropout']}, {int(big['steps']):,} steps." in said
    )
    assert (
        f"Base: {base['N']} layers, dmodel={base['d_model']}, "
        f"dff={base['d_ff']}, {base['h']} heads of {base['d_k']}, dropout "
        f"{base['dropout']}, label smoothing {base['smoothing']}, "
        f"{base['steps']:,} steps." in said
    )


def test_the_rows_of_table_3_are_called_what_they_change() -> None:
    names = literal("23-variations", "NAMES")
    words = {
        "h": "{} heads",
        "N": "{} layers",
        "d_model": "width {}",
        "d_ff": "d_ff {}",
        "dropout": "dropout {}",
        "smoothing": "smoothing {}",
        "learned": "learned positions",
    }
    special = {"1 heads": "1 head", "dropout 0.0": "no dropout"}
    special["smoothing 0.0"] = "no smoothing"
    wanted = {"base": "base", "big": "big"}
    for row, changes, *_ in cells(PAPERS_TABLE_3):
        name, _, value = changes.partition(", ")[0].partition(" ")
        form = "keys of {}" if row.startswith("B-") else words.get(name, "")
        made = form.format(value)
        wanted.setdefault(row, special.get(made, made))
    assert names == wanted


def test_the_figure_of_table_3_is_described_by_its_numbers() -> None:
    alt = described("23-variations", "nineteen variations")
    above, below = alt.split("Below, BLEU:")
    base = list(map(float, paper("base")[:2]))

    def change(row: str, column: int) -> float:
        return float(paper(row)[column]) - base[column]

    order = ("C-N2", "D-drop0.0", "C-d256", "D-eps0.2", "D-eps0.0", "A-h1")
    assert decimals(above.replace("of 0.2", "")) == [
        f"{abs(change(row, 0)):.2f}" for row in order
    ]
    order = ("C-N2", "C-d256", "D-drop0.0", "A-h1", "big", "C-ff4096")
    assert decimals(below) == [
        f"{abs(change(row, 1)):.1f}" for row in (*order, "D-eps0.0")
    ]


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


@pytest.mark.parametrize("where", ["card", "figure"])
def test_chapter_24_says_table_4_in_order(where: str) -> None:
    if where == "card":
        said = card("24-parsing", "Paper Table 4")
        said = said.split("Wall Street")[1].split("[Table 4")[0]
        names = re.findall(
            r"(Vinyals & Kaiser|Petrov|Zhu|Dyer|Transformer|Huang & Harper"
            r"|McClosky|Luong)\b",
            said,
        )
        assert names == [
            name.partition(" (")[0] for name, *_ in cells(PAPERS_TABLE_4)
        ]
        wanted = [row[-1] for row in cells(PAPERS_TABLE_4)]
        places = ("Trained on it alone: ", "Semi-supervised: ")
        places += ("Multi-task, Luong", "Generative, Dyer")
        assert "Petrov et al. (the BerkeleyParser) 90.4" in said
        assert "Transformer (4 layers) 91.3" in said  # §6.3, paragraph 2
    else:
        said = described("24-parsing", "each row of Table 4")
        wanted = []
        for kind in ("WSJ only", "semi-supervised"):
            rows = [r for r in cells(PAPERS_TABLE_4) if r[1] == kind]
            others = [r[2] for r in rows if r[0] != "Transformer"]
            own = [r[2] for r in rows if r[0] == "Transformer"]
            wanted += sorted(others) + own
        wanted += [r[2] for r in cells(PAPERS_TABLE_4)[-2:]]
        places = ("alone", "Semi-supervised", "Multi-task", "generative")
    assert decimals(said) == wanted
    order = [said.index(place) for place in places]
    assert order == sorted(order)
