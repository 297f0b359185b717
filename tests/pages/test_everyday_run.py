"""The runs of everyday sentences, which the first page and chapter 20 carry."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from annotated.book.portable import WORDS, portable, words_of
from annotated.book.results import ledger
from annotated.engine.data import open_data
from annotated.engine.errors import RunError
from annotated.engine.recipes import RECIPES
from annotated.engine.runs import Run, read_recipe
from tests.helpers import ROOT

FOLDERS = sorted((ROOT / "data" / "runs").glob("everyday-en-??"))
each = pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name[-2:])


def metrics(folder: Path) -> Any:
    return ledger()[folder.name]["metrics"]


def verdicts(folder: Path, name: str) -> list[list[str]]:
    """The rows of a file of sentences that somebody has judged."""
    path = ROOT / "benchmarks" / f"{name}-{folder.name[-2:]}.tsv"
    lines = path.read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines[1:]]


@pytest.mark.parametrize("language", ["fr", "es"])
def test_the_recipe_is_still_the_one_that_made_it(language: str) -> None:
    """It inherits from that of the captions, which may change."""
    folder = ROOT / "data" / "runs" / f"everyday-en-{language}"
    made, now = read_recipe(folder).flat(), RECIPES["everyday"].flat()
    differs = {name for name, value in made.items() if value != now[name]}
    assert differs == {"target", "precision"}  # auto chose that


def test_there_is_one_for_each_language() -> None:
    assert [folder.name[-2:] for folder in FOLDERS] == ["de", "es", "fr"]


@each
def test_it_says_what_its_ledger_says(folder: Path) -> None:
    """So it is the run whose BLEU and whose verdicts stand there."""
    rows = verdicts(folder, "typed")[::9] + metrics(folder)["hundred"][::9]
    found = Run.open(folder).translate([row[0] for row in rows])
    assert [best.text for [best] in found] == [row[2] for row in rows]


@each
def test_its_ledger_counts_the_verdicts_of_both_readers(
    folder: Path,
) -> None:
    told, hundred = metrics(folder), verdicts(folder, "everyday")
    assert told["hundred"] == hundred
    first, second = ([row[i] for row in hundred] for i in (3, 4))
    for name, given in (("verdicts", first), ("second", second)):
        counts = {verdict: all_[0] for verdict, all_ in told[name].items()}
        assert counts == Counter(given)
    assert told["agreed"] == sum(map(str.__eq__, first, second))
    assert counts["right"] + counts["understandable"] >= 80


@pytest.mark.parametrize("language", ["fr", "es"])
def test_petrol_begins_with_a_pet(language: str) -> None:
    """As chapter 20 says of these two; the German run cuts it elsewhere."""
    source = Run.open(ROOT / "data/runs" / f"everyday-en-{language}").source
    [ids] = source.encode(["We ran out of petrol."])
    assert "pet" in source.decode([[i] for i in ids])


@each
def test_its_summary_is_that_of_the_ledger(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    valid = summary.pop("valid")  # the ledger has six digits
    assert valid == pytest.approx(metrics(folder)["valid"], rel=1e-4)
    assert summary == {name: metrics(folder)[name] for name in summary}


@each
def test_its_card_says_what_its_ledger_says(folder: Path) -> None:
    card = (folder / "README.md").read_text("utf-8")
    told = metrics(folder)
    right, clear, wrong = (all_[0] for all_ in told["verdicts"].values())
    signature = told["test"]["signature"].replace("|", r"\|")
    for said in (
        f"| {told['test']['bleu']} (`{signature}`)",
        f"| chrF | {told['test']['chrf']} |",
        f"| {told['valid']['perplexity']:.2f} |",
        f"{right} right, {clear} understandable, {wrong} wrong",
        f"{told['agreed']} of the hundred",
        ledger()[folder.name]["commit"],
    ):
        assert said in card


@each
def test_it_is_small_enough_to_send(folder: Path) -> None:
    size = sum(
        (folder / name).stat().st_size
        for name in ("model.safetensors", WORDS)
    )
    assert size < 6_000_000


def test_words_have_a_capital_where_they_nearly_always_do() -> None:
    lines = ["Tom's TV is on.", "Is Tom in May's car?", "We may. On TV, I"]
    assert words_of([*lines, "don't, x_2"]) == sorted(
        ["tom's", "TV", "is", "on", "Tom", "in", "May's", "car"]
        + ["we", "may", "I", "don't", "x", "2"]
    )


@each
def test_its_words_are_those_of_its_training_text(folder: Path) -> None:
    data = os.environ.get("ANNOTATED_DATA")
    if not data or not Path(data, "tatoeba").is_dir():
        pytest.skip("$ANNOTATED_DATA has no tatoeba")
    run = Run.open(folder)
    english, _ = open_data(run.recipe).text("train")
    words = (folder / WORDS).read_text("utf-8").splitlines()
    assert words == words_of(english)


def test_it_can_be_told_how_to_say_it() -> None:
    """The lines at the top of page E39, each with its answer."""
    page = (ROOT / "book/E39-constraints.md").read_text("utf-8")
    lines = re.findall(r"^\$R (.+?) +# (.+)$", page, re.M)
    run = Run.open(ROOT / "data/runs/everyday-en-de")
    assert len(lines) == 3
    for typed, said in lines:
        *option, line = shlex.split(typed)
        how = {
            (): {},
            ("--prefix",): {"prefixes": option[1:]},
            ("--require",): {"required": [option[1:]]},
        }[tuple(option[:1])]
        [[best]] = run.translate([line], **how)
        assert best.text == said


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"positions": "learned"}, "positions learned"),
        ({"gated": True, "norm_kind": "rms"}, "norm_kind rms, gated True"),
        ({"window": 3, "positions": "alibi"}, "window 3, positions alibi"),
    ],
)
def test_what_the_page_cannot_compute_does_not_travel_in_it(
    change: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = RECIPES["everyday"].changed(**change)
    one = SimpleNamespace(recipe=recipe)
    monkeypatch.setattr(Run, "open", lambda folder: one)
    with pytest.raises(RunError, match=f"run: .*cannot compute {told}$"):
        portable(Path("run"), "Good morning.")
