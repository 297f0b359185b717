"""The site: it stands alone, and says where a fault is."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from docutils import nodes
from PIL import Image

from press import previews
from press.chapters import PressError, read_book
from press.formulas import mathml, plain
from press.notebooks import expected_notebooks
from press.pages import _fold_with_output, _write_minus, fold
from press.search import sections
from press.site import _short_title, draft, is_current, proof, site
from tests.press.conftest import FIGURE, Book, code

ROOT = Path(__file__).resolve().parents[2]


def page(book: Book, name: str) -> str:
    return book.read(f"site/{name}.html")


def test_a_table_that_a_cell_makes_is_a_table(built: Book) -> None:
    table = page(built, "03-two").partition("<table")[2]
    assert "<strong>a</strong>" in table.partition("</th>")[0]


def test_a_second_run_does_nothing(built: Book) -> None:
    assert site(built.root) == "site/ is current"


def test_the_line_below_the_title_says_what_a_chapter_takes(
    built: Book,
) -> None:
    text = page(built, "02-one")
    assert re.search(r"<h1>2 · One<", text)
    line, other = (
        re.findall(r'<p class="chapter-facts">(.*?)</p>', page(built, name))
        for name in ("02-one", "03-two")
    )
    plain = re.sub(r"<[^>]+>", " ", line[0])
    assert re.fullmatch(
        r"\d+ min Colab notebook open all answers", " ".join(plain.split())
    )
    assert "all answers" not in page(built, "00-preface")
    assert "some-book/blob/main/book/notebooks/02-one.ipynb" in line[0]
    # the first figure that moves, where there is one
    assert 'href="#fig-moving-film">interactive figure</a>' in other[0]
    assert re.search(r"<h1>Preface<", page(built, "00-preface"))


def test_pages_hold_what_the_chapters_hold(built: Book) -> None:
    text = page(built, "02-one")
    assert 'class="paper admonition"' in text
    assert re.search(r'<img [^>]*alt="A rising line"[^>]*\.svg"', text)
    assert 'href="03-two.html"' in text
    assert "tag_export" in text
    assert "42" in page(built, "03-two")
    for side, other in (
        ("left-prev", "00-preface"),
        ("right-next", "03-two"),
    ):
        assert re.search(rf'"{side}"\s+href="{other}\.html"', text)


def test_figures_and_exercises_are_numbered_by_chapter(built: Book) -> None:
    text = page(built, "02-one")
    captions = re.findall(
        r"<figcaption>.*?caption-text\">(.*?)</span>", text, re.DOTALL
    )
    assert captions == [
        "<strong>Figure 2.1.</strong> A line that <em>rises</em>.",
        "<strong>Figure 2.2.</strong> A line that falls.",
    ]
    assert 'href="#fig-line">Figure 2.1</a>' in text
    titles = re.findall(r'class="admonition-title">(Exercise.*?)<', text)
    assert titles == ["Exercise 2.1 · Predict: more · ★ · 1 min"]
    assert 'href="#ex-one-think">Exercise 2.1</a>' in text
    other = page(built, "03-two")
    assert re.search(
        r'href="02-one.html#fig-line"><[^>]*>Figure 2\.1<', other
    )


def test_what_is_folded_says_what_is_inside(built: Book) -> None:
    text = page(built, "02-one").partition("<article")[2]
    found = re.findall(r"<summary[^>]*>(.*?)</summary>", text, re.DOTALL)
    tags = r"<annotation.*?</annotation>|<[^>]+>"
    plain = [re.sub(tags, "", label) for label in found]
    assert plain == [
        "Imports",
        "annotated.one: ONE",
        "Code of this figure",
        "Code",  # of a helper, which stands before the figure's own
        "Choice: 8",
        "Choice: about 3",
        "Show what happens",  # three results, one behind the other
        "Code of this output",
        "Code of this figure",
        "Solution of exercise 2.1",
        "A hint",
        "Cite this page",
    ]
    # the figure first, its code below
    assert text.index("Figure 2.1.") < text.index("Code of this figure")
    # but it does not pass another hidden output
    assert text.index("above the figure") < text.index("Figure 2.2.")
    # choices of one prediction close each other
    groups = re.findall(r'<details[^>]*name="([^"]+)"', text)
    assert len(groups) == 2
    assert len(set(groups)) == 1
    assert re.search(
        r'class="fold right".*?<strong>Right: <', text, re.DOTALL
    )


@pytest.mark.parametrize("between", ["nothing", "folded code", "a value"])
def test_what_is_said_goes_to_the_output_above_it(between: str) -> None:
    hidden = nodes.container("", fold(classes=["answer"]))
    said = nodes.container("", nodes.paragraph(), classes=["reading"])
    cells = {
        "nothing": [],
        "folded code": [fold(classes=["code"])],  # a figure has passed it
        "a value": [nodes.literal_block()],
    }[between]
    others = [nodes.container("", *cells, nb_element="cell_code")]
    page = nodes.section("", hidden, *(others if cells else []), said)
    _fold_with_output(said)
    assert said.parent is (page if between == "a value" else hidden[0])


@pytest.fixture
def lent(built: Book) -> Iterator[Book]:
    """The small book, put back as it was without being set once more."""
    kept = built.root.with_name("kept")
    shutil.copytree(built.root, kept)
    yield built
    shutil.rmtree(built.root)
    kept.rename(built.root)


def test_a_prediction_without_one_right_choice_is_told(lent: Book) -> None:
    before = lent.read("book/03-two.md")
    for choices in ("- one — no.\n- two — no.", "- one\n- two — ✓ yes."):
        lent.write(
            "book/03-two.md",
            f"{before}\n:::{{admonition}} Predict\n:class: predict\n"
            f"{choices}\n:::\n",
        )
        with pytest.raises(PressError, match="choice"):
            site(lent.root)


def test_the_first_page_is_made_from_the_chapters(built: Book) -> None:
    text = page(built, "index")
    assert "<title>Attention, Annotated</title>" in text
    assert '<a class="cover" href="02-one.html"><img alt="A rising' in text
    assert 'href="02-one.html">' in text
    plain = re.sub(r"<[^>]+>", "", text)
    assert (
        "pip install https://github.com/someone/some-book/archive" in plain
    )
    assert (
        "0 parts: 0 at full size, 0 tested, 0 measured, 0 transcribed "
        "and 0 told" in plain
    )
    assert "One idea carries it.</p>" in text
    assert re.search(r"<b>[34]\d\.\d BLEU</b> on\ncaptions", text)
    assert re.search(r"two cores\n\d+ minutes, side by side<", text)
    assert "%(" not in text
    assert '<meta name="description" content="A small Transformer' in text
    one = page(built, "02-one")
    assert '<meta property="og:title" content="2 · One">' in one
    assert len(re.findall('<meta name="viewport"', one)) == 1


def test_links_to_pages_have_pictures_where_the_address_is_known(
    built: Book,
) -> None:
    for name in ("index", "02-one"):
        for tag in ("og:url", "og:image", "twitter:card", "canonical"):
            assert tag not in page(built, name), tag
    before = built.read("pyproject.toml")
    where = "https://books.example.org/one"
    built.write("pyproject.toml", f'{before}Documentation = "{where}/"\n')
    site(built.root)
    shown = {}
    for name in ("index", "02-one", "03-two", "api-story"):
        tags = re.findall(
            '<meta (?:property|name)="([^"]+)" content="([^"]*)">',
            page(built, name),
        )
        told = dict(tags)
        assert told["og:url"] == f"{where}/{name}.html"
        assert told["twitter:card"] == "summary_large_image"
        picture = told["og:image"].removeprefix(f"{where}/")
        with Image.open(built.root / "site" / picture) as image:
            width, height = told["og:image:width"], told["og:image:height"]
            assert image.format == "PNG"
            assert (str(image.width), str(image.height)) == (width, height)
            assert len(image.convert("RGB").getcolors(9999) or []) > 20
        shown[name] = picture, told["og:image:alt"]
    # a page's own figure; the first page has the first figure of all, and
    # so have pages without one
    assert shown["02-one"] == (
        "_static/previews/02-one.png",
        "A rising line",
    )
    assert shown["index"] == ("_static/previews/index.png", "A rising line")
    assert shown["03-two"] == ("_static/previews/03-two.png", "A still")
    assert shown["api-story"] == shown["index"]
    built.write("pyproject.toml", before)
    site(built.root)
    assert not (built.root / "site/_static/previews").exists()


def test_a_picture_is_drawn_once(
    built: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="9pt" height="9pt"/>'
    )
    first = previews.preview(built.root, "One", "Two.", figure)
    monkeypatch.setattr(previews, "_draw", lambda *facts: b"again")
    assert previews.preview(built.root, "One", "Two.", figure) == first
    other = previews.preview(built.root, "One", "Three.", figure)
    assert other == b"again"


def test_a_description_has_words_and_no_marks(lent: Book) -> None:
    """The words of the glossary are buttons on the page."""
    before = lent.read("book/A1-notation.md")
    title = "## Words of one"
    table = (
        "### One\n\n| word | paper | code | field | meaning |\n"
        "|---|---|---|---|---|\n| idea | a | b | c | what *carries* |"
    )
    lent.write(
        "book/A1-notation.md",
        before.replace(f"(words-02)=\n{title}", "## Words, by chapter")
        + f"\n(words-02)=\n{table}\n",
    )
    site(lent.root)
    text = page(lent, "02-one")
    assert 'popovertarget="note-word-idea"' in text
    told = re.findall('escription" content="([^"]*)"', text)
    assert len(told) == 2
    for words in told:
        assert words.startswith("What it is for. One idea carries it.")


def test_the_first_page_has_cards_for_what_promises(lent: Book) -> None:
    lent.write(
        "book/cards.yml",
        "02-one: See it rise & fall.\nA1-notation: What is what.\n",
    )
    index = lent.read("book/index.md")
    lent.write(
        "book/index.md", f"{index}\n%(printed 02-one the value is)\n"
    )
    with pytest.raises(PressError, match="value is.*it is not printed"):
        site(lent.root)
    lent.write("book/index.md", index)
    site(lent.root)
    text = page(lent, "index")
    card = text[text.index('<ul class="cards">') :].partition("</ul>")[0]
    assert '<li><a href="02-one.html"><span class="picture"><img' in card
    assert "<span>See it rise &amp; fall.</span>" in card
    [picture] = re.findall(r'src="([^"]+)"', card)
    assert (lent.root / "site" / picture).read_text().startswith("<?xml")
    assert "One idea carries it.</p>" not in text
    assert text.count("What is what.") == 1 and "What is what." not in card


def test_what_is_searched_is_a_section_without_those_inside_it() -> None:
    text = r"""<section id="one"><h1>1 · One<a class="headerlink">#</a></h1>
      <p>Here is <span class="math"><math><semantics><msqrt><mi>d</mi></msqrt>
      <annotation>\sqrt{d_\text{k}} \cdot \alpha</annotation></semantics></math></span>,
      and <code>a_<wbr>b</code>.</p>
      <details><summary>Code</summary><pre><b>class</b> Two(One):
    def three(self): ...
