"""The run of everyday sentences, which the first page and chapter 20 carry."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from annotated.book.portable import WORDS, words_of
from annotated.book.results import ledger
from annotated.engine.data import open_data
from annotated.engine.runs import Run
from tests.helpers import ROOT

FOLDER = ROOT / "data" / "runs" / "everyday-en-de"
METRICS = ledger()["everyday-en-de"]["metrics"]


def test_it_says_what_its_ledger_says() -> None:
    """So it is the run whose BLEU and whose verdicts stand there."""
    typed = (ROOT / "benchmarks/typed-de.tsv").read_text("utf-8")
    rows = [line.split("\t") for line in typed.splitlines()[1::9]]
    rows += METRICS["hundred"][::9]
    found = Run.open(FOLDER).translate([row[0] for row in rows])
    assert [best.text for [best] in found] == [row[2] for row in rows]


def test_its_summary_is_that_of_the_ledger() -> None:
    summary = json.loads((FOLDER / "summary.json").read_text("utf-8"))
    valid = summary.pop("valid")  # the ledger has six digits
    assert valid == pytest.approx(METRICS["valid"], rel=1e-4)
    assert summary == {name: METRICS[name] for name in summary}


def test_it_is_small_enough_to_send() -> None:
    size = sum(
        (FOLDER / name).stat().st_size
        for name in ("model.safetensors", WORDS)
    )
    assert size < 6_000_000


def test_words_have_a_capital_where_they_nearly_always_do() -> None:
    lines = ["Tom's TV is on.", "Is Tom in May's car?", "We may. On TV, I"]
    assert words_of([*lines, "don't, x_2"]) == sorted(
        ["tom's", "TV", "is", "on", "Tom", "in", "May's", "car"]
        + ["we", "may", "I", "don't", "x", "2"]
    )


def test_its_words_are_those_of_its_training_text() -> None:
    folder = os.environ.get("ANNOTATED_DATA")
    if not folder or not Path(folder, "tatoeba").is_dir():
        pytest.skip("$ANNOTATED_DATA has no tatoeba")
    run = Run.open(FOLDER)
    english, _ = open_data(run.recipe).text("train")
    words = (FOLDER / WORDS).read_text("utf-8").splitlines()
    assert words == words_of(english)
