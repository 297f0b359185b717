"""MyST as plain Markdown: no directive, no role, and no sentence lost."""

from __future__ import annotations

import pytest

from press import myst
from press.chapters import read_book
from press.project import read_project

from .conftest import Book, code

RAW = "https://github.com/someone/some-book/raw/main"
BLOB = "https://github.com/someone/some-book/blob/main"

CASES = {
    "card": (
        ":::{admonition} Paper §3.2, $d$\n:class: paper\nWords\n\n- a\n:::",
        "> **Paper §3.2, $d$**\n>\n> Words\n>\n> - a",
    ),
    "note": ("```{note}\nWords\n```", "> **Note**\n>\n> Words"),
    "exercise": (
        ":::{exercise} Predict (3 minutes)\n:label: ex-here\nWords\n:::",
        "**Exercise 2.1 · Predict · 3 min**\n\nWords",
    ),
    "prediction": (
        ":::{admonition} Predict: $d$\n:class: predict\nHow?\n\n"
        "- 8 — no,\n  it is not.\n- 3 — ✓ yes.\n:::",
        "> **Predict: $d$**\n>\n> How?\n>\n> - 8\n> - 3\n>\n"
        "> <details>\n> <summary>Answers</summary>\n>\n"
        "> - 8 — no,\n>   it is not.\n> - 3 — ✓ yes.\n>\n> </details>",
    ),
    "figure after its word": (
        "Figure [](fig-two)",
        "[Figure 3.1](03-two.ipynb)",
    ),
    "figure by number": ("[](#fig-two)", "[Figure 3.1](03-two.ipynb)"),
    "solution": (
        ":::{solution} ex-a\n:class: dropdown\nIt is 4.\n:::",
        "<details>\n<summary>Solution</summary>\n\nIt is 4.\n\n</details>",
    ),
    "hint": (
        ":::{hint}\n:class: dropdown\nWords\n:::",
        "<details>\n<summary>Hint</summary>\n\nWords\n\n</details>",
    ),
    "dropdown": (
        ":::{dropdown} More\nWords\n:::",
        "<details>\n<summary>More</summary>\n\nWords\n\n</details>",
    ),
    "nested": (
        "::::{note}\nA\n:::{tip}\nB\n:::\nC\n::::",
        "> **Note**\n>\n> A\n> > **Tip**\n> >\n> > B\n> C",
    ),
    "code in a card": (
        ":::{note}\n```python\n:::x\n```\n:::",
        "> **Note**\n>\n> ```python\n> :::x\n> ```",
    ),
    "math": (
        "```{math}\n:label: eq-one\na = b\n```",
        "$$\na = b\n$$",
    ),
    "labelled dollars": ("$$\na\n$$ (eq-one)\n\nb", "$$\na\n$$\n\nb"),
    "target": ("(here)=\n## Section two", "## Section two"),
    "comment": ("% hidden\nshown", "shown"),
    "ref": ("See {ref}`two`.", "See [Section two](#Section-two)."),
    "ref with text": ("{ref}`that <two>`", "[that](#Section-two)"),
    "ref elsewhere": ("{ref}`far`", "[Far away](03-two.ipynb)"),
    "ref to nothing": ("{ref}`that <nowhere>`", "that"),
    "numref": ("{numref}`Figure %s <fig-x>`", "Figure"),
    "doc": ("{doc}`03-two`", "[The second](03-two.ipynb)"),
    "doc with text": ("{doc}`it <03-two>`", "[it](03-two.ipynb)"),
    "cite": (
        "{cite}`vaswani2017`",
        "[Vaswani et al., 2017](https://arxiv.org/abs/1706.03762)",
    ),
    "cite two": (
        "{cite:p}`vaswani2017,ba2016`",
        "[Vaswani et al., 2017](https://arxiv.org/abs/1706.03762); "
        "Ba and Kiros, 2016",
    ),
    "inline math": ("{math}`x^2`", "$x^2$"),
    "other role": ("{term}`head`", "head"),
    "code is left": ("`{ref}` and `[a](03-two.md)`", None),
    "math is left": ("$[a](b)$", None),
    "fence is left": ("```python\n{ref}`x`\n(a)=\n```", None),
    "tilde fence": ("~~~\n:::{note}\n~~~", None),
    "link": ("[masks](03-two.md)", "[masks](03-two.ipynb)"),
    "link without text": ("[](03-two.md)", "[The second](03-two.ipynb)"),
    "link to a slug": ("[x](#section-two)", "[x](#Section-two)"),
    "link away": ("[x](https://example.org/a.md)", None),
    "link to a file": ("[x](../data/a.md)", f"[x]({BLOB}/data/a.md)"),
    "image": ("![x](_static/a.svg)", f"![x]({RAW}/book/_static/a.svg)"),
    "figure": (
        "```{figure} _static/a.svg\n:alt: A line\n:name: fig\nWords\n```",
        f"![A line]({RAW}/book/_static/a.svg)\n\nWords",
    ),
    "table": (
        ":::{list-table} Costs\n:header-rows: 1\n* - a\n  - b\n* - 1\n"
        "  - 2\n    more\n:::",
        "**Costs**\n\n| a | b |\n| --- | --- |\n| 1 | 2 more |",
    ),
    "dropped": ("a\n\n```{tableofcontents}\n```\n\nb", "a\n\nb"),
    "unknown": (":::{strange} Title\nWords\n:::", "**Title**\n\nWords"),
    "yaml options": (
        "```{note}\n---\nclass: dropdown\n---\nWords\n```",
        "<details>\n<summary>Note</summary>\n\nWords\n\n</details>",
    ),
    "unclosed": (":::{note}\nWords", "> **Note**\n>\n> Words"),
    "code block": (
        "```{code-block} sh\nmake book\n```",
        "```sh\nmake book\n```",
    ),
}


@pytest.fixture
def translator(book: Book) -> myst.Translator:
    book.chapter("02-one", "(two)=\n## Section two", title="The first")
    book.chapter(
        "03-two",
        "(far)=\n## Far away",
        code(
            "---\nmystnb:\n  figure: {caption: Words, name: fig-two}\n---\n1"
        ),
        title="The second",
    )
    book.write(
        "book/references.bib",
        "@article{vaswani2017, author = {Vaswani, Ashish and Shazeer, Noam "
        "and Parmar, Niki}, year = {2017}, title = {A}, journal = {J}, "
        "eprint = {1706.03762}}\n"
        "@article{ba2016, author = {Ba, Jimmy and Kiros, Ryan}, "
        "title = {B}, journal = {J}, year = {2016}}\n",
    )
    index = myst.index(
        read_book(book.root), book.root, read_project(book.root)
    )
    return myst.Translator("02-one.md", index)


@pytest.mark.parametrize("name", CASES)
def test_myst_becomes_plain_markdown(
    translator: myst.Translator, name: str
) -> None:
    source, expected = CASES[name]
    assert translator.translate(source) == (expected or source)
