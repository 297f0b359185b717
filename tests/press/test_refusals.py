"""What the exporter refuses, and where it says that the fault is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from press.chapters import PressError, read_book
from press.export import export

from .conftest import Book, code, exported

# what an exported cell holds → what is said about it
CELLS = {
    "does not parse": ("def f(:\n    pass", "line 1 does not parse"),
    "new syntax": ("type A = int", "line 1 does not parse"),
    "a call": ("print(1)", r"line 1 \(print\(1\)\) is no import"),
    "a loop": ("ONE = 1\nfor i in ():\n    pass", "line 2 .* is no import"),
    "a docstring": ('"""Words."""', "line 1 .* is no import"),
    "an assert": ("assert True", "is no import, definition or constant"),
    "a condition": ("if True:\n    ONE = 1", "is no import"),
    "a try": (
        "try:\n    import torch\nexcept ImportError:\n    torch = None",
        "is no import",
    ),
    "unpacking": ("A, *B = 1, 2", "is no import"),
    "an attribute": ("import math\nmath.x = 1", "line 2 .* is no import"),
    "augmented": ("A = 1\nA += 1", r"line 2 \(A \+= 1\) is no import"),
    "no value": ("A: int", "is no import"),
    "deletion": ("A = 1\ndel A", "is no import"),
    "__all__": ('__all__ = ["A"]', "'__all__' is the press's to write"),
    "__version__": ('__version__ = "1"', "'__version__' is the press's"),
    "main guard": ('if __name__ == "__main__":\n    A = 1', "is no import"),
    "two on a line": ("import math; A = math.pi", "line 1 holds two"),
    "late import": (
        "A = 1\nimport math\nB = math.pi",
        "line 2: imports stand first",
    ),
    "twice in a cell": (
        "def f() -> int:\n    return 1\n\n\nf = 2",
        "'f' is in annotated.one already",
    ),
    "import and name": (
        "import math\n\nA = math.pi\nmath = 1",
        "'math' is in annotated.one already",
    ),
    "two origins": (
        "from math import sqrt\nfrom cmath import sqrt\n\nA = sqrt",
        "'sqrt' is in annotated.one already",
    ),
    "undefined": (
        "def f() -> int:\n    return nowhere",
        "Undefined name `nowhere`",
    ),
    "undefined type": ("def f(x: Tensor) -> None: ...", "name `Tensor`"),
    "used too early": ("B = A\nA = 1", "Undefined name `A`"),
    "of the notebook": ("X = get_ipython()", "name `get_ipython`"),
    "annotation too early": (
        "class A:\n    def f(self) -> A: ...",
        "line 2: Undefined name `A` here, only further down",
    ),
    "unused": ("import math\n\nA = 1", "`math` imported but unused"),
    "unused as": ("import numpy as np\n\nA = 1", "imported but unused"),
    "unused from": ("from math import pi\n\nA = 1", "`math.pi` imported"),
    "unused local": ("def f() -> None:\n    x = 1", "`x` is assigned to"),
    "unknown module": (
        "from annotated.nothing import f\n\nA = f",
        "annotated.nothing, which no chapter exports",
    ),
    "unknown inside": (
        "def f() -> None:\n    import annotated.nothing",
        "annotated.nothing, which no chapter exports",
    ),
    "unknown name": (
        "from annotated.zero import missing\n\nA = missing",
        "'missing', which annotated.zero does not define",
    ),
    "unknown of all": (
        "from annotated import missing\n\nA = missing",
        "'missing', which annotated.__init__ does not define",
    ),
    "unknown in a package": (
        "from annotated.engine import nothing\n\nA = nothing",
        "annotated.engine, which no chapter exports",
    ),
    "unknown in a module of a package": (
        "from annotated.engine.two import missing\n\nA = missing",
        "'missing', which annotated.engine.two does not define",
    ),
    "itself": (
        "from annotated.one import A\n\nB = A",
        "annotated.one into itself",
    ),
    "relative": ("from .zero import ZERO\n\nA = ZERO", "relative import"),
    "relative inside": (
        "def f() -> None:\n    from . import zero",
        "line 2: relative import",
    ),
    "star": ("from math import *", "import names, not \\*"),
    "magic": ("%matplotlib inline", "magics are not exported"),
    "shell": ("ONE = 1\n!ls", "'!ls': IPython's magics"),
    "help": ("len?", r"'len\?': IPython's magics"),
    "cell magic": ("%%time\nONE = 1", "'%%time': IPython's magics"),
    "wide": ("A = '" + "x" * 71 + "'", "line 1 has 77 columns, not 76"),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_that_cannot_be_exported_is_named(
    book: Book, name: str
) -> None:
    source, message = CELLS[name]
    book.chapter("01-zero", exported("ZERO = 0"), module="zero")
    book.chapter(
        "02-one",
        "## The section",
        code("1 + 1"),
        exported(source),
        module="one",
    )
    book.chapter(
        "03-two",
        exported("TWO = 2"),
        code("LATER = 3", "export:zero"),
        module="engine.two",
    )
    with pytest.raises(PressError, match=message) as error:
        export(book.root)
    first = source.splitlines()[0].strip()
    place = (
        f'book/02-one.md, section "The section", code cell 2 ({first}): '
    )
    assert any(line.startswith(place) for line in error.value.problems)
    assert not (book.root / "annotated").exists()


@pytest.mark.parametrize(
    "source",
    [
        "PAD, BOS = 0, 1",
        "A = ('" + "x" * 68 + "')",
        "from typing import overload\n\n\n@overload\n"
        "def f(x: int) -> int: ...\n@overload\ndef f(x: str) -> str: ...\n"
        "def f(x):\n    return x",
        "import os\nimport os.path\n\nA = os.path",
        "from annotated import zero\n\nA = zero",
        "def f() -> int:\n    from annotated.zero import ZERO\n\n"
        "    return ZERO",
        "A: 'B' = 1\n\n\nclass B: ...",
        "from annotated.engine import two\n\nA = two",
        "from annotated.engine.two import TWO\n\nA = TWO",
        "import annotated.engine.two\n\nA = annotated.engine.two",
    ],
)
def test_a_cell_that_can_be_exported_is_not_refused(
    book: Book, source: str
) -> None:
    book.chapter("01-zero", exported("ZERO = 0"), module="zero")
    book.chapter("02-one", exported(source), module="one")
    book.chapter("03-two", exported("TWO = 2"), module="engine.two")
    assert "wrote annotated/one.py" in export(book.root)
    run = subprocess.run(
        [sys.executable, "-c", "import annotated.one"], cwd=book.root
    )
    assert run.returncode == 0


def test_a_name_that_an_earlier_chapter_exported_is_refused(
    book: Book,
) -> None:
    book.chapter("02-one", "## First", exported("ONE = 1"), module="one")
    book.chapter("03-two", exported("ONE = 2"), module="one")
    with pytest.raises(PressError) as error:
        export(book.root)
    assert error.value.problems == (
        'book/03-two.md, section "A title", code cell 1 (ONE = 2): '
        "'ONE' is in annotated.one already, from "
        'book/02-one.md, section "First", code cell 1',
    )


def test_an_unused_import_is_charged_to_its_cell(book: Book) -> None:
    book.chapter("02-one", exported("ONE = 1"), module="one")
    book.chapter("03-two", exported("import math\n\nTWO = 2"), module="one")
    with pytest.raises(PressError, match=r"03-two.*`math` imported but"):
        export(book.root)


def test_modules_that_import_each_other_are_refused(book: Book) -> None:
    book.chapter("02-one", exported("ONE = 1"), module="one")
    book.chapter(
        "03-two",
        exported("from annotated.one import ONE\n\nTWO = ONE"),
        code("from annotated.two import TWO\n\nX = TWO", "export:one"),
        module="two",
    )
    with pytest.raises(PressError, match="imports it back"):
        export(book.root)


@pytest.mark.parametrize(
    "tag",
    ["Export", "export:", "export:My-Module", "exports", "export:../x"],
)
def test_an_export_tag_that_is_misspelt_is_refused(
    book: Book, tag: str
) -> None:
    book.chapter("02-one", code("ONE = 1", f'"{tag}"'), module="one")
    with pytest.raises(PressError, match="is neither 'export' nor"):
        export(book.root)


def test_a_program_that_the_chapter_would_start_is_refused(
    book: Book,
) -> None:
    book.chapter("02-one", code("exit()", "export:__main__"))
    with pytest.raises(PressError, match="add the tag 'skip-execution'"):
        export(book.root)
    book.chapter("02-one", code("exit()", "export:one", "skip-execution"))
    with pytest.raises(PressError, match="is no import, definition"):
        export(book.root)
    guard = 'if __name__ == "__main__":\n    exit()'
    book.chapter("02-one", code(guard, "export:cli"))
    with pytest.raises(PressError, match="add the tag 'skip-execution'"):
        export(book.root)
    book.chapter("02-one", code("exit()", "export:cli", "skip-execution"))
    with pytest.raises(PressError, match="is no import, definition"):
        export(book.root)
    book.chapter("02-one", code(guard, "export:cli", "skip-execution"))
    export(book.root)
    assert guard in book.read("annotated/cli.py")


def test_two_export_tags_are_refused(book: Book) -> None:
    book.chapter(
        "02-one", code("ONE = 1", "export", "export:two"), module="one"
    )
    with pytest.raises(PressError, match="several export tags"):
        export(book.root)


def test_export_without_a_module_is_refused(book: Book) -> None:
    book.chapter("02-one", exported("ONE = 1"))
    with pytest.raises(PressError, match="without annotated.module"):
        export(book.root)


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ("most = 1", "asserts something"),
        ("def one():\n    assert 1 < 2", "not in a function"),
        ("assert 1 <", "no Python"),
    ],
)
def test_claims_that_claim_nothing_are_refused(
    book: Book, claims: str, message: str
) -> None:
    book.chapter(
        "02-one", code("one = 1", "export"), code(claims, "claims")
    )
    with pytest.raises(PressError, match=rf"code cell 1.*{message}"):
        export(book.root)


FRONT = {
    "none": ("---\njupytext", "jupytext", "front matter .* is missing"),
    "format": ("myst}", "light}", "format_name is 'myst'"),
    "kernel": ("name: python3,", "name: julia,", "kernelspec.name"),
    "no minutes": ("minutes: 1, ", "", "annotated.minutes .* not None"),
    "zero": ("minutes: 1", "minutes: 0", "annotated.minutes .* not 0"),
    "text": ("minutes: 1", "minutes: one", "annotated.minutes .* 'one'"),
    "part": ("minutes: 1", "minutes: 1.5", "annotated.minutes .* 1.5"),
    "truth": ("minutes: 1", "minutes: true", "annotated.minutes .* True"),
    "module": ("module: one", "module: My-One", "annotated.module"),
    "unknown": (
        "module: one",
        "modul: one",
        "annotated.modul means nothing",
    ),
    "room": ("minutes: 1", "minutes: 1, room: attic", "room .* 'attic'"),
    "yaml": ("minutes: 1", "minutes: [1", "book/02-one.md: "),
}


@pytest.mark.parametrize("name", FRONT)
def test_front_matter_that_is_wrong_is_refused(
    book: Book, name: str
) -> None:
    old, new, message = FRONT[name]
    path = book.chapter("02-one", module="one")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(PressError, match=message) as error:
        export(book.root)
    assert all(
        line.startswith("book/02-one.md: ") for line in error.value.problems
    )


@pytest.mark.parametrize(
    "name", ["1-one", "one", "02-One", "02_one", "A-x", "B1-x", "E100-x"]
)
def test_a_chapter_of_another_name_is_refused(
    book: Book, name: str
) -> None:
    book.chapter(name)
    with pytest.raises(PressError, match="a chapter is called NN-name.md"):
        export(book.root)


def test_a_chapter_has_one_title(book: Book) -> None:
    book.chapter("02-one", "# Another title")
    with pytest.raises(PressError, match="this one has 2"):
        export(book.root)


def test_a_chapter_that_is_not_utf8_is_refused(book: Book) -> None:
    path = book.chapter("02-one")
    path.write_bytes(path.read_bytes() + b"\xff\n")
    with pytest.raises(PressError, match="book/02-one.md: cannot be read"):
        export(book.root)


def test_an_appendix_is_in_no_room(book: Book) -> None:
    book.chapter("A1-guide", room="engine")
    with pytest.raises(PressError, match="nothing in an appendix"):
        export(book.root)


def test_a_page_is_in_the_room_that_its_name_says_or_it_says(
    book: Book,
) -> None:
    for name in ("E10-x", "E2-x", "02-x", "A1-x"):
        book.chapter(name)
    book.chapter("03-x", room="engine")
    rooms = [(page.number, page.room) for page in read_book(book.root)]
    assert rooms == [
        ("02", "story"),
        ("03", "engine"),
        ("A1", "appendix"),
        ("E2", "engine"),
        ("E10", "engine"),
    ]


# --- classes that go on ---------------------------------------------------

BEGIN = '''
class Base:
    def leave(self) -> str:
        return "base"


class Run(Base):
    """A run."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
