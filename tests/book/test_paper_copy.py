"""annotated paper: the reader's own copy, split by the map (page E28).

The document is invented; its structure is that of LaTeXML, which sets the
papers of arXiv and ar5iv.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest

from annotated.book.paper import (
    _counted,
    _named,
    _split,
    card_script,
    copy_path,
    excerpt,
    keep,
    put_beside,
)
from annotated.cli import dispatch
from annotated.engine.errors import DataError, UsageError

ROOT = Path(__file__).resolve().parents[2]
TITLES = re.compile(r"^:+\{admonition\} (Paper .*)$", re.M)
FORMULA = '<math display="inline" alttext="\\displaystyle x_{1}"><semantics><msub><mi>x</mi><mn>1</mn></msub><annotation encoding="application/x-tex">x_{1}</annotation></semantics></math>'


def para(text: str, kind: str = "") -> str:
    return f'<div class="ltx_para {kind}"><p class="ltx_p">{text}</p></div>'


def display(number: str = "") -> str:
    tag = (
        f'<td><span class="ltx_tag ltx_tag_equation">({number})</span></td>'
        if number
        else ""
    )
    return f'<table class="ltx_equation ltx_eqn_table"><tbody><tr class="ltx_equation ltx_eqn_row"><td></td><td>{FORMULA}</td>{tag}</tr></tbody></table>'


def note(sign: str, text: str) -> str:
    return (
        f'<span class="ltx_note ltx_role_footnote" id="footnote{sign}"><sup class="ltx_note_mark">{sign}</sup>'
        f'<span class="ltx_note_outer"><span class="ltx_note_content"><sup class="ltx_note_mark">{sign}</sup>'
        f'<span class="ltx_tag ltx_tag_note">{sign}</span>{text}</span></span></span>'
    )


def caption(kind: str, number: int, text: str, body: str = "") -> str:
    return (
        f'<figure class="ltx_{kind.lower()}"><img src="https://elsewhere.example/x.png">{body}'
        f'<figcaption class="ltx_caption"><span class="ltx_tag ltx_tag_{kind.lower()}">{kind} {number}: </span>{text}</figcaption></figure>'
    )


OWN = {
    "3": [para("A baker keeps two ovens.") + caption("Figure", 1, "The bakery.")],
    "3.1": [
        '<section class="ltx_paragraph" id="S3.SS1.SSS0.Px1"><h5 class="ltx_title ltx_title_paragraph">Rising:</h5>'
        + para("The dough stands in <span class='ltx_text ltx_font_bold'>warm</span> places.")
        + "</section>",
        '<section class="ltx_paragraph" id="S3.SS1.SSS0.Px2"><h5 class="ltx_title ltx_title_paragraph">Baking:</h5>'
        + para("Then it goes into the oven.")
        + "</section>",
    ],
    "3.2.1": [
        para("Flour is weighed" + note("1", "Sieved beforehand.") + "."),
        para("Water follows, as in") + f'<div class="ltx_para">{display("1")}</div>',
        para("Salt comes third."),
        para("Yeast is last <cite>[<a href='#bib.bib3' onclick='steal()'>3</a>]</cite>.<script>steal()</script>"),
    ],
    "3.2.2": [
        para("Loaves are shaped."),
        para("They are marked.") + f'<div class="ltx_para">{display()}</div>',
        para("Where the knife is sharp."),
        para("Eight loaves are enough."),
    ],
    "3.2.3": [
        '<div class="ltx_para"><p class="ltx_p">Bread is eaten thrice:</p><ul class="ltx_itemize">'
        + "".join(
            f'<li class="ltx_item"><span class="ltx_tag ltx_tag_item">•</span>{para(meal)}</li>'
            for meal in ("In the morning.", "At noon.", "In the evening.")
        )
        + "</ul></div>"
    ],
    "3.5": [
        para("Crust matters."),
        para("Its colour follows") + f'<div class="ltx_para">{display()}</div>' + para("where brown is best. We chose it."),
        para("Pale crusts do as well."),
    ],
    "6.1": [
        *(para(f"Result {n}.") for n in (1, 2, 3)),
        para("What it cost" + note("2", "In copper coins.") + "."),
    ],
    "7": [
        *(para(f"Conclusion {n}.") for n in (1, 2, 3, 4)),
        '<section class="ltx_paragraph" id="S7.SS0.SSS0.Px1"><h4 class="ltx_title ltx_title_paragraph">Acknowledgements</h4>'
        + para("We thank the miller.")
        + "</section>",
    ],
}  # fmt: skip
TABLE = '<table class="ltx_tabular"><tbody><tr class="ltx_tr"><th>oven</th><td colspan="2" style="x">loaves &lt; 9</td></tr><tr><td>old</td><td>8</td><td>7</td></tr></tbody></table>'


def document(**own: list[str]) -> str:
    """An invented paper with the sections of the map."""
    body = ""
    for section, count in sorted(_counted().items()):
        numbers = section.split(".")
        name = ".".join(a + b for a, b in zip(("S", "SS", "SSS"), numbers))
        kind = ("section", "subsection", "subsubsection")[len(numbers) - 1]
        made = [
            para(f"Part {n} of {section}.") for n in range(1, count + 1)
        ]
        inner = "".join(own.get(section, OWN.get(section, made)))
        body += f'<section class="ltx_{kind}" id="{name}"><h2 class="ltx_title ltx_title_{kind}"><span class="ltx_tag">{section} </span>Of bread</h2>{inner}</section>'
    return f"""<!DOCTYPE html><html><head><title>x</title><style>p {{}}</style></head><body>