x = {1}</pre></details>
      <div class="admonition solution"><p>It is 7.</p><pre>y</pre></div>
      <section id="two"><h2>Two</h2><p>Inside</p>
      <dl class="py"><dt id="annotated.one.FOUR">FOUR = 4</dt></dl></section>
      <p>After.</p></section>"""
    pages = {"A2-a.html": text.encode(), "b/c.html": b"<p>no</p>"}
    asked = "A2-a#two\twhy four\n"
    script = sections(pages, asked)["sections.js"]
    rows, taught = script.decode().split(";\nconst TAUGHT = ")
    rows = rows.removeprefix("const SECTIONS = ")
    assert json.loads(taught.strip("; \n")) == []
    one = "Here is √d_k · α, and a_b. After."
    code = "class Two One def three self x"  # each word once
    assert json.loads(rows) == [
        [
            "A2-a.html",
            "1 · One",
            "",
            "1 · One",
            one,
            code,
            "Two three",
            "It is y",
            "",
        ],
        [
            "A2-a.html",
            "1 · One",
            "#two",
            "Two",
            "Inside FOUR = 4",
            "",
            "FOUR",
            "",
            "why four",
        ],
    ]


@pytest.mark.parametrize(
    ("tex", "read"),
    [
        (r"e^{-\infty} = 0", "e^-∞ = 0"),
        (r"\sqrt{2}\ln 2 \cdot (0, 1)", "√2ln 2 · (0, 1)"),
        (r"\frac{QK^\top}{\sqrt{d_k}}", "QK^ᵀ/√d_k"),
        (r"\tfrac12 \sum_i \omega_i \in \mathbb{R}", "1/2 Σ_i ω_i ∈ R"),
        (r"\Phi \le \varepsilon\,\%", "Φ ≤ ε %"),
    ],
)
def test_a_formula_reads_as_one_would_type_it(tex: str, read: str) -> None:
    formula = plain(mathml(tex, source=True))
    text = f'<section id="a"><span class="math">{formula}</span></section>'
    made = sections({"a.html": text.encode()})["sections-more.js"]
    assert f', "", "{read}", ' in made.decode()


def test_references_say_where_they_are_cited(built: Book) -> None:
    text = page(built, "references")
    for start in ("Attention Is All You Need</a>", "M. Post: "):
        entry = text.partition(start)[2].partition("</p>")[0]
        assert 'href="02-one.html">' in entry, start
    assert 'href="references.html#vaswani2017attention"' in page(
        built, "02-one"
    )


def test_references_call_a_page_what_it_is() -> None:
    named = {one.name: _short_title(one) for one in read_book(ROOT)}
    assert named["02-attention"] == "chapter 2"
    assert named["A4-paper-map"] == "appendix A4"
    assert named["E5-trainer"] == "page E5"


def test_an_unknown_work_is_told(built: Book) -> None:
    before = built.read("book/03-two.md")
    built.write("book/03-two.md", f"{before}\n{{cite}}`nobody1999`\n")
    with pytest.raises(PressError, match="no entry nobody1999"):
        site(built.root)
    built.write("book/03-two.md", before)


def test_some_chapters_can_be_set_alone(built: Book) -> None:
    assert draft(built.root, ["03"]).endswith("holds 4 pages")
    text = built.read("build/draft/site/03-two.html")
    assert "02-one.html" not in text
    assert "Figure 2.1" in text
    assert is_current(built.root)


def test_no_page_asks_another_host_for_anything(built: Book) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?"
        r"(?:src|srcset|data)\s*=\s*[\"']?(?:https?:)?//[^>]*"
        r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*?href\s*=\s*[\"']?"
        r"(?:https?:)?//[^>]*"
    )
    outside = re.compile(
        r"(?:url\(|@import)\s*[\"']?\s*(?:https?:)?//[^)]*"
    )
    found = []
    for path in (built.root / "site").rglob("*"):
        if path.suffix == ".html":
            text = path.read_text(encoding="utf-8")
            found += [(path.name, m[0]) for m in loads.finditer(text)]
            found += [(path.name, m[0]) for m in outside.finditer(text)]
        elif path.suffix == ".css":
            text = path.read_text(encoding="utf-8")
            found += [(path.name, m[0]) for m in outside.finditer(text)]
    assert found == []


def test_what_pages_load_is_there(built: Book) -> None:
    folder = built.root / "site"
    for path in folder.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(
            r"<(?:script|img|link)\b[^>]*?(?:src|href)=\"([^\"#?]+)", text
        ):
            if "://" not in name and not name.startswith("data:"):
                assert (path.parent / name).is_file(), (path.name, name)
    (styles,) = folder.glob("_static/page-*.css")
    for name in re.findall(r'url\("([^"]+)"\)', styles.read_text()):
        there = name.startswith("data:") or (styles.parent / name).is_file()
        assert there, name
    assert "mathjax" not in page(built, "02-one").lower()
    assert not list(folder.rglob("*.map"))
    assert not list(folder.rglob("fontawesome.js"))


def test_prose_is_set_again_and_faults_are_told(built: Book) -> None:
    before = built.read("book/03-two.md")
    built.write(
        "book/03-two.md", before + "\n## Further\n\n[Gone](04-gone.md)\n"
    )
    for _ in range(2):  # a fault stays a fault
        with pytest.raises(PressError) as error:
            site(built.root)
        assert any(
            line.startswith('book/03-two.md, section "Further": WARNING')
            for line in error.value.problems
        )
    assert "Further" not in page(built, "03-two")
    built.write("book/03-two.md", before + "\n## Further\n\nMore.\n")
    assert "holds 10 pages" in site(built.root)
    assert "Further" in page(built, "03-two")


def test_faults_are_found_before_a_page_is_run(built: Book) -> None:
    before = built.read("book/03-two.md")
    never = code("raise SystemExit('this is never run')")
    whole = f"{before}\n## Proof\n\n[](02-one.md#fig-line)\n\n{never}\n"
    faults = [
        "[](#fig-gone)",
        "[Gone](04-gone.md)",
        "[Gone](02-one.md#gone)",
        ":::{hnit}\nNo.\n:::",
        code(FIGURE.replace("that *rises*", "like [](#fig-lost)")),
    ]
    try:
        built.write("book/03-two.md", whole)
        proof(built.root)
        built.write("book/03-two.md", "\n\n".join([whole, *faults, ""]))
        with pytest.raises(PressError) as error:
            proof(built.root)
    finally:
        built.write("book/03-two.md", before)
    here = 'book/03-two.md, section "Proof": WARNING: '
    told = str(error.value)
    for fault in (
        f"^{here}.*fig-gone",
        f"^{here}.*04-gone",
        f"^{here}.*02-one.*gone",
        f"^{here}.*hnit",
        r"code cell \d \(import .*\): WARNING: .*fig-lost",
    ):
        assert re.search(fault, told, re.M), (fault, told)


def test_sphinx_cut_off_spoils_no_later_run(
    built: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    site(built.root)
    html = built.root / "build" / "html"

    def cut_off(*command: object, **options: object) -> None:
        (html / "searchindex.js").unlink()
        (html / "02-one.html").unlink()
        raise KeyboardInterrupt

    (built.root / "build" / "site.stamp").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("press.build.subprocess.run", cut_off)
        with pytest.raises(KeyboardInterrupt):
            site(built.root)
    site(built.root)
    assert (html / "02-one.html").is_file()


def test_stale_outputs_are_not_set(built: Book) -> None:
    before = built.read("book/03-two.md")
    built.write("book/03-two.md", before.replace("40 + 2", "40 + 3"))
    with pytest.raises(PressError, match="press execute 03-two"):
        site(built.root)
    built.write("book/03-two.md", before)


def test_a_figure_that_moves_has_its_still_its_data_and_its_script(
    built: Book,
) -> None:
    text = page(built, "03-two")
    start = text.index('<figure class="moves moves-film')
    moving = text[start : text.index("</figure>", start)]
    assert 'id="fig-moving-film"' in moving
    assert re.search(r'<img [^>]*alt="A still"', moving)
    assert "Figure 3.1" in moving
    data = re.search(r'class="moves-data">([^<]*)</script>', moving)
    assert data and json.loads(data[1])["target"] == "ba"
    files = re.findall(r'(?:src|data-file)="(_static[^"]*)"', moving)
    assert len(files) == 2  # the script, and what is loaded when asked for
    texts = [built.read(f"site/{name}") for name in files]
    assert 'movesLarge("QUJD");' in texts[0]
    assert "kit.host(" in texts[1]
    assert "QUJD" not in text  # not before anybody asks


def test_the_first_page_has_the_translator_of_another(built: Book) -> None:
    text = page(built, "index")
    start = text.index('<figure class="moves moves-film')
    moving = text[start : text.index("</figure>", start)]
    other = page(built, "03-two")
    assert re.findall(r'data-file="[^"]*"', moving) == re.findall(
        r'data-file="[^"]*"', other
    )
    assert (
        '<a class="cover" href="03-two.html"><img alt="A still"' in moving
    )
    assert "2.9 million" in text and "took\n47 minutes" in text


def test_a_link_leads_to_a_figure_in_a_state(built: Book) -> None:
    assert 'href="03-two.html#film:step=1"' in page(built, "02-one")
    path = built.root / "book" / "notebooks" / "02-one.ipynb"
    notebook = expected_notebooks(built.root)[path]
    assert "[moved](03-two.ipynb)" in notebook


def test_a_state_of_no_figure_is_refused(built: Book) -> None:
    before = built.read("book/02-one.md")
    built.write("book/02-one.md", before.replace("#film:", "#pilm:"))
    with pytest.raises(
        PressError, match="03-two.md has no figure fig-…-pilm"
    ):
        proof(built.root)
    built.write("book/02-one.md", before)


def test_a_page_does_not_link_to_itself(built: Book) -> None:
    """An exercise names its chapter, where it stands on other pages too."""
    page = built.read("site/00-preface.html")
    assert "chapters and this page." in page


def test_drawings_have_their_size_before_they_come(built: Book) -> None:
    """Else the text below moves when a picture has been loaded."""
    page = built.read("site/02-one.html")
    images = re.findall(r'<img [^>]*src="(_images/\w+\.svg)"[^>]*>', page)
    sized = re.findall(
        r'<img width="(\d+)" height="(\d+)"[^>]*src="(_images/\w+\.svg)"',
        page,
    )
    assert images == [name for *_, name in sized] and images
    for width, height, name in sized:
        svg = built.read(f"site/{name}")
        own = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', svg)
        assert own is not None
        assert abs(int(width) - float(own[1]) * 4 / 3) <= 0.5
        assert abs(int(height) - float(own[2]) * 4 / 3) <= 0.5


def test_a_table_writes_numbers_below_zero_with_a_minus_sign() -> None:
    cells = ["-0.33 ± 0.01", "dropout -.1, one-head", "2017-06-12", "-x"]
    table = nodes.table(
        "", *(nodes.entry("", nodes.Text(c)) for c in cells)
    )
    table += nodes.entry("", nodes.literal("", "-1"))
    _write_minus(table)
    assert [entry.astext() for entry in table.findall(nodes.entry)] == [
        "−0.33 ± 0.01", "dropout −.1, one-head", "2017-06-12", "-x", "-1"
    ]  # fmt: skip
