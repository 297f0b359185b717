"""The run that travels with the package answers right after installation."""

import io
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from annotated.book.results import ledger
from annotated.cli import COMMANDS, dispatch, load
from annotated.commands.translate import _unread
from annotated.corpora.sentencepieces import unknown_words
from annotated.engine.data import open_data
from annotated.engine.errors import DataError, RunError, UsageError
from annotated.engine.runs import Run, read_recipe, run_folder
from annotated.tokens import Tokenizer
from tests.helpers import ROOT

POCKET = Path("pocket")
README = (ROOT / "README.md").read_text("utf-8")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_translates_what_readme_says(elsewhere) -> None:
    [source] = set(re.findall(r'translate --run \w+ "(Heute .+?)"', README))
    [target] = re.findall(r"```text\n(.+?)\n```", README)
    [[found]] = Run.open(POCKET).translate([source])
    assert found.text == target


def test_it_is_as_good_as_its_ledger_says(elsewhere) -> None:
    run = Run.open(POCKET)
    src, ref = (side[:200] for side in open_data(run.recipe).text("test"))
    found = [best[0].text for best in run.translate(src)]
    right = sum(a == b for a, b in zip(found, ref, strict=True))
    exact = ledger()["pocket-cpu"]["metrics"]["test"]["exact_match"]
    assert right / 2 == pytest.approx(
        exact, abs=5
    )  # per cent; 200 of 1,000


def test_it_is_the_run_of_the_ledger() -> None:
    summary = json.loads(
        (ROOT / "data/runs/pocket/summary.json").read_text()
    )
    metrics = ledger()["pocket-cpu"]["metrics"]
    valid = summary.pop("valid")  # the ledger has six digits
    assert valid == pytest.approx(metrics["valid"], rel=1e-4)
    assert summary == {name: metrics[name] for name in summary}
    assert "+" not in ledger()["pocket-cpu"]["commit"]


def test_readme_says_how_long_it_took() -> None:
    """118 s of training here, up to 180 s on older processors."""
    assert "in two to three minutes on two cores" in README
    minutes = ledger()["pocket-cpu"]["metrics"]["seconds"] / 60
    assert 1.5 < minutes < 3.5


def test_it_is_small() -> None:
    files = list((ROOT / "annotated/runs").rglob("*"))
    assert (
        0 < sum(f.stat().st_size for f in files if f.is_file()) < 2_000_000
    )


def test_a_folder_of_that_name_goes_first(elsewhere) -> None:
    assert run_folder(POCKET).is_absolute()
    POCKET.mkdir()
    assert run_folder(POCKET) == POCKET
    with pytest.raises(RunError, match="pocket is not a run folder"):
        Run.open(POCKET)


@pytest.mark.parametrize("name", ["nowhere", "runs/pocket", "..", "."])
def test_other_names_mean_what_they_meant(name, elsewhere) -> None:
    assert run_folder(Path(name)) == Path(name)


def test_it_is_of_this_version() -> None:
    recipe = read_recipe(run_folder(POCKET))
    assert (recipe.data, recipe.source, recipe.target) == (
        "pocket",
        "de",
        "en",
    )


