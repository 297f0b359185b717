"""Formulas as MathML: what stands where, how far apart, in which font."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from docutils.utils.math import MathError

from press.chapters import PressError
from press.cut import characters
from press.formulas import MATH, face, mathml, plain, signs
from press.site import proof

from .conftest import Book

ROOT = Path(__file__).resolve().parents[2]


def row(tex: str) -> list[str]:
    """A formula as a line for each element: what it is, its text, and the
    space around it.
    """
    lines = []
    for each in list(ET.fromstring(mathml(tex)).iter())[1:]:
        room = each.get("width") or each.get("lspace") or ""
        text = each.text or ""
        lines.append(f"{each.tag.removeprefix(MATH)} {text} {room}".strip())
    return lines


def spaces(tex: str) -> list[str]:
    return [x for x in row(tex) if x.startswith("mspace")]


def test_an_index_belongs_to_the_letter_with_its_hat() -> None:
    names = [line.split()[0] for line in row(r"\hat y_i")]
    assert names == ["msub", "mover", "mrow", "mi", "mspace", "mo", "mi"]


def test_what_a_brace_is_for_stands_below_it() -> None:
    names = [line.split()[0] for line in row(r"\underbrace{a}_{b}")]
    assert names[:2] == ["munder", "munder"]


@pytest.mark.parametrize(
    ("tex", "count"),
    [
        (r"\log n", 1),
        (r"\log_2 n", 1),
        (r"2\log n", 2),
        (r"\log(n)", 0),
        (r"P\operatorname{encode}(X)", 1),
        (r"\max(0, x)", 0),
        (r"x\log n", 2),
        (r"(1)\ln 2", 2),
    ],
)
def test_a_function_is_apart_from_letters(tex: str, count: int) -> None:
    assert len(spaces(tex)) == count
    assert spaces(tex) == ["mspace  0.1667em"] * count


@pytest.mark.parametrize(
    ("tex", "binary"),
    [
        ("a - 1", True),
        ("(a) - 1", True),
        ("-1", False),
        ("(-1, 2)", False),
        ("(1, -1)", False),
        (r"4 \cdot -1", False),
        (r"x \approx -1", False),
        ("e^{-x}", False),
    ],
)
def test_a_minus_before_a_number_is_close_to_it(
    tex: str, binary: bool
) -> None:
    tree = ET.fromstring(mathml(tex))
    [minus] = [x for x in tree.iter(f"{MATH}mo") if x.text == "−"]
    assert (minus.get("rspace") is None) == binary


def test_commas_part_numbers_unless_they_are_in_braces() -> None:
    assert row("(0,1)") == ["mo (", "mn 0", "mo ,", "mn 1", "mo )"]
    assert row("10{,}000") == ["mn 10,000"]


def test_fences_grow_only_between_left_and_right() -> None:
    def grow(tex: str) -> list[bool]:
        marks = ET.fromstring(mathml(tex)).iter(f"{MATH}mo")
        return [
            x.get("stretchy") != "false" for x in marks if x.text == "‖"
        ]

    assert grow(r"\lVert x\rVert^2") == [False, False]
    assert grow(r"\left\lVert x\right\rVert") == [True, True]


def test_a_prime_and_dots_and_a_room_of_a_line() -> None:
    assert "mo ′ 0" in row("x'")
    assert "mo … 0.1667em" in row(r"y_1 \dots y_n")
    assert "mo … 0" in row(r"y_1, \dots, y_n")
    lines = r"\begin{aligned}a&=b\\[0.6ex]c&=d\end{aligned}"
    assert not any("0.6" in line for line in row(lines))


def test_a_formula_carries_its_tex() -> None:
    text = plain(mathml(r"a < \sqrt{b}", source=True))
    assert text.startswith("<math><semantics><mrow>")
    assert text.endswith(
        '<annotation encoding="application/x-tex">a &lt; \\sqrt{b}'
        "</annotation></semantics></math>"
    )


@pytest.mark.parametrize(
    "tex", [r"\unknown x", r"\frac{1}", r"\begin{array}{c}x\end{array}"]
)
def test_what_cannot_be_set_is_refused(tex: str) -> None:
    with pytest.raises(MathError):
        mathml(tex)


def test_the_font_has_what_a_formula_shows() -> None:
    shown = signs(
        mathml(r"h \text{ of } \mathbb{R}, \operatorname{a} \phi")
    )
    assert shown >= {"ℎ", "o", "ℝ", "a", "𝜙"}
    assert "h" not in shown
    assert {ord(sign) for sign in shown} <= characters()


def test_a_deck_brings_the_font(tmp_path: Path) -> None:
    assert face(tmp_path) == ""
    assert "base64," in face(ROOT)


def test_the_build_tells_a_formula_that_it_cannot_set(built: Book) -> None:
    before = built.read("book/03-two.md")
    built.write("book/03-two.md", before + "\nSo $\\oops{x}$.\n")
    try:
        with pytest.raises(PressError, match=r"oops"):
            proof(built.root)
    finally:
        built.write("book/03-two.md", before)


def test_the_build_tells_a_sign_that_the_font_lacks(built: Book) -> None:
    before = built.read("book/03-two.md")
    built.write("book/03-two.md", before + "\nSo $a \\bowtie b$.\n")
    try:
        with pytest.raises(PressError, match="has no ⋈"):
            proof(built.root)
    finally:
        built.write("book/03-two.md", before)