<nav><a href="#S1">1 Of bread</a></nav><article class="ltx_document">
<h1 class="ltx_title ltx_title_document">Attention Is All
You Need</h1><div class="ltx_authors">A baker{note("*", "Of equal weight.")}</div>
<div class="ltx_abstract"><h6 class="ltx_title ltx_title_abstract">Abstract</h6><p class="ltx_p">Bread, in short.</p></div>
{body}<section class="ltx_bibliography" id="bib"><h2 class="ltx_title">References</h2></section>
<section class="ltx_appendix" id="A1"><h2 class="ltx_title">Loaves</h2>{para("Not a part.")}{caption("Figure", 3, "A loaf.")}
{caption("Table", 2, "Ovens.", TABLE)}</section></article></body></html>"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path / "data"))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved.html"
    path.write_text(document(), "utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("abstract p1", "Bread, in short."),
        ("3 p1", "A baker keeps two ovens."),
        ("3.1 p2", "Baking: Then it goes into the oven."),
        ("3.2.1 p1", "Flour is weighed[1]."),
        ("3.2.1 p2", "Water follows, as in\n\n$x_{1}$ (1)"),
        ("3.2.1 p4", "Yeast is last [3]."),
        ("eq 1", "$x_{1}$ (1)"),
        ("fn 4", "Sieved beforehand."),
        ("fn 5", "In copper coins."),
        ("3.2.2 eq", "$x_{1}$"),
        ("3.2.2 p3", "Where the knife is sharp."),
        ("3.2.3 p1", "Bread is eaten thrice:"),
        ("3.2.3 point 2", "At noon."),
        ("3.2.3", "Bread is eaten thrice:\n\nIn the morning.\n\nAt noon.\n\nIn the evening."),
        ("3.5 p2", "Its colour follows\n\n$x_{1}$\n\nwhere brown is best. We chose it."),
        ("3.5 p3", "Pale crusts do as well."),
        ("fig 1", "Figure 1: The bakery."),
        ("fig 3", "Figure 3: A loaf."),
        ("table 2 row big", "Table 2: Ovens.\n\noven | loaves < 9\n\nold | 8 | 7"),
        ("7 p4", "Conclusion 4."),
        ("Table 2", "Table 2: Ovens.\n\noven | loaves < 9\n\nold | 8 | 7"),
        ("Paper §3.2.1, paragraph 4, and footnote 4", "Yeast is last [3].\n\nSieved beforehand."),
        ("acknowledgements p1", "Acknowledgements We thank the miller."),
    ],
)  # fmt: skip
def test_a_part_is_found_by_its_name(
    saved: Path, name: str, text: str
) -> None:
    keep(saved)
    assert str(excerpt(name)) == text


def test_only_words_formulas_and_tables_pass(saved: Path) -> None:
    keep(saved)
    assert (
        excerpt("3.2.1 p4").html == "<div><p>Yeast is last [3].</p></div>"
    )
    assert "<strong>warm</strong>" in excerpt("3.1 p1").html
    formula = (
        '<math display="inline"><msub><mi>x</mi><mn>1</mn></msub></math>'
    )
    assert (
        f'<div class="equation"><div>{formula} (1)</div></div>'
        in excerpt("eq 1").html
    )
    assert '<td colspan="2">loaves &lt; 9</td>' in excerpt("table 2").html
    everything = "".join(
        excerpt(name).html for name in _split(document(), "it")
    )
    for never in (
        "<script",
        "steal",
        "<img",
        "<a",
        "style",
        "alttext",
        'class="ltx',
    ):
        assert never not in everything, never


def test_every_part_of_the_map_with_paragraphs_is_there() -> None:
    parts = _split(document(), "it")
    for section, count in _counted().items():
        for number in range(1, count + 1):
            assert f"{section} p{number}" in parts


def test_where_the_copy_counts_otherwise_the_section_stands() -> None:
    parts = _split(document(**{"4": [para("One."), para("Two.")]}), "it")
    assert _counted()["4"] == 6
    assert len(parts["4 p1"]) == len(parts["4 p6"]) == 2
    assert len(parts["5 p1"]) == 1


def test_every_card_names_parts_that_there_are() -> None:
    listed = {
        part["item"]
        for part in json.loads(
            (ROOT / "annotated/book/paper.json").read_text("utf-8")
        )
    }
    halves = {"fig 2"}
    titles = {
        title
        for page in (ROOT / "book").glob("*.md")
        for title in TITLES.findall(page.read_text("utf-8"))
    }
    assert len(titles) > 80
    for title in titles:
        found = _named(title)
        known = listed | set(_counted()) | halves
        assert set(found) <= known, title
        assert found or "title page" in title, title