'''
# how a class goes on → what is said about it
GOES_ON = {
    "a method twice": (
        "class Run(Run):\n    def step(self): ...",
        r"line 2: Run\.step is there already, from book/02-one\.md, "
        r'section "Begin", code cell 1',
    ),
    "no beginning": (
        "class Walk(Walk):\n    def on(self): ...",
        "line 1: goes on with class Walk, which no earlier cell exports to "
        r"annotated\.one",
    ),
    "in its own cell": (
        "class A: ...\n\n\nclass A(A):\n    def on(self): ...",
        "line 4: goes on with class A, which no earlier cell",
    ),
    "another base": (
        "class Run(Run, dict):\n    def on(self): ...",
        r"line 1: where class Run goes on, write `class Run\(Run\):`",
    ),
    "a keyword": (
        "class Run(Run, metaclass=type):\n    def on(self): ...",
        "line 1: where class Run goes on, write",
    ),
    "a decorator": (
        "@staticmethod\nclass Run(Run):\n    def on(self): ...",
        "line 2: where class Run goes on, write",
    ),
    "a docstring": (
        'class Run(Run):\n    """More."""\n\n    def on(self): ...',
        "line 2: class Run goes on with methods alone",
    ),
    "a field": (
        "class Run(Run):\n    more: int = 1",
        "line 2: class Run goes on with methods alone",
    ),
    "a constant": (
        "class Run(Run):\n    MORE = 1",
        "line 2: class Run goes on with methods alone",
    ),
    "super": (
        "class Run(Run):\n    def on(self):\n        super().step()",
        r"line 3: super\(\) is the class so far in a notebook",
    ),
    "super with arguments": (
        "class Run(Run):\n    def on(self):\n"
        "        super(Run, self).leave()",
        r"line 3: super\(\) is the class so far",
    ),
    "super kept": (
        "class Run(Run):\n    def on(self):\n        return super()",
        r"line 3: super\(\) is the class so far",
    ),
    "an undefined name": (
        "# more\nclass Run(Run):\n    def on(self):\n        nowhere",
        "line 4: Undefined name `nowhere`",
    ),
}


@pytest.mark.parametrize("name", GOES_ON)
def test_a_class_that_cannot_go_on_is_named(book: Book, name: str) -> None:
    source, message = GOES_ON[name]
    book.chapter("02-one", "## Begin", exported(BEGIN), module="one")
    book.chapter(
        "04-two",
        "## Go on",
        code("from annotated.one import Run"),
        exported(source),
        module="one",
    )
    with pytest.raises(PressError, match=message) as error:
        export(book.root)
    first = source.splitlines()[0]
    (problem,) = error.value.problems
    assert problem.startswith(
        f'book/04-two.md, section "Go on", code cell 2 ({first}): '
    )


def test_every_fault_is_told_at_once(book: Book) -> None:
    book.chapter("02-one", exported("print(1)"), module="one")
    book.chapter(
        "03-two", exported("def f(:"), code("x" * 80), module="two"
    )
    with pytest.raises(PressError) as error:
        export(book.root)
    assert [line[:14] for line in error.value.problems] == [
        "book/02-one.md",
        "book/03-two.md",
        "book/03-two.md",
    ]