def test_words_that_it_does_not_know_are_named_once(elsewhere) -> None:
    lines = ["Die Frau liest das Buch.", "Der Astronaut liest das Buch ."]
    done = subprocess.run(
        [sys.executable, "-m", "annotated", "translate", "--run", "pocket"],
        input="\n".join([*lines, *lines]).encode(),
        capture_output=True,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 4
    told = [
        line
        for line in done.stderr.decode().splitlines()
        if "vocabulary" in line
    ]
    assert told == [
        "not in the run's vocabulary: Buch., Astronaut; put a space before "
        "punctuation: Buch ."
    ]


def test_no_more_than_ten_unknown_words_are_listed() -> None:
    tokenizer = Run.open(POCKET).source
    words = [f"neu{i}" for i in range(11)]
    told = _unread(words, tokenizer)
    assert told.endswith("neu9 …") and "punctuation" not in told
    told = _unread(["?!", "Buch."], tokenizer)  # of ?! nothing is left
    assert told.endswith(
        "?!, Buch.; put a space before punctuation: Buch ."
    )


def test_of_an_endless_unknown_word_the_beginning_is_told() -> None:
    told = _unread(["x" * 300_000], Run.open(POCKET).source)
    assert told == f"not in the run's vocabulary: {'x' * 40}…"


# --- wherever a command takes a run

RUNS = {  # by field, a command line and what comes of it
    "Translate.run": ("translate --run pocket", None),
    "Translate.ensemble": (
        "translate --run pocket --ensemble pocket",
        None,
    ),
    "Evaluate.run": (
        "evaluate --run pocket --src src --ref ref --json",
        None,
    ),
    "Evaluate.ensemble": (
        "evaluate --run pocket --ensemble pocket --src src --ref ref",
        None,
    ),
    "Evaluate.against": (
        "evaluate --run pocket --against pocket --src src --ref ref",
        None,
    ),
    "Parse.run": ("parse --run pocket", "trained to write en, not trees"),
    "Parse.ensemble": (
        "parse --run pocket --ensemble pocket",
        "trained to write en, not trees",
    ),
    "Average.run": (
        "average --run pocket --out new",
        "pocket has no checkpoints to average",
    ),
    "Export.run": (
        "export --run pocket --to safetensors --out new",
        None,
    ),
    "Report.run": ("report --run pocket --out new --text src", None),
    "Look.run": ("look --run pocket --port 99999", "99999"),
    "Serve.run": ("serve --run pocket --port 99999", "99999"),
    "Serve.ensemble": (
        "serve --run pocket --ensemble pocket --port 99999",
        "99999",
    ),
    "Adapt.run": (
        "adapt --run pocket --src src --tgt gone --out new",
        "gone",
    ),
    "Score.run": ("score --run pocket --src src --tgt ref", None),
    "Score.ensemble": (
        "score --run pocket --ensemble pocket --src src --tgt ref",
        None,
    ),
    "Prepare.back": (
        "data prepare pair --src ref --tgt src --mono src --back pocket"
        " --hold-out 3 --vocab 300 --out new",
        None,
    ),
    "Prepare.tokens": (
        "data prepare pair --src src --tgt ref --hold-out 3 --tokens pocket"
        " --out new",
        None,
    ),
}
OTHERS = {  # what names a file, or a folder of another kind
    *("Prepare.out", "Prepare.src", "Prepare.tgt", "Prepare.valid"),
    *("Prepare.test", "Evaluate.src", "Evaluate.ref", "Average.out"),
    *("Adapt.src", "Adapt.tgt", "Adapt.out", "Adapt.old"),
    *("Adapt.valid", "Adapt.test", "Prepare.mono"),
    *("Score.src", "Score.tgt", "Translate.glossary"),
    *("Evaluate.glossary", "Serve.glossary"),
    *("Export.out", "Report.out", "Report.text", "Import.out"),
    *("Paper.file", "Paper.site", "Treebank.bank", "Treebank.out"),
    *("Sweep.out", "Exercises.file", "Classroom.course"),
}


def paths_of_commands() -> set[str]:
    """Every field of a subcommand that is a path."""
    return {
        f"{kind.__name__}.{field}"
        for choice in map(load, COMMANDS.keys() - {"train", "doctor"})
        for kind in (get_args(choice) or [choice])
        for field, hint in get_type_hints(kind).items()
        if "Path" in str(hint)
    }


def test_every_path_of_a_command_is_known_to_be_a_run_or_not() -> None:
    assert paths_of_commands() == {*RUNS, *OTHERS}


slow = {"Report.run": pytest.mark.exhaustive}  # it draws


@pytest.mark.parametrize(
    "field", [pytest.param(f, marks=slow.get(f, ())) for f in RUNS]
)
def test_the_shipped_run_is_meant_wherever_a_run_is(
    field, elsewhere, monkeypatch, capfd
) -> None:
    line, complaint = RUNS[field]
    lines = [f"Anna sieht Hund{i} .\n" for i in range(40)]
    for name in ("src", "ref"):
        Path(name).write_text("".join(lines))
    stdin = io.TextIOWrapper(io.BytesIO(b"Anna sieht den Hund .\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    refusal = pytest.raises(
        (DataError, RunError, UsageError), match=complaint
    )
    with refusal if complaint else nullcontext():
        dispatch(line.split())


def test_byte_pairs_have_no_unknown_words() -> None:
    tokenizer = Run.open(POCKET).source
    assert unknown_words(tokenizer, ["Die Frau", "Die Frua Frua"]) == [
        "Frua"
    ]
    parts = Tokenizer.train(["Die Frau liest"] * 9, 300)
    assert unknown_words(parts, ["Frua", "\u03b1"]) == []
