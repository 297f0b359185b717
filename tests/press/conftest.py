"""Tiny books in a temporary folder."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from press.execute import execute
from press.export import export
from press.modules import MOVING
from press.site import site

BOOK = Path(__file__).resolve().parents[2] / "book"
HEAD = """\
---
jupytext:
  text_representation: {{extension: .md, format_name: myst}}
kernelspec: {{name: python3, display_name: Python 3}}
annotated: {{{facts}}}
---

# {title}
"""


def code(source: str, *tags: str) -> str:
    """A code cell of a chapter."""
    head = f":tags: [{', '.join(tags)}]\n\n" if tags else ""
    source = textwrap.dedent(source).strip("\n")
    return f"```{{code-cell}} ipython3\n{head}{source}\n```"


def exported(source: str) -> str:
    return code(source, "export")


@dataclass
class Book:
    """A repository with a book in it, and nothing else."""

    root: Path

    def chapter(
        self,
        name: str,
        *cells: str,
        module: str | None = None,
        minutes: int = 1,
        room: str | None = None,
        title: str = "A title",
    ) -> Path:
        facts = f"minutes: {minutes}"
        facts += f", module: {module}" if module else ""
        facts += f", room: {room}" if room else ""
        text = HEAD.format(facts=facts, title=title)
        return self.write(
            f"book/{name}.md", "\n\n".join([text, *cells]) + "\n"
        )

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def read(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8")

    def edit(self, name: str, old: str, new: str) -> None:
        text = self.read(name)
        assert text.count(old) == 1, (name, old)
        self.write(name, text.replace(old, new))

    def files(self, folder: str = "annotated") -> dict[str, bytes]:
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in sorted((self.root / folder).rglob("*"))
            if path.is_file()
        }


def make_book(root: Path) -> Book:
    book = Book(root)
    book.write(
        "pyproject.toml",
        "[project.urls]\n"
        'Repository = "https://github.com/someone/some-book"\n',
    )
    (root / "book").mkdir()
    return book


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return make_book(tmp_path)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Book:
    """A book with this book's settings and one of each thing, set once."""
    return set_once(tmp_path_factory.getbasetemp() / "built")


@cache
def set_once(root: Path) -> Book:
    """Two folders of tests have the fixture."""
    root.mkdir()
    book = make_book(root)
    for name in ("conf.py", "index.md", "references.md", "references.bib"):
        shutil.copy(BOOK / name, book.root / "book" / name)
    shutil.copytree(BOOK / "_static", book.root / "book" / "_static")
    (book.root / MOVING).mkdir(parents=True)
    asked = "03-two#what-is-wide\tscroll sideways; broad formula\n"
    book.write("book/_static/questions.tsv", asked)
    (book.root / "book/results").mkdir()
    runs = [f"multi30k-{name}" for name in ("cpu", "seed1", "seed2")]
    for name in (*runs, "everyday-en-de", "everyday-en-fr"):
        run = f"book/results/{name}.json"
        shutil.copy(BOOK.parent / run, book.root / run)
    for name in ("kit", "film"):
        path = f"{MOVING}/{name}.mjs"
        shutil.copy(BOOK.parent / path, book.root / path)
    book.chapter(
        "00-preface",
        "Words about the book, which has [two](02-one.md) chapters and "
        "[this page](00-preface.md).",
        title="Preface",
    )
    book.chapter("02-one", *ONE, module="one", title="One")
    book.chapter("03-two", *TWO, minutes=3, title="Two")
    book.chapter(
        "A1-notation", "(words-02)=\n## Words of one", title="Glossary"
    )
    export(book.root)
    assert execute(book.root, say=lambda line: None) == []
    assert site(book.root) == "site/ holds 10 pages"
    return book


