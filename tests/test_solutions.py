"""The code in solutions runs as printed, and what it asserts holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch

from annotated.engine import example
from press.chapters import read_chapter

BOOK = Path(__file__).resolve().parents[1] / "book"
PAGES = ("00-preface", "02-attention", "03-masks", "04-multi-head")
SOLUTION = re.compile(r"^:::\{solution\} (\S+)\n(.*?)^:::$", re.M | re.S)
CODE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def solutions() -> Iterator[tuple[str, str, str]]:
    """Page, label and code of each solution that has code."""
    for page in PAGES:
        text = (BOOK / f"{page}.md").read_text(encoding="utf-8")
        for label, body in SOLUTION.findall(text):
            blocks = CODE.findall(body)
            if blocks:
                yield page, label, "\n".join(blocks)


@cache
def names(page: str) -> dict[str, Any]:
    """What is defined on the page, its figures and training left out."""
    matplotlib.use("Agg")
    found: dict[str, Any] = {"__name__": "page"}
    train = example.train_reversal

    def briefly(
        model: Any, steps: int = 400, **options: Any
    ) -> list[float]:
        return train(model, steps=1, **options) * steps

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example, "train_reversal", briefly)
        for cell in read_chapter(BOOK / f"{page}.md").code:
            draws = "plt." in cell.source and "import" not in cell.source
            if not draws:
                exec(compile(cell.source, cell.file, "exec"), found)
    if "train_reversal" in found:
        found["train_reversal"] = train
    return found


@pytest.mark.parametrize(
    ("page", "label", "code"),
    [pytest.param(*row, id=row[1]) for row in solutions()],
)
def test_a_solution_does_what_it_says(
    page: str, label: str, code: str
) -> None:
    assert "assert" in code, f"{label} shows a result that nothing checks"
    space = dict(names(page))
    torch.manual_seed(0)
    exec(compile(code, label, "exec"), space)


def test_every_solution_belongs_to_an_exercise_of_its_page() -> None:
    for page in PAGES:
        text = (BOOK / f"{page}.md").read_text(encoding="utf-8")
        exercises = re.findall(r"^:label: (ex-\S+)$", text, re.M)
        assert [label for label, _ in SOLUTION.findall(text)] == exercises
