"""The press looks at the modules of figures, and joins them."""

from __future__ import annotations

import pytest

from annotated.book.scripts import script
from press.chapters import PressError
from press.figures import MOST, scripts
from press.modules import MOVING
from tests.helpers import ROOT
from tests.press.conftest import Book

KIT = "export function host(name, figure, more) { globalThis.got = { name, figure, more }; }\n"
ONE = "// needs: engine\nexport const two = 2;\nexport default {\n  render() { return two; },\n};\n"
ENGINE = "export function run() { return 1; }\n"


def write(book: Book, **modules: str) -> None:
    for name, text in {"kit": KIT, "engine": ENGINE, **modules}.items():
        book.write(f"{MOVING}/{name}.mjs", text)


def test_a_figure_becomes_one_classic_script(book: Book) -> None:
    write(book, one=ONE)
    joined = scripts(book.root)
    assert list(joined) == ["one"]  # the kit alone is no figure
    text = joined["one"]
    parts = [line for line in text.splitlines() if line.startswith("// ")]
    assert parts == ["// kit.mjs", "// engine.mjs", "// one.mjs"]
    assert "export" not in text
    assert "return { run };" in text
    assert "return { two, figure };" in text
    assert 'kit.host("one", one.figure, { engine });' in text


def test_a_notebook_has_the_script_of_the_page() -> None:
    joined = scripts(ROOT)
    assert {"film", "translate"} <= joined.keys()  # with and without needs
    for name, text in joined.items():
        assert script(name) == text


@pytest.mark.parametrize(
    "name", ["kit", "engine", "nothing", "../book/kit"]
)
def test_what_is_no_figure_has_no_script(name: str) -> None:
    with pytest.raises(ValueError, match="there is no figure"):
        script(name)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('import { x } from "./kit.mjs";', "imports something"),
        ('const x = await import("x");', "imports something"),
        ('const x = "https://example.org/x.js";', "holds an address"),
        ('const x = "//example.org/x.js";', "holds an address"),
        ("export const a = 1, b = 2;", "exports two names"),
        ('eval("1");', "runs text as code"),
        ('new Function("1");', "runs text as code"),
        ('x.innerHTML = "<b>";', "writes HTML as text"),
        ('fetch("x");', "asks a host"),
        ("localStorage.x = 1;", "keeps something about a reader"),
    ],
)
def test_what_a_figure_may_not_do(
    book: Book, line: str, fault: str
) -> None:
    write(book, one=f"{ONE}\n{line}\n")
    with pytest.raises(PressError, match=f"one.mjs {fault} in line 7"):
        scripts(book.root)


def test_a_figure_that_is_too_large_is_refused(book: Book) -> None:
    write(book, one=ONE + f"const x = '{'x' * MOST}';\n")
    with pytest.raises(PressError, match=f"{MOST:,} are allowed"):
        scripts(book.root)


def test_the_comments_of_a_module_stay_in_its_source(book: Book) -> None:
    said = (
        "/** What it\n * does. */\n// in short\nconst two = 1 + 1; // x\n"
    )
    write(book, one=ONE + said)
    [text] = [t for name, t in scripts(book.root).items() if name == "one"]
    assert "const two = 1 + 1; // x\n" in text
    assert "What it" not in text and "in short" not in text


def test_a_need_that_is_not_there_is_named(book: Book) -> None:
    write(book, one=ONE.replace("engine", "motor"))
    with pytest.raises(PressError, match="needs motor, which is not there"):
        scripts(book.root)
