"""One file names the colours; they can be read, and told apart."""

from __future__ import annotations

import io
import re
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from annotated.book.colors import colors
from annotated.book.plots import use_book_style
from annotated.book.scripts import scripts
from press.chapters import read_book
from press.dark import _lab, darkened, light, style_sheet, themed
from press.formulas import mathml, plain
from press.meaning import colored
from tests.helpers import ROOT

MEANINGS = ("query", "key", "value", "encoder", "decoder")
COLOR = re.compile(
    r"(?<![\w&(/])#(?:[0-9a-fA-F]{8}|[0-9a-fA-F]{6}|[0-9a-fA-F]{3})\b(?!;)"
    r"|\b(?:rgb|hsl)a?\("
)
WORD = re.compile(
    r"""(?:color|[fe]c|m[fe]c|cmap)["']?[=:]\s*["'](?:tab:|black|white|gr[ae]y"""
    r"""|red|blue|green|orange|0?\.\d|Blues|Greys|Reds|RdBu|viridis)"""
)
FILES = sorted(
    {
        *(ROOT / "book/_static").glob("*.[cj]s*"),
        *(ROOT / "annotated/book/moving").glob("*.mjs"),
        *(ROOT / "press").glob("*.py"),
        *(ROOT / "benchmarks").glob("*.py"),
        ROOT / "book/conf.py",
        ROOT / "book/index.md",
    }
    - {ROOT / "press/dark.py"}
)
CODE = {
    f"{chapter.file}, cell {number}": cell.source
    for chapter in read_book(ROOT)
    for number, cell in enumerate(chapter.code, 1)
}


def named(text: str) -> list[str]:
    """What a text says of colours, also where it computes them."""
    return [m[0] for p in (COLOR, WORD) for m in p.finditer(text)]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_no_other_file_names_a_colour(path: Path) -> None:
    assert named(path.read_text("utf-8")) == []


def test_no_cell_names_a_colour() -> None:
    said = {
        where: found
        for where, code in CODE.items()
        if (found := named(code))
    }
    known = {"'#rrggbb'", "#rrggbb"}
    assert {w: f for w, f in said.items() if set(f) - known} == {}


def test_what_is_looked_for_would_be_found() -> None:
    for text in (
        "a{color:#fff}",
        "rgb(1 2 3)",
        'color="grey"',
        '"ec": "white"',
    ):
        assert named(text), text


@pytest.mark.parametrize(
    "path", ["book/_static/logo.svg", "book/writing.svg"]
)
def test_drawings_by_hand_have_the_books_colours(path: str) -> None:
    found = set(COLOR.findall((ROOT / path).read_text("utf-8")))
    assert found <= {*colors().values(), *colors(dark=True).values()}


def test_figures_that_move_ask_for_colours_that_there_are() -> None:
    """A colour without a value is black, on a dark page, too."""
    texts = {
        path.name: path.read_text("utf-8")
        for path in (ROOT / "annotated/book/moving").glob("*.mjs")
    }
    page = (ROOT / "book/_static/book.css").read_text("utf-8")
    known = set(re.findall(r"--[\w-]+(?=:)", style_sheet() + page))
    known |= {  # what a figure gives a value to
        name
        for text in texts.values()
        for pair in re.findall(r'(--[\w-]+):|setProperty\("(--\w+)"', text)
        for name in pair
    }
    asked = {
        (file, name)
        for file, text in texts.items()
        for name in re.findall(r"""(?<=["'(])--[\w${]+[\w-]*""", text)
    }
    assert len(asked) > 50
    assert {(f, n) for f, n in asked if n not in known} == set()


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4
        for x in parts
    ]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_what_has_a_meaning_can_be_read(dark: bool) -> None:
    named = colors(dark)
    for name in (
        *MEANINGS,
        "ink",
        "soft",
        "data",
        "accent",
        "good",
        "bad",
        "link",
    ):
        for ground in ("sheet", "ground", "surface", "card"):
            assert contrast(named[name], named[ground]) >= 4.5, (
                name,
                ground,
            )


# what a reader without the long or the middle cones sees: Machado and others
# (2009), in linear light
BLIND = {
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}