@pytest.mark.parametrize(
    ("title", "parts"),
    [
        ("Paper §6.2, paragraphs 1 to 3", ["6.2 p1", "6.2 p2", "6.2 p3"]),
        ("Paper §3.2.1, paragraphs 3 and 4: two", ["3.2.1 p3", "3.2.1 p4"]),
        ("Paper §3.2.1, paragraph 2 and equation 1", ["3.2.1 p2"]),
        ("Paper §5.3, equation 3", ["eq 3"]),
        ("Paper §3.5, the formula and paragraph 2", ["3.5 eq", "3.5 p2"]),
        ("Paper §3.2.3, third point: in the decoder", ["3.2.3 point 3"]),
        ("Paper §6.1, paragraph 4, and footnote 5", ["6.1 p4", "fn 5"]),
        ("Paper §3 and Figure 1", ["3", "fig 1"]),
        ("Paper §3.1: the stacks", ["3.1"]),
        ("Paper Table 3, rows D", ["table 3"]),
        ("Paper §7, paragraph 4, and the acknowledgements", ["7 p4", "acknowledgements p1"]),
        ("Paper, abstract", ["abstract p1"]),
    ],
)  # fmt: skip
def test_a_card_says_what_it_is_about(title: str, parts: list[str]) -> None:
    assert _named(title) == parts


def card(title: str) -> str:
    return f'<div class="paper admonition">\n<p class="admonition-title">{title}</p>\n<p>Ours.</p></div>'


def test_the_pages_get_the_words_of_their_cards(
    saved: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    (site / "_static").mkdir(parents=True)
    (site / "_static/paper.js").write_text("// nothing\n")
    (site / "a.html").write_text(
        card("Paper §3.5, the\nformula and paragraph 2")
        + card("Paper Table 2 &amp; more")
        + card("Paper, title page")
    )
    with pytest.raises(DataError, match="run `annotated paper`"):
        put_beside(site)
    keep(saved)
    assert put_beside(site) == site / "_static/paper.js"
    told = (site / "_static/paper.js").read_text("utf-8")
    found = json.loads(re.fullmatch(r"paperWords\((.*)\);\n", told)[1])
    assert list(found) == [
        "Paper §3.5, the formula and paragraph 2",
        "Paper Table 2 & more",
    ]
    text = re.sub(
        r"<[^>]+>", " ", found["Paper §3.5, the formula and paragraph 2"]
    )
    formula, shown = "x 1", " ".join(text.split())
    assert (
        shown
        == f"Its colour follows {formula} where brown is best. We chose it."
    )
    assert "</" not in told and told == card_script(site)
    with pytest.raises(DataError, match="no _static/paper.js"):
        put_beside(tmp_path)


def test_in_a_notebook_it_is_a_quotation(saved: Path) -> None:
    keep(saved)
    assert (
        excerpt("7 p1")._repr_html_()
        == "<blockquote><div><p>Conclusion 1.</p></div></blockquote>"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<h1 class='ltx_title_document'>Of bread</h1>", "is not the paper: its title is “Of bread”"),
        ("<p>no network here</p>", "it has no title; wanted"),
        ("<p>never closed" * 5000, "it has no title; wanted"),
        (document().replace('id="S4"', 'id="X4"'), "it has no section 4"),
    ],
)  # fmt: skip
def test_something_else_is_refused(
    tmp_path: Path, text: str, why: str
) -> None:
    path = tmp_path / "other.html"
    path.write_text(text, "utf-8")
    with pytest.raises(DataError, match=why):
        keep(path)
    assert not copy_path().exists()


def test_the_first_place_that_has_it_serves(
    monkeypatch: pytest.MonkeyPatch, saved: Path
) -> None:
    asked = []

    def urlopen(request: urllib.request.Request, timeout: float) -> object:
        asked.append(request.full_url)
        if len(asked) == 1:
            raise URLError("no route")
        return saved.open("rb")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    keep()
    assert "arxiv.org" in asked[0] and "ar5iv" in asked[1]
    assert str(excerpt("abstract p1")) == "Bread, in short."


def test_without_a_network_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def urlopen(*given: object, **more: object) -> object:
        raise URLError("no route")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    with pytest.raises(DataError, match=r"no route.*--file"):
        keep()


def test_the_command_keeps_prints_and_refuses(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dispatch(["paper", "--file", str(saved), "3.2.1", "p3"])
    out, err = capsys.readouterr()
    assert out == "Salt comes third.\n" and str(copy_path()) in err
    dispatch(["paper", "fn", "4"])
    assert capsys.readouterr().out == "Sieved beforehand.\n"
    with pytest.raises(UsageError, match="unknown part of the paper '9.9'"):
        dispatch(["paper", "9.9"])
    with pytest.raises(DataError, match="has no section|not the paper"):
        dispatch(["paper", "--file", __file__])


@pytest.mark.slow
def test_a_mistake_is_one_line_and_exit_code_2(saved: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "annotated", "paper", "--file", f"{saved}.not"],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