FIGURE = """
---
tags: [hide-input, cover]
mystnb:
  image: {alt: "A rising line"}
  figure: {caption: "A line that *rises*.", name: fig-line}
---
import matplotlib.pyplot as plt

plt.plot([1, 2]);
"""
ANSWER = """
---
tags: [hide-input, hide-output]
mystnb:
  image: {alt: "A falling line"}
  figure: {caption: "A line that falls."}
---
import matplotlib.pyplot as plt

plt.plot([2, 1]);
"""
MOVES = """
---
tags: [hide-input, translator]
mystnb:
  image: {alt: "A still"}
  figure: {caption: "It *moves*.", name: fig-moving-film}
---
import base64
import json

from IPython.display import display

still = '<svg xmlns="http://www.w3.org/2000/svg" width="9pt" height="9pt"/>'
film = dict(
    frames=[dict(step=s, text="ba" * s, weights=[[1]] * 3) for s in (0, 1)],
    losses=[2, 1], rows=["b", "a", "end"], columns=["a"], source="ab",
    target="ba", things="letters", map="m", act="At", question="When?",
)
html = (
    f'<figure class="moves moves-film">{still}'
    '<script type="application/json" class="moves-data">'
    f"{json.dumps(film)}</script>"
    '<script type="text/plain" class="moves-large" data-name="a">'
    f"{base64.b64encode(b'ABC').decode()}</script>"
    "<script>0</script></figure>"
)
display({"image/svg+xml": still, "text/html": html}, raw=True)
"""
ONE = [
    code("import math", "hide-input"),
    "*Needs nothing.*\n\n**What it is for.** One idea carries it. "
    "The rest follows, as one will see below.",
    ":::{admonition} Paper §3\n:class: paper\nIt says $a$.\n:::",
    "## Section\n\nSee [the next](03-two.md), [moved](03-two.md#film:step=1), "
    "and [](#fig-line).",
    "{cite}`vaswani2017attention` is cited, and "
    "[Post](https://arxiv.org/abs/1804.08771) linked.",
    code("ONE = 1", "export", "hide-input"),
    code("HELPER = 2", "hide-input"),
    code(FIGURE),
    ":::{admonition} Predict: how far apart?\n:class: predict\n"
    "How large is a *score*?\n\n"
    "- $8$ — the variance is $d_k$, not its root.\n"
    "- about 3 — ✓ the root of `8`.\n:::",
    code("print('no longer hidden')", "hide-output"),
    code("print('above the figure')", "hide-input", "hide-output"),
    code(ANSWER),
    "This is *what it means*:\n\n- one thing.\n- another.\n\nGo on.",
    "## Exercises",
    ":::{exercise} Predict: more (★, 1 minute)\n:label: ex-one-think\n"
    "Why?\n:::",
    ":::{solution} ex-one-think\n:class: dropdown\n"
    "$$x^2 = \\boldsymbol{y}$$\n\n"
    "```python\nprint(1)\n```\n:::",
    ":::{admonition} A hint\n:class: dropdown\nLook at [](#ex-one-think).\n"
    ":::",
]
WIDE = "+".join(f"x_{{{n}}}" for n in range(60))
TWO = [
    code(MOVES),
    code("import sys\n!echo $((40 + 2))"),
    code(
        "from IPython.display import Markdown\n"
        "Markdown('| **a** | b |\\n|---|---|\\n| 1 | `c` |')"
    ),
    "## What is wide\n\n`ONE` is `annotated.one.ONE`. Back to [](02-one.md#fig-line) and "
    "[exercise](02-one.md#ex-one-think).",
    code(
        "import pandas as pd\n\n"
        "pd.DataFrame([[n / 7 for n in range(24)]] * 3)"
    ),
    code("print('word ' * 100)\nprint('-' * 90)"),
    f"$${WIDE}$$",
    "| " + " | ".join(f"column_number_{n}" for n in range(12)) + " |\n"
    "|" + "---|" * 12 + "\n| " + " | ".join(["`some.name`"] * 12) + " |",
    "| elsewhere | here |\n|---|---|\n| `annotated.one.ONE` | one |\n"
    "| 1 | `annotated.one.ONE` |",
    "### `a_heading.that_is.one_very_long_name_and_does_not_break_at_all`",
    "## Words in many columns\n\nColumns that are named alike.\n\n"
    + "| "
    + " | ".join(f"head{n}" for n in range(7))
    + " |\n"
    + "|"
    + "---|" * 7
    + (
        "\n| "
        + " | ".join(["`some.very_long.name_of_it`, or none"] * 7)
        + " |"
    )
    * 12,
    "## Questions\n\n"
    + "\n\n".join(
        f":::{{admonition}} {name}\n:class: predict\nWhich?\n\n"
        "- this — it is not.\n- that — ✓ it is.\n:::"
        for name in ("The first", "The second")
    ),
    "How many dots?\n\n:::{guess}\n`dots` in all | about # dots | ± 5\n:::",
    code("print('about 42 dots')", "hide-output"),
]
