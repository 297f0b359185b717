"""What the exporter writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from press.__main__ import main
from press.chapters import PressError, read_book
from press.export import MARK, export
from press.keys import Package

from .conftest import Book, code, exported

REPOSITORY = Path(__file__).resolve().parents[2]
LISTS = """
from collections.abc import Callable, Iterable, Iterator, MutableMapping

LISTS = (Callable, Iterable, Iterator, MutableMapping, Sequence, nn)
ALSO = (os, torch)
"""


def test_a_module_is_what_its_chapters_say_in_their_order(
    book: Book,
) -> None:
    book.chapter(
        "02-one",
        "## Why `this`\n\nProse.",
        exported("""
            import math
            from collections.abc import Sequence

            TAU = 2 * math.pi


            def turn(angles: Sequence[float]) -> list[float]:
                return [angle % TAU for angle in angles]
        """),
        code("turn([7.0])"),
        exported("_HIDDEN = 1"),
        module="angles",
        title="Angles & more",
    )
    book.chapter(
        "04-two",
        "## Again",
        exported("""
            from __future__ import annotations

            from annotated.shapes import Square

            # a decision, kept
            def side(square: Square) -> float:
                return math.sqrt(square.area)
        """),
        module="angles",
    )
    book.chapter(
        "03-shapes",
        exported("""
            class Square:
                area = 4.0
        """),
        module="shapes",
    )
    export(book.root)
    assert (
        book.read("annotated/angles.py")
        == f'''\
"""{MARK}"""

from __future__ import annotations

import math
from collections.abc import Sequence

from annotated.shapes import Square

__all__ = ["TAU", "turn", "side"]


# 02-one.md: Why this
TAU = 2 * math.pi


def turn(angles: Sequence[float]) -> list[float]:
    return [angle % TAU for angle in angles]


_HIDDEN = 1


# 04-two.md: Again
# a decision, kept
def side(square: Square) -> float:
    return math.sqrt(square.area)
'''
    )
    assert sorted(book.files()) == [
        "annotated/__init__.py",
        "annotated/angles.py",
        "annotated/py.typed",
        "annotated/shapes.py",
    ]


def test_a_room_is_introduced_with_the_pages_of_its_modules(
    book: Book,
) -> None:
    book.chapter("02-one", exported("A = 1"), module="angles")
    book.chapter("E1-two", exported("B = 1"), module="yard.walls")
    book.chapter("E2-three", exported("C = 1"), module="yard.gate")
    book.chapter("E3-four", exported("D = 1"), module="yard.walls")
    project = book.root / "pyproject.toml"
    about = (
        '[tool.annotated.about]\nyard = "What is outside."\nstory = "In."'
    )
    project.write_text(f"{project.read_text()}\n{about}\n")
    export(book.root)
    order = "In the order of the book: "
    assert book.read("annotated/yard/__init__.py") == (
        f'"""What is outside.\n\n{order}walls (E1), gate (E2).\n\n{MARK}\n"""\n'
    )
    inside = f'"""In.\n\n{order}angles (02).\n\n{MARK}\n"""\n'
    assert book.read("annotated/__init__.py").startswith(inside)
    assert export(book.root, check=True) == []


def test_many_names_fill_the_lines_of_all(book: Book) -> None:
    names = [f"NUMBER_{i}" for i in range(12)]
    text = "\n".join(f"{n} = 0" for n in names)
    book.chapter("02-one", exported(text), module="one")
    export(book.root)
    text = book.read("annotated/one.py")
    lines = text[text.index("__all__") : text.index("  # fmt: skip")]
    assert len(lines.splitlines()) == 5
    assert eval(lines.partition("=")[2]) == names


def test_imports_are_merged_in_the_order_that_ruff_asks_for(
    book: Book,
) -> None:
    book.chapter(
        "02-one",
        exported("""
            import torch
            import os
            from torch import nn
            from collections.abc import Sequence
        """),
        exported(LISTS),
        exported("""
            import os
            import numpy as np
            from torch import Tensor, nn, float32
            from torch.nn import functional as F
            from torch import nn as layers
            from annotated.early import A_CONSTANT, zeta, Alpha, beta

            ALL = (np, Tensor, nn, float32, F, layers, A_CONSTANT)
            MORE = (zeta, Alpha, beta)
        """),
        module="late",
    )
    book.chapter(
        "01-early",
        exported("A_CONSTANT = Alpha = beta = zeta = 1"),
        module="early",
    )
    export(book.root)
    text = book.read("annotated/late.py")
    assert text[text.index("import os") : text.index("\n\n__all__")] == (
        "import os\n"
        "from collections.abc import (\n"
        "    Callable,\n"
        "    Iterable,\n"
        "    Iterator,\n"
        "    MutableMapping,\n"
        "    Sequence,\n"
        ")\n"
        "\n"
        "import numpy as np\n"
        "import torch\n"
        "from torch import Tensor, float32, nn\n"
        "from torch import nn as layers\n"
        "from torch.nn import functional as F\n"
        "\n"
        "from annotated.early import A_CONSTANT, Alpha, beta, zeta"
    )
    lint(book)


def lint(book: Book) -> None:
    """Ruff finds nothing in the package, as this repository sets it."""
    command = [sys.executable, "-m", "ruff"]
    config = ["--config", str(REPOSITORY / "pyproject.toml")]
    for step in (["check"], ["format", "--check"]):
        subprocess.run(
            [*command, *step, *config, str(book.root / "annotated")],
            check=True,
        )


def test_a_class_that_goes_on_is_one_class(book: Book) -> None:
    """As it stands in a notebook, and merged."""
    begin = exported("""
        from dataclasses import dataclass


        class Base:
            def leave(self) -> str:
                return "base"


        @dataclass
        class Run(Base):
            \"\"\"A run.\"\"\"

            steps: int = 0

            def step(self) -> None:
                self.steps += 1


        LAST = 9
    """)
    more = exported("""
        import math


        def root(number: float) -> float:
            return math.sqrt(number)


        # a decision, kept
        class Run(Run):
            # why this way
            def far(self) -> float:
                return root(self.steps)

            @property
            def name(self) -> str:
                return super().leave() + str(self.steps)


        FIRST = 1
    """)
    last = exported("""
        class Run(Run):
            def over(self) -> bool:
                return self.steps > LAST
    """)
    use = "run = Run(4)\nrun.step()\nprint(run.far(), run.name, run.over())"
    book.chapter("02-one", "## Begin", begin, more, module="one")
    book.chapter("03-two", "## Go `on`", last, module="one")
    export(book.root)
    assert (
        book.read("annotated/one.py").partition("__all__")[2]
        == '''\
 = ["Base", "Run", "LAST", "root", "FIRST"]


# 02-one.md: Begin
class Base:
    def leave(self) -> str:
        return "base"


@dataclass
class Run(Base):
    """A run."""

    steps: int = 0

    def step(self) -> None:
        self.steps += 1

    # a decision, kept
    # why this way
    def far(self) -> float:
        return root(self.steps)

    @property
    def name(self) -> str:
        return super().leave() + str(self.steps)

    # 03-two.md: Go on
    def over(self) -> bool:
        return self.steps > LAST


LAST = 9


def root(number: float) -> float:
    return math.sqrt(number)


FIRST = 1
'''
    )
    lint(book)
    cells = [cell for page in read_book(book.root) for cell in page.code]
    notebook = "\n".join(cell.source for cell in cells)
    for program in (notebook, "from annotated.one import Run"):
        done = subprocess.run(
            [sys.executable, "-c", f"{program}\n{use}"],
            cwd=book.root,
            capture_output=True,
            text=True,
        )
        assert done.stdout == "2.23606797749979 base5 False\n", done.stderr
    # headings in the package are prose, inside a class too
    before = Package(book.root).sources["one"]
    book.edit("book/03-two.md", "Go `on`", "Further")
    export(book.root)
    assert "# 03-two.md: Further" in book.read("annotated/one.py")
    assert Package(book.root).sources["one"] == before


def test_a_tag_names_the_module_that_a_cell_goes_to(book: Book) -> None:
    book.chapter(
        "02-one",
        code(
            "def draw() -> int:\n    return 1",
            "export:book.plots",
            "hide-input",
        ),
        code('__version__ = "1.2.3"', "export:__init__"),
        code(
            """
            import sys

            from annotated.book.plots import draw

            sys.exit(draw())
            """,
            "export:__main__",
            "skip-execution",
        ),
    )
    export(book.root)
    assert "def draw" in book.read("annotated/book/plots.py")
    assert '__all__ = ["__version__"]' in book.read("annotated/__init__.py")
    assert "__all__" not in book.read("annotated/__main__.py")
    done = subprocess.run(
        [sys.executable, "-m", "annotated"], cwd=book.root
    )
    assert done.returncode == 1


def test_a_second_run_touches_nothing(book: Book) -> None:
    book.chapter("02-one", exported("ONE = 1"), module="one")
    first = export(book.root)
    assert first == [
        "wrote annotated/__init__.py",
        "wrote annotated/one.py",
        "wrote annotated/py.typed",
    ]
    times = [p.stat().st_mtime_ns for p in book.root.glob("annotated/*")]
    assert export(book.root) == []
    assert times == [
        p.stat().st_mtime_ns for p in book.root.glob("annotated/*")
    ]


def test_prose_between_cells_changes_no_byte(book: Book) -> None:
    path = book.chapter(
        "02-one", "## Here", exported("ONE = 1"), module="one"
    )
    export(book.root)
    before = book.files()
    text = path.read_text().replace("## Here", "Prose\n\n## Here\n\nMore.")
    path.write_text(text)
    assert export(book.root) == []
    assert book.files() == before


@pytest.mark.parametrize(
    "settings",
    [
        {"PYTHONHASHSEED": "1", "LC_ALL": "C", "PYTHONUTF8": "0"},
        {"PYTHONHASHSEED": "2", "LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo"},
    ],
)
def test_the_bytes_are_the_same_in_any_folder_and_locale(
    book: Book, tmp_path: Path, settings: dict[str, str]
) -> None:
    book.chapter(
        "02-one",
        "## Größe",
        exported("""
            from collections.abc import Set, Mapping, Sequence

            NAMES: Set[str] = {"ä", "→", "б"}
            OTHER = (Mapping, Sequence)
        """),
        module="one",
        title="Maße",
    )
    book.write("book/results/b.json", '{"z": "ü", "a": 1}')
    export(book.root)
    before = book.files()
    for name in before:
        (book.root / name).unlink()
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), **settings}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-m", "press", "--root", str(book.root)]
    subprocess.run([*command, "export"], check=True, env=env, cwd=elsewhere)
    after = book.files()
    assert after == before
    assert b"\r" not in b"".join(after.values())


def test_stale_modules_go_and_strangers_stay(book: Book) -> None:
    path = book.chapter("02-one", exported("ONE = 1"), module="one")
    export(book.root)
    path.write_text(path.read_text().replace("module: one", "module: uno"))
    assert export(book.root) == [
        "wrote annotated/uno.py",
        "removed annotated/one.py",
    ]
    book.write("annotated/mine.py", "ONE = 1\n")
    with pytest.raises(
        PressError, match=r"annotated/mine\.py was not made"
    ):
        export(book.root)
    assert (book.root / "annotated/mine.py").is_file()


def test_the_package_carries_the_registry_and_the_ledger(
    book: Book,
) -> None:
    book.chapter("02-one", exported("ONE = 1"), module="one")
    book.write("data/registry.toml", "[copy]\nlicence = 'ours'\n")
    book.write("book/results/b.json", '{"bleu": 36.5, "a": "ü"}')
    book.write("book/results/a.json", '{"bleu": 1}')
    export(book.root)
    assert book.read("annotated/registry.toml").startswith("[copy]")
    runs = json.loads(book.read("annotated/book/results.json"))
    assert list(runs) == ["a", "b"]
    assert runs["b"]["bleu"] == 36.5
    assert "ü" in book.read("annotated/book/results.json")
    (book.root / "data/registry.toml").unlink()
    assert export(book.root) == ["removed annotated/registry.toml"]
    book.write("book/results/c.json", "{")
    with pytest.raises(PressError, match=r"book/results/c\.json"):
        export(book.root)


def test_the_command_line_exports_checks_and_refuses(
    book: Book, capsys: pytest.CaptureFixture[str]
) -> None:
    path = book.chapter("02-one", exported("ONE = 1"), module="one")
    press = ["--root", str(book.root), "export"]
    assert main([*press, "--check"]) == 1
    assert "annotated/one.py is missing" in capsys.readouterr().err
    assert main(press) == 0
    assert main([*press, "--check"]) == 0
    path.write_text(path.read_text().replace("ONE = 1", "ONE = ("))
    capsys.readouterr()
    assert main(press) == 2
    output = capsys.readouterr()
    assert "does not parse" in output.err
    assert "Traceback" not in output.err
    assert book.read("annotated/one.py").count("ONE = 1") == 1


def test_the_paper_map_travels_with_the_package(book: Book) -> None:
    book.write(
        "book/paper.yml", '- {item: "3 p1", about: ü}\n- {item: b}\n'
    )
    line = "- {item: 3 p1, chapter: 03-masks, symbol: null}\n"
    book.write("book/paper.d/03-masks.yml", line)
    export(book.root)
    first, second = json.loads(book.read("annotated/book/paper.json"))
    assert first["about"] == "ü"
    assert first["covered"] == [{"chapter": "03-masks", "symbol": None}]
    assert second["covered"] == []


@pytest.mark.parametrize("text", ["- [", "- only a name\n"])
def test_a_paper_map_that_is_none_is_named(book: Book, text: str) -> None:
    book.write("book/paper.yml", "- {item: a}\n")
    book.write("book/paper.d/03-masks.yml", text)
    with pytest.raises(PressError, match=r"book/paper\.d/03-masks\.yml"):
        export(book.root)
