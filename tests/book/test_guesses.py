"""Hidden results of a notebook, and the guesses that they answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell

from annotated.book.guesses import HIDDEN, Guesses, bounds, number_in

SETUP = "from annotated.book.guesses import Guesses\nguess = Guesses()"
GUESS = 'guess("the share", {}, at="heads: #%", near="± 5")'
RESULT = f'print("2 heads: 97% right")\n"a < b"\n{HIDDEN}'


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A notebook without a window, which has run its first cell."""
    monkeypatch.setattr(HistoryManager, "enabled", False)  # no file
    made: Any = InteractiveShell.instance()
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(
        made.display_pub,
        "publish",
        lambda data, metadata=None, **more: shown.append(data),
    )
    made.shown = shown
    assert made.run_cell(SETUP).success
    yield made
    InteractiveShell.clear_instance()


def test_a_hidden_result_is_folded_and_tells_of_the_guess(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell(GUESS.format(95))
    assert capsys.readouterr().out == (
        "the share: 95. The next result will tell.\n"
    )
    shell.run_cell(RESULT)
    assert capsys.readouterr().out == ""  # nothing is given away
    [data] = shell.shown
    above, _, folded = data["text/html"].partition("<details>")
    assert above == "<p>the share: you said 95. Right: 97.</p>"
    assert "heads: 97% right" in folded and "a &lt; b" in folded
    assert "monospace" in folded  # columns stay columns
    # and where nothing can be folded, it is read
    assert data["text/plain"].startswith("the share: you said 95. Right")
    assert "2 heads: 97% right" in data["text/plain"]


@pytest.mark.parametrize(
    ("said", "told"), [(20, "low"), (100 / 0.9, "high")]
)
def test_a_wrong_guess_is_not_told_the_number(
    shell: Any,
    capsys: pytest.CaptureFixture[str],
    said: float,
    told: str,
) -> None:
    shell.run_cell(GUESS.format(said))
    shell.run_cell(RESULT)
    above = shell.shown[0]["text/html"].partition("<details>")[0]
    assert above == f"<p>the share: you said {said:g}. Too {told}.</p>"
    capsys.readouterr()
    shell.run_cell(GUESS.format("96"))  # another, once the result is there
    out = capsys.readouterr().out
    assert out == "the share: you said 96. Right: 97.\n"


def test_without_a_guess_a_result_waits_all_the_same(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell(GUESS.format("..."))
    assert "put your guess in place of the dots" in capsys.readouterr().out
    shell.run_cell(RESULT)
    assert shell.shown[0]["text/html"].startswith("<details>")
    shell.run_cell(GUESS.format("1e2"))
    assert "Right: 97" in capsys.readouterr().out


def test_pictures_and_html_are_folded_as_they_are(shell: Any) -> None:
    shell.run_cell(
        "from IPython.display import HTML, display\n"
        "class Drawn:\n"
        "    def _repr_svg_(self): return '<svg/>'\n"
        "    def _repr_png_(self): return b'png', {'width': 7}\n"
        "class Photo:\n"
        "    def _repr_png_(self): return b'png', {'width': 7}\n"
        "display(HTML('<b>bold</b>'), Drawn())\n"
        f"Photo();\n{HIDDEN}"
    )
    [data] = shell.shown
    html = data["text/html"]
    assert (
        "<b>bold</b>" in html and 'src="data:image/svg+xml;base64,' in html
    )
    assert "Photo" not in html  # a semicolon ends it
    shell.run_cell(f"Photo()\n{HIDDEN}")
    html = shell.shown[1]["text/html"]
    assert '<img width="7"' in html and "base64,cG5n" in html


def test_an_error_hides_nothing(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell(f"print('so far')\n1 / 0\n{HIDDEN}")
    [data] = shell.shown  # without a kernel the traceback is printed, too
    assert data["text/plain"].startswith("so far\n")
    assert "ZeroDivisionError" in data["text/plain"]
    assert "text/html" not in data
    shell.run_cell("print('seen')")  # nor does it hide what follows
    assert capsys.readouterr().out == "seen\n"


def test_a_set_up_that_runs_twice_folds_once(shell: Any) -> None:
    shell.run_cell(SETUP)
    shell.run_cell(RESULT)
    assert len(shell.shown) == 1


def test_a_cell_that_says_nothing_shows_nothing(shell: Any) -> None:
    shell.run_cell(f"x = 1\n{HIDDEN}")
    assert shell.shown == []


def test_a_program_has_no_results_to_hide() -> None:
    assert Guesses().shell is None


def test_a_guess_that_nobody_could_judge_is_refused() -> None:
    with pytest.raises(ValueError, match="not 'nearly'"):
        bounds(1, "nearly")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("it ends at 5.", ("5", 5.0)),
        ("it ends at 0.25.", ("0.25", 0.25)),
        ("it ends at .5", (".5", 0.5)),
        ("it ends at −1,234.", ("−1,234", -1234.0)),
    ],
)
def test_a_full_stop_is_no_part_of_a_number(text: str, number: Any) -> None:
    assert number_in(text, "at #") == number
