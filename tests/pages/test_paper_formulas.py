"""The paper's Table 1, its formulas and the boxes of its figures, typed once
more, from the paper and not from the book.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from annotated.complexity import (
    Convolution,
    Recurrent,
    RestrictedSelfAttention,
    SelfAttention,
    SeparableConvolution,
)
from tests.pages.cards import (
    BOOK,
    card,
    cells,
    described,
    numbers,
)

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


def test_table_1_as_measured_repeats_its_entries() -> None:
    """Chapter 09's own table, which has both kinds of convolution."""
    text = (BOOK / "09-why-self-attention.md").read_text(encoding="utf-8")
    found = re.findall(
        r'^    "([\w-]+)": \("(\S+)", "(\S+)", "([\S ]+?)",\s', text, re.M
    )
    papers = cells(PAPERS_TABLE_1)
    papers.insert(2, [papers[2][0], "k n d^2", "1", "n/k"])  # §4, p5
    papers[3][0], papers[4][0] = "dilated", "restricted"
    plain = str.maketrans({"·": " ", "²": "^2", "ₖ": "_k"})
    assert [
        [cell.translate(plain) for cell in row] for row in found
    ] == papers


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


# --- the formulas, as TeX without its spacing


@pytest.mark.parametrize(
    ("page", "title", "formula"),
    [
        (
            "02-attention",
            "Paper §3.2.1, paragraph 2 and equation 1",
            r"Attention(Q,K,V)=softmax(\frac{QK^\top}{\sqrt{d_k}})V",
        ),
        (
            "04-multi-head",
            "Paper §3.2.2, the formula, and paragraph 3",
            r"MultiHead(Q,K,V)=Concat(head_1,\dots,head_h)W^O,"
            r"head_i=Attention(QW_i^Q,KW_i^K,VW_i^V)",
        ),
        (
            "05-layers",
            "Paper §3.3, paragraph 1, and equation 2",
            r"FFN(x)=\max(0,xW_1+b_1)W_2+b_2",
        ),
        (
            "07-positions",
            "Paper §3.5, the formula and paragraph 2",
            r"PE_{(pos,2i)}=\sin(pos/10000^{2i/d_model})"
            r"PE_{(pos,2i+1)}=\cos(pos/10000^{2i/d_model})",
        ),
        (
            "12-optimiser",
            "Paper §5.3, equation 3",
            r"lrate=d_model^{-0.5}\cdot\min(step^{-0.5},step\cdot"
            r"warmup^{-1.5})",
        ),
    ],
)
def test_a_formula_is_printed_as_in_the_paper(
    page: str, title: str, formula: str
) -> None:
    said = card(page, title).split("$$")[1]
    said = re.sub(r"\\(operatorname|text)\{(\w+)\}", r"\2", said)
    said = re.sub(r"\\\\(\[.*?\])?", "", said)  # a new line
    spacing = r"\\(begin|end)\{aligned\}|\\q?quad|\\[,;!]|\\left|\\right"
    said = re.sub(rf"{spacing}|[&\s]+", "", said)
    assert said.rstrip(".,") == formula


def test_the_card_of_3_2_2_has_the_shapes_of_the_projections() -> None:
    title = "Paper §3.2.2, the formula, and paragraph 3"
    said = card("04-multi-head", title).split("$$")[2]
    said = re.sub(r"\\(text|mathbb)\{(\w+)\}", r"\2", said)
    shapes = re.findall(r"\$(\w+\^\w)(?:\\inR\^\{([^$]+)\})?\$", said)
    plain = [re.sub(r"[{}]", "", shape) for _, shape in shapes]
    assert [name for name, _ in shapes] == [
        "W_i^Q",
        "W_i^K",
        "W_i^V",
        "W^O",
    ]
    wanted = [
        r"d_model\times d_k",
        r"d_model\times d_v",
        r"hd_v\times d_model",
    ]
    assert plain == ["", *wanted]


@pytest.mark.parametrize(
    ("page", "title", "wanted"),
    [
        ("04-multi-head", "Paper §3.2.2, paragraph 4", "8 64"),
        ("05-layers", "Paper §3.3, paragraph 2", "1 512 2048"),
    ],
)
def test_a_card_of_section_3_has_the_papers_sizes(
    page: str, title: str, wanted: str
) -> None:
    assert numbers(page, title) == wanted.split()


def test_the_waves_of_3_5_are_as_long_as_the_paper_says() -> None:
    said = card("07-positions", "Paper §3.5, the formula and paragraph 2")
    assert r"progression from $2\pi$ to $10000\cdot2\pi$." in said


# --- Figures 1 and 2: what stands on what


def in_order(text: str, *words: str) -> None:
    """Each of them once the one before is over."""
    for word in words:
        _, found, text = text.partition(word)
        assert found, word


def test_the_figure_of_chapter_08_has_the_boxes_of_figure_1() -> None:
    """From below, in its cell and in its description."""
    text = (BOOK / "08-transformer.md").read_text(encoding="utf-8")
    boxes = re.findall(
        r'^draw\.branch\(([st]), ([\d.]+), .*?"([\w-]+)"', text, re.M
    )
    boxes.sort(key=lambda box: float(box[1]))
    stacks = {"s": ["self-attention", "feed-forward"]}
    stacks["t"] = ["self-attention", "cross-attention", "feed-forward"]
    for side, names in stacks.items():
        assert [box[2] for box in boxes if box[0] == side] == names
    (meets,) = (box[1] for box in boxes if box[2] == "cross-attention")
    assert f"draw.arrow((s, {meets}), (t" in text  # from the memory
    alt = described("08-transformer", "two vertical residual streams")
    left, right = alt.split("Right, the decoder")
    in_order(left, "encoder", "position is added", "N layers")
    in_order(left, "N layers", *stacks["s"], "LayerNorm", "the memory")
    in_order(right, "self-attention that may not see", "cross-attention")
    in_order(right, "keys and values from the memory", "feed-forward")
    in_order(right, "feed-forward", "row of E", "softmax")


def test_the_cards_of_figure_2_name_its_boxes_in_order() -> None:
    in_order(
        card("02-attention", "Paper Figure 2, left"),
        *("matrix product of Q and K, scale, ", "an optional mask, "),
        *("softmax, ", "matrix product with V."),
    )
    said = card("03-masks", 'Paper Figure 2, left, the box "Mask (opt.)"')
    assert "Between the scaling and the softmax" in said
    in_order(
        card("04-multi-head", "Paper Figure 2, right"),
        *("V, K and Q each enter $h$ linear layers", "$h$ parallel copies"),
        *("scaled dot-product attention", "concatenated"),
        "one more linear layer.",
    )
