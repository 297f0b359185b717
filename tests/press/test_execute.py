"""Executing chapters: when, how, and what is said of a failure."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest

from press.chapters import Cell, PressError, read_book
from press.execute import execute
from press.export import export
from press.keys import Package, key, used_by

from .conftest import Book, code, exported, make_book


def run(book: Book, *names: str, **options: Any) -> list[str]:
    """The chapters that were executed; problems are a failure."""
    said: list[str] = []
    export(book.root)
    problems = execute(book.root, list(names), say=said.append, **options)
    assert problems == []
    return [line.split(":")[0] for line in said if "executing" in line]


def outputs(book: Book, name: str) -> list[str]:
    path = book.root / "build" / "executed" / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    return [
        str(output.get("text") or output["data"]["text/plain"])
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Book:
    """Three chapters in a row, the last of which uses the first."""
    book = make_book(tmp_path_factory.mktemp("library"))
    book.chapter(
        "02-one", exported("ONE = 1\nTWO = 2"), code("ONE"), module="one"
    )
    book.chapter(
        "03-two",
        exported("from annotated.one import TWO\n\nFOUR = TWO + TWO"),
        module="two",
    )
    book.chapter("04-three", code("from annotated.two import FOUR\nFOUR"))
    book.chapter("05-alone", "## Aside", code("import os\nos.listdir()"))
    return book


def test_chapters_execute_once_and_again_with_what_they_use(
    library: Book,
) -> None:
    book = library
    everything = ["02-one", "03-two", "04-three", "05-alone"]
    assert sorted(run(book)) == everything
    assert outputs(book, "02-one") == ["1"]
    assert outputs(book, "04-three") == ["4"]
    assert outputs(book, "05-alone") == ["[]"]  # an empty folder
    assert run(book) == []

    # prose, even headings, which stand in the package as comments
    book.edit("book/02-one.md", "# A title", "# Another\n\n## Section")
    assert run(book) == []
    executed = book.read("build/executed/02-one.ipynb")
    assert "## Section" in executed
    assert outputs(book, "02-one") == ["1"]

    # code goes through modules: 04 uses two, which uses one
    book.edit("book/02-one.md", "TWO = 2", "TWO = 3")
    assert sorted(run(book)) == ["02-one", "03-two", "04-three"]
    assert outputs(book, "04-three") == ["6"]

    # a chapter's own cells, and no other chapter
    book.edit("book/05-alone.md", "os.listdir()", "len(os.listdir())")
    assert run(book) == ["05-alone"]
    assert run(book, "05", force=True) == ["05-alone"]


def test_what_a_page_leaves_among_temporary_files_goes_with_it(
    book: Book,
) -> None:
    book.chapter(
        "02-one", code("import tempfile"), code("tempfile.mkdtemp()")
    )
    run(book)
    [left] = outputs(book, "02-one")
    assert "press-" in left and not Path(eval(left)).exists()


def test_the_pages_fold_what_the_notebooks_fold(book: Book) -> None:
    book.chapter(
        "E1-one",
        code("import os"),
        exported("A = 1"),
        code("A"),
        module="engine.one",
    )
    run(book)
    path = book.root / "build/executed/E1-one.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    found = [c.metadata.get("tags") for c in cells if c.cell_type == "code"]
    assert found == [["hide-input"], ["export", "hide-input"], None]


def test_a_failure_names_its_cell_and_the_others_run(book: Book) -> None:
    book.chapter(
        "02-one", "## Here", code("1"), code("# a\n1 / 0"), code("2")
    )
    book.chapter("03-two", code("3"))
    said: list[str] = []
    problems = execute(book.root, say=said.append)
    assert problems == [
        'book/02-one.md, section "Here", code cell 2 (# a): '
        "ZeroDivisionError: division by zero"
    ]
    assert any("----> 2 1 / 0" in line for line in said)
    assert not any("\x1b" in line for line in said)
    assert outputs(book, "03-two") == ["3"]
    assert not (book.root / "build/executed/02-one.ipynb").exists()


@pytest.mark.parametrize(
    ("true_from", "executions"), [(1, 1), (2, 2), (3, 3), (4, 3)]
)
def test_a_page_with_a_false_claim_is_executed_again_alone(
    book: Book, true_from: int, executions: int
) -> None:
    tally = book.root / "tally"
    tally.write_text("")
    book.chapter(
        "02-one",
        code(
            f"with open({str(tally)!r}, 'a') as file:\n"
            "    file.write('x')\n"
            f"times = len(open({str(tally)!r}).read())"
        ),
        code(f"assert times >= {true_from}", "claims"),
    )
    said: list[str] = []
    problems = execute(book.root, say=said.append)
    assert len(tally.read_text()) == executions
    assert sum("again, alone" in line for line in said) == executions - 1
    assert [p.partition(": ")[2] for p in problems] == (
        ["AssertionError: times >= 4, where times = 3"]
        if true_from > executions
        else []
    )


def test_an_error_in_a_cell_is_no_false_claim(book: Book) -> None:
    book.chapter(
        "02-one", code("assert 1 > 2"), code("assert 1 < 2", "claims")
    )
    said: list[str] = []
    assert len(execute(book.root, say=said.append)) == 1
    assert sum("executing" in line for line in said) == 1


DIES = "import os\nos.write(2, b'out of luck')\nos._exit(3)"


def test_a_kernel_that_dies_and_a_slow_chapter_are_told(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    book.chapter("02-one", code("1"), code(DIES))
    book.chapter("03-two", code("2"))
    clock = SimpleNamespace(monotonic=itertools.count(0, 100).__next__)
    monkeypatch.setattr("press.execute.time", clock)
    said: list[str] = []
    problems = execute(book.root, jobs=1, say=said.append)
    assert len(problems) == 1
    assert "code cell 2 (import os): DeadKernelError" in problems[0]
    assert any("the kernel wrote: out of luck" in line for line in said)
    assert any("WARNING: ran 1.7 minutes" in line for line in said)


def test_figures_come_as_svg_and_png_and_always_the_same(
    book: Book,
) -> None:
    book.chapter(
        "02-one",
        code("import matplotlib.pyplot as plt\nplt.plot([1, 2]);"),
    )
    found = []
    for _ in range(2):
        run(book, force=True)
        path = book.root / "build/executed/02-one.ipynb"
        (output,) = nbformat.read(path, as_version=4).cells[-1].outputs
        assert set(output.data) >= {"image/svg+xml", "image/png"}
        found.append(output.data)
    assert found[0] == found[1]


def test_values_have_the_digits_that_one_reads(book: Book) -> None:
    cells = {
        "1 / 3": "0.3333",
        "[2000 / 7, {'loss': 0.5940859224404118}]":
            "[285.7, {'loss': 0.5941}]",
        "200_000 / 7": "28571",
        "7.771561172376096e-16, -1e-5 / 3": "(7.8e-16, -3.3e-06)",
        "0.0, 0.5, 3.0, 400.0, 1e6": "(0.0, 0.5, 3.0, 400.0, 1000000)",
        "import numpy as np\nnp.float64(36.899945353296275)": "36.9",
        "np.int64(3), np.float32(0.1), np.bool_(True)": "(3, 0.1, True)",
        "float('nan'), -float('inf')": "(nan, -inf)",
        "1, 'two', (1 + 2j), [1, 2]": "(1, 'two', (1+2j), [1, 2])",
    }  # fmt: skip
    book.chapter("02-one", *map(code, cells))
    run(book)
    assert outputs(book, "02-one") == list(cells.values())


def test_a_chapter_that_is_not_there_is_refused(book: Book) -> None:
    with pytest.raises(PressError, match="'17' is no chapter"):
        execute(book.root, ["17"])


# --- keys -----------------------------------------------------------------

PACKED = {"engine", "engine.packing"}
USES = {
    "import annotated.one": {"one"},
    "from annotated.one import f": {"one"},
    "from annotated import one": {"one"},
    "def f():\n    from annotated.one import g": {"one"},
    "run(['python', '-c', 'from annotated.one import f'])": {"one"},
    "run(['annotated', 'train', 'copy'])": {"cli"},
    "run('annotated train copy', shell=True)": {"cli"},
    "run(['python', '-m', 'annotated.one'])": {"one"},
    "run('python -m annotated train', shell=True)": {"cli"},
    "import_module('annotated.one')": {"one"},
    "'annotated by us'": {"cli"},  # too much is safe, too little is not
    "!annotated train copy": {"cli"},
    "%%bash\ncd x\nannotated train copy": {"cli"},
    "x = annotated": set(),
    "import torch\n'the book'": set(),
    "import annotated.engine.packing": PACKED,
    "from annotated.engine import packing": PACKED,
    "from annotated.engine.packing import pack": PACKED,
    "run(['python', '-m', 'annotated.engine.packing'])": PACKED,
    "from annotated import engine": {"engine"},
}


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """A package with one sub-package."""
    book = make_book(tmp_path_factory.mktemp("stock"))
    book.chapter("02-one", exported("ONE = 1"), module="one")
    book.chapter(
        "03-cli", exported("def main() -> None: ..."), module="cli"
    )
    for page in ("E1-packing", "E2-other"):
        name = f"engine.{page[3:]}"
        book.chapter(page, exported("TWO = 2"), module=name)
    export(book.root)
    return Package(book.root)


@pytest.mark.parametrize("source", USES)
def test_the_modules_that_code_uses_are_found(
    source: str, stock: Package
) -> None:
    cell = Cell("02-one.md", "", 1, "code", source, {})
    assert stock.loaded(used_by(cell)) == USES[source]


def test_words_in_exported_code_are_no_use() -> None:
    source = "'see annotated.one, or run: annotated train'\nimport {}"
    cell = Cell(
        "", "", 1, "code", source.format("os"), {"tags": ["export"]}
    )
    assert set(used_by(cell)) == set()
    source = source.format("annotated.two")
    cell = Cell("", "", 1, "code", source, {"tags": ["export:one"]})
    assert set(used_by(cell)) == {"two"}


@pytest.fixture
def shelf(book: Book) -> Book:
    """A chapter and a package, to be changed by a test."""
    book.chapter("02-one", exported("ONE = 1"), module="one")
    book.chapter(
        "03-cli",
        exported("""
            from annotated.one import ONE

            DATA = ("results.json", ONE)


            def main() -> None: ...
        """),
        module="cli",
    )
    book.chapter("04-book", code("%%bash\nannotated train copy"))
    book.write("book/results/a.json", "{}")
    export(book.root)
    return book


def keys(book: Book) -> dict[str, str]:
    package = Package(book.root)
    return {c.name: key(c, package) for c in read_book(book.root)}


def changed(book: Book, before: dict[str, str]) -> set[str]:
    export(book.root)
    after = keys(book)
    return {name for name in after if before[name] != after[name]}


def test_a_shell_cell_uses_the_command_line(shelf: Book) -> None:
    before = keys(shelf)
    shelf.edit("book/02-one.md", "ONE = 1", "ONE = 10")
    assert changed(shelf, before) == {"02-one", "03-cli", "04-book"}


def test_data_counts_where_code_reads_it(shelf: Book) -> None:
    before = keys(shelf)
    shelf.write("book/results/b.json", "{}")
    assert changed(shelf, before) == {"03-cli", "04-book"}


@pytest.mark.parametrize(
    "source",
    [
        "%%bash\nannotated translate --run tiny 'a b'",
        'Run.open(Path("tiny"))',
        'folder = root / "data/runs/tiny"',
    ],
)
def test_a_run_counts_where_code_opens_it(shelf: Book, source: str) -> None:
    shelf.chapter("05-run", code(source))
    shelf.chapter("06-other", code('open_data("tiny"), Path("tinier")'))
    weights = shelf.write("data/runs/tiny/model.safetensors", "1")
    about = shelf.write("data/runs/tiny/README.md", "1")
    before = keys(shelf)
    about.write_text("2")
    assert changed(shelf, before) == set()
    weights.write_text("2")
    assert changed(shelf, before) == {"05-run"}


def test_tags_count_where_they_change_the_execution(shelf: Book) -> None:
    before = keys(shelf)
    shelf.edit("book/02-one.md", "[export]", "[export, hide-input]")
    assert changed(shelf, before) == set()
    shelf.edit("book/02-one.md", "hide-input", "raises-exception")
    assert changed(shelf, before) == {"02-one"}


def test_versions_of_packages_count(
    shelf: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keys(shelf)
    monkeypatch.setattr("press.keys.metadata.version", lambda name: "9.9")
    assert changed(shelf, before) == {"02-one", "03-cli", "04-book"}


def test_alt_text_is_prose(book: Book) -> None:
    path = book.chapter("02-one", code("1"))
    before = keys(book)
    text = path.read_text().replace(
        "ipython3\n", 'ipython3\n---\nmystnb: {image: {alt: "x"}}\n---\n'
    )
    path.write_text(text)
    assert changed(book, before) == set()


def test_what_was_executed_is_noted_with_its_key_and_time(
    book: Book,
) -> None:
    book.chapter("02-one", code("1"))
    run(book)
    path = book.root / "build/executed/02-one.ipynb"
    record = nbformat.read(path, as_version=4).metadata["annotated"]
    assert record["key"] == keys(book)["02-one"]
    assert 0 < record["seconds"] < 60