def seen(color: str, eye: str) -> tuple[float, ...]:
    """A colour in OKLab as that reader sees it."""
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(
        rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4
    )
    there = (np.array(BLIND[eye]) @ linear).clip(0, 1)
    back = np.where(
        there <= 0.0031308,
        12.92 * there,
        1.055 * there ** (1 / 2.4) - 0.055,
    )
    return _lab("#" + "".join(f"{round(255 * x):02x}" for x in back))


@pytest.mark.parametrize("eye", BLIND)
@pytest.mark.parametrize("dark", [False, True])
def test_colour_blind_readers_tell_meanings_apart(
    dark: bool, eye: str
) -> None:
    named = colors(dark)
    pairs = [*combinations(MEANINGS[:3], 2), MEANINGS[3:]]
    for one, other in pairs:
        a, b = seen(named[one], eye), seen(named[other], eye)
        assert np.hypot.reduce(np.subtract(a, b)) > 0.08, (one, other)


def test_a_still_is_dark_on_a_dark_page() -> None:
    day, night = colors(), colors(dark=True)
    with plt.rc_context():
        use_book_style()
        fig, ax = plt.subplots()
        ax.plot([1, 2], color="query")
        file = io.StringIO()
        fig.savefig(file, format="svg")
        plt.close(fig)
    drawn = themed(file.getvalue())
    head, _, body = drawn.partition("</style>")
    assert not COLOR.findall(body.replace("url(#", ""))
    at_day, _, at_night = head.partition("@media")
    assert day["query"] in at_day and night["query"] in at_night
    assert night["ground"] in at_night and day["ground"] not in at_night


def test_tokens_have_their_own_dark_and_mixtures_lie_between() -> None:
    day, night = colors(), colors(dark=True)
    for name in (*MEANINGS, "data", "accent", "cell"):
        assert darkened(day[name]) == night[name]
    shades = mpl.colormaps["Greys"](np.linspace(0, 1, 9))
    lights = [luminance(darkened(mpl.colors.to_hex(c))) for c in shades]
    assert lights == sorted(lights)  # what was pale is dark


def test_style_sheets_get_every_colour() -> None:
    sheet = style_sheet()
    day, night = sheet.split("\n")[:2]
    for name in colors():
        assert f"--{name}:" in day and f"--{name}:" in night
    assert light("a{color:var(--ink)}") == f"a{{color:{colors()['ink']}}}"


def test_a_formula_and_its_code_have_the_same_colours() -> None:
    formula = plain(mathml(r"QK^\top/\sqrt{d_k} + W^Q q_i + x_k a^v"))
    code = (
        '<span class="n">q</span> <span class="n">d_k</span> '
        '<span class="n">a</span><span class="o">.</span>'
        '<span class="n">values</span> '
        '<span class="bp">self</span><span class="o">.</span>'
        '<span class="n">w_v</span> <span class="s2">"key"</span>'
    )
    before = f"{formula}<p>q, k</p>{code}"
    page = colored(before)
    assert re.findall(r'class="(?:n )?of-(\w+)">(\w+)<', page) == [
        ("query", "Q"),
        ("key", "K"),
        ("query", "Q"),
        ("query", "q"),
        ("query", "q"),
        ("value", "w_v"),
    ]
    marks = r' class="of-\w+"| of-\w+(?=")'
    assert re.sub(marks, "", page) == before


def test_moving_figures_name_colours_that_there_are() -> None:
    """A variable that is nowhere set draws nothing at all."""
    elsewhere = {
        "--book-interface",
        "--pst-font-family-monospace",
        "--cols",
    }
    folder = ROOT / "annotated/book/moving"
    modules = {p.stem: p.read_text("utf-8") for p in folder.glob("*.mjs")}
    for name, code in scripts(modules).items():
        used = set(re.findall(r"--[a-z][a-z-]*", code))
        given = {f"--{one}" for one in colors()}
        given |= set(re.findall(r"(--[a-z-]+):", code))
        given |= set(re.findall(r'setProperty\("(--[a-z-]+)', code))
        assert used <= given | elsewhere, name
