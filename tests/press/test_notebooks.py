"""Notebooks for Colab and Jupyter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from annotated.book.guesses import HIDDEN
from press.chapters import PressError, read_book
from press.fold import reading
from press.notebooks import SETUP, notebooks

from .conftest import Book, code, exported

ROOT = Path(__file__).resolve().parents[2]


def load(book: Book, name: str = "02-one") -> dict[str, Any]:
    return json.loads(book.read(f"book/notebooks/{name}.ipynb"))


def sources(notebook: dict[str, Any]) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"]]


def test_a_notebook_is_valid_and_empty_of_outputs(book: Book) -> None:
    book.chapter(
        "02-one", "Prose.", exported("ONE = 1"), code("ONE"), module="one"
    )
    notebooks(book.root)
    path = book.root / "book/notebooks/02-one.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs for cell in cells)
    assert all(cell.execution_count is None for cell in cells)
    assert cells[1].metadata.tags == ["export"]


def test_the_header_and_the_set_up_read_the_address_from_one_place(
    book: Book,
) -> None:
    book.chapter("02-one", code("1"))
    notebooks(book.root)
    header, setup, *_ = sources(load(book))
    assert (
        "(https://colab.research.google.com/github/someone/some-book/blob/"
        "main/book/notebooks/02-one.ipynb)" in header
    )
    assert "someone/some-book/blob/main/book/02-one.md)" in header
    archive = "https://github.com/someone/some-book/archive/refs"
    assert f"{archive}/heads/main.zip" in setup
    book.edit("pyproject.toml", "someone/some-book", "other/name")
    notebooks(book.root)
    assert "someone" not in book.read("book/notebooks/02-one.ipynb")


def test_the_set_up_installs_only_where_the_package_is_missing(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    from IPython.core.inputtransformer2 import TransformerManager

    book.chapter("02-one", code("1"))
    notebooks(book.root)
    setup = TransformerManager().transform_cell(sources(load(book))[1])
    calls: list[tuple[str, ...]] = []

    class Shell:
        def run_line_magic(self, *arguments: str) -> None:
            calls.append(arguments)

    for found, expected in [(object(), 0), (None, 1)]:
        monkeypatch.setattr(
            "importlib.util.find_spec", lambda name, found=found: found
        )
        calls.clear()
        exec(setup, {"get_ipython": Shell})
        assert len(calls) == expected
    assert calls[0][:1] == ("pip",)


@pytest.mark.parametrize(
    ("python", "torch", "told"),
    [
        (
            "3.9.18 (main)",
            "2.13.0+cpu",
            "needs Python 3.10 or newer, not 3.9",
        ),
        ("3.10.1 (main)", "2.2.2", "needs PyTorch 2.3 or newer, not 2.2.2"),
        ("3.14.0a1 (main)", "2.3.0a0+git", None),
    ],
)
def test_the_set_up_names_a_version_that_is_too_old(
    book: Book,
    monkeypatch: pytest.MonkeyPatch,
    python: str,
    torch: str,
    told: str | None,
) -> None:
    book.chapter("02-one", code("1"))
    notebooks(book.root)
    setup = sources(load(book))[1].replace("%pip", "# %pip")
    setup = f"{setup}\n    pass"
    monkeypatch.setattr("sys.version", python)
    monkeypatch.setattr("importlib.metadata.version", lambda name: torch)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    if told is None:
        exec(setup, {})
        return
    with pytest.raises(RuntimeError, match=told):
        exec(setup, {})


def test_the_set_up_asks_for_what_the_package_needs() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'requires-python = ">=3.10"' in project and "3, 10" in SETUP
    assert '"torch>=2.3"' in project and "2, 3" in SETUP


def metadata(book: Book, name: str) -> list[tuple[str, dict[str, Any]]]:
    """First line and metadata of the code cells, without the set-up."""
    return [
        (cell["source"][0].strip(), cell["metadata"])
        for cell in load(book, name)["cells"]
        if cell["cell_type"] == "code"
    ][1:]


FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}}


def test_folded_cells_are_folded_in_jupyter_and_on_colab(
    book: Book,
) -> None:
    book.chapter(
        "02-one",
        code("import math\nfrom os import path"),
        code("import sys", "show"),
        code(
            "---\ntags: [hide-input]\nmystnb: {image: {alt: A line}}\n---\n"
            "print(1)"
        ),
        code("print(2)", "hide-input"),
        code("%%bash\nls", "hide-input"),
        exported("A = B = 1"),
    )
    path = book.root / "book/02-one.md"
    path.write_text(
        path.read_text().replace("minutes", "module: one, minutes")
    )
    notebooks(book.root)
    tagged = {"tags": ["hide-input"], **FOLDED}
    assert metadata(book, "02-one") == [
        ("#@title Imports", tagged),
        ("import sys", {"tags": ["show"]}),
        ("#@title Code of this figure", tagged),
        ("#@title Code", tagged),
        ("%%bash", {k: v for k, v in tagged.items() if k != "cellView"}),
        ("A = B = 1", {"tags": ["export"]}),
    ]
    setup = load(book)["cells"][1]
    assert setup["source"][0].startswith("#@title Install the book's")
    assert setup["metadata"] == FOLDED


def test_a_pages_own_imports_are_told_from_those_of_its_module(
    book: Book,
) -> None:
    book.chapter(
        "E1-one",
        code("import os"),
        exported("import math"),
        code("import sys"),
        exported("import json"),
        module="engine.one",
    )
    notebooks(book.root)
    assert [line for line, _ in metadata(book, "E1-one")] == [
        "#@title Imports",
        "#@title Imports",
        "#@title Imports of this page",
        "#@title Imports",
    ]


def test_what_the_engine_room_exports_is_folded(book: Book) -> None:
    book.chapter(
        "E1-one",
        exported("import math\n\nA, B = 1, math.pi\n\n\ndef f(): ..."),
        exported("class C: ..."),
        exported(
            "class C(C):\n    def g(self): ...\n\n\nD = E = F = G = H = 1"
        ),
        code("f()"),
        code("X = 1", "export:engine.other", "show"),
        module="engine.one",
    )
    notebooks(book.root)
    tagged = {"tags": ["export", "hide-input"], **FOLDED}
    assert metadata(book, "E1-one") == [
        ("#@title annotated.engine.one: A, B, f", tagged),
        ("#@title annotated.engine.one: C", tagged),
        ("#@title annotated.engine.one: D, E, F, G …", tagged),
        ("f()", {}),
        ("X = 1", {"tags": ["export:engine.other", "show"]}),
    ]


def test_a_prediction_is_answered_on_a_click(book: Book) -> None:
    book.chapter("02-one", code("1 + 1", "hide-output"))
    book.chapter("03-two", code("1 + 1", "hide-cell"))
    notebooks(book.root)
    assert metadata(book, "02-one") == [
        ("1 + 1", {"tags": ["hide-output"]})
    ]
    header, setup, *_, cell = sources(load(book))
    assert "write your guess first" in header
    assert setup.endswith("# and hidden results are folded from now on")
    assert cell == f"1 + 1\n{HIDDEN}"
    ((_, both),) = metadata(book, "03-two")
    assert both["jupyter"] == {
        "source_hidden": True,
        "outputs_hidden": True,
    }
    for name in ("02-one", "03-two"):
        path = book.root / f"book/notebooks/{name}.ipynb"
        nbformat.validate(nbformat.read(path, as_version=4))


@pytest.mark.parametrize(
    ("prose", "folded", "open_"),
    [
        ("It is two.\n\nNow three.", "It is two.", "Now three."),
        ("$e^0$ is 1.\n\n## Next", "$e^0$ is 1.", "## Next"),
        ("Three things:\n\n- a\n- b\n\nGo on.",
         "Three things:\n\n- a\n- b", "Go on."),
        ("1. a\n\n   more of a\n\n2. b\n\nGo on.",
         "1. a\n\n   more of a\n\n2. b", "Go on."),
        ("What is next:\n\nThis.", "", "What is next:\n\nThis."),
        ("## Next\n\nThis.", "", "## Next\n\nThis."),
        (":::{note}\nThis.\n:::", "", ":::{note}\nThis.\n:::"),
        ("| a |\n|---|", "", "| a |\n|---|"),
        (":::{reading}\nIt is two.\n\nSo it is even.\n:::\n\nGo on.",
         "It is two.\n\nSo it is even.", "Go on."),
        ("::::{reading}\nTwo.\n\n:::{note}\nEven.\n:::\n::::",
         "Two.\n\n:::{note}\nEven.\n:::", ""),
    ],
)  # fmt: skip
def test_what_is_said_of_a_hidden_output_is_folded_with_it(
    book: Book, prose: str, folded: str, open_: str
) -> None:
    book.chapter("02-one", code("1 + 1", "hide-output"), prose)
    [chapter] = read_book(book.root)
    assert reading(chapter, len(chapter.cells) - 1) == (folded, open_)
    notebooks(book.root)
    last = "".join(load(book)["cells"][-1]["source"])
    assert last.startswith("<details>") is bool(folded)
    assert last.count("</details>") == last.count("<details>")


def test_what_is_said_of_a_shown_output_stays_open(book: Book) -> None:
    book.chapter("02-one", code("1 + 1"), "It is two.")
    [chapter] = read_book(book.root)
    assert reading(chapter, len(chapter.cells) - 1) == ("", "It is two.")


def test_a_second_run_writes_nothing(book: Book) -> None:
    book.chapter("02-one", "Prose.", code("1"), code("1"))
    assert notebooks(book.root) == [
        "wrote book/notebooks/02-one.ipynb",
        "wrote book/notebooks/recall/02-one.ipynb",
    ]
    assert notebooks(book.root) == []
    assert notebooks(book.root, check=True) == []


def test_ids_follow_their_cells(book: Book) -> None:
    path = book.chapter("02-one", code("1"), code("2"), code("2"))
    notebooks(book.root)
    before = [cell["id"] for cell in load(book)["cells"]]
    assert len(set(before)) == len(before)
    assert all(re.fullmatch(r"[a-z0-9-]{1,64}", name) for name in before)
    text = path.read_text()
    path.write_text(
        text.replace("# A title", "# A title\n\n```{code-cell}\n0\n```\n")
    )
    notebooks(book.root)
    after = [cell["id"] for cell in load(book)["cells"]]
    assert len(after) == len(before) + 1
    assert [name for name in after if name in before] == before


def test_what_is_not_executed_is_no_code(book: Book) -> None:
    book.chapter("02-one", code("exit()", "skip-execution"))
    notebooks(book.root)
    assert load(book)["cells"][-1]["cell_type"] == "markdown"
    assert sources(load(book))[-1] == "```python\nexit()\n```"


def test_the_caption_of_a_figure_stands_below_its_code(book: Book) -> None:
    figure = '---\nmystnb:\n  figure: {caption: "A *line*."}\n---\n1'
    book.chapter("02-one", code("0"), code(figure))
    notebooks(book.root)
    assert sources(load(book))[-2:] == ["1", "**Figure 2.1.** A *line*."]


def test_a_notebook_of_no_chapter_is_told_and_removed(book: Book) -> None:
    path = book.chapter("02-one", code("1"))
    notebooks(book.root)
    path.rename(path.with_name("03-one.md"))
    assert sorted(notebooks(book.root, check=True)) == [
        "book/notebooks/02-one.ipynb comes from no chapter",
        "book/notebooks/03-one.ipynb is missing",
        "book/notebooks/recall/02-one.ipynb comes from no chapter",
        "book/notebooks/recall/03-one.ipynb is missing",
    ]
    assert "removed book/notebooks/02-one.ipynb" in notebooks(book.root)
    book.write("book/notebooks/mine.ipynb", "{}")
    with pytest.raises(PressError, match=r"mine\.ipynb was not made by"):
        notebooks(book.root)


def test_a_missing_address_is_told(book: Book) -> None:
    book.chapter("02-one")
    book.write("pyproject.toml", "[project]\n")
    with pytest.raises(PressError, match="Repository"):
        notebooks(book.root)
