"""annotated adapt: the lines that it types, once each."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from annotated.cli import load
from annotated.commands import adapt
from annotated.commands.options import parse
from annotated.commands.train import Train
from annotated.engine.errors import RunError
from annotated.engine.recipes import RECIPES
from annotated.engine.runs import run_folder
from tests.commands.conftest import Call

SCORE = {"bleu": 20.0, "chrf": 40.0}
COPIED, NEAREST = {"bleu": 1.0, "chrf": 2.0}, {"bleu": 3.0, "chrf": 4.0}
POCKET = run_folder(Path("pocket"))
STEPS = ["data", "train", "evaluate", "evaluate", "export"]
LINE = "adapt --src my.en --tgt my.de --out out"


@pytest.fixture
def lines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[list[str]]:
    """The lines that are typed; each is read as its subcommand reads it,
    and none is run.
    """
    typed: list[list[str]] = []

    def dispatch(words: list[str]) -> None:
        name, *rest = words
        typed.append(words)
        if name == "train":
            default = Train(recipe=RECIPES[rest[0]])
            parse(Train, name, rest[1:], default=default)
        else:
            parse(load(name), name, rest)
        if name == "import":
            out = rest[rest.index("--out") + 1]
            shutil.copytree(POCKET, out)
        if name == "evaluate":
            scores: dict[str, Any] = {"copied": COPIED, "nearest": NEAREST}
            print(json.dumps(SCORE | scores))
        if name == "train":
            minutes = rest[rest.index("--max-minutes") + 1]
            trained = Path(rest[rest.index("--out") + 1])
            trained.mkdir(parents=True, exist_ok=True)
            (trained / "model.safetensors").write_text(minutes)
            print("{}")

    monkeypatch.setattr(adapt, "dispatch", dispatch)
    monkeypatch.chdir(tmp_path)
    return typed


def heads(lines: list[list[str]]) -> list[str]:
    return [line[0] for line in lines]


def test_it_prepares_trains_scores_and_exports(
    call: Call, lines: list[list[str]]
) -> None:
    done = call(f"{LINE} --run pocket --to transformers --minutes 3")
    assert done.code == 0, done.err
    assert heads(lines) == STEPS
    prepared, trained, before, after, exported = map(" ".join, lines)
    assert "--source de --target en" in prepared  # the run's own
    assert prepared.endswith(f"--out out/data --tokens {POCKET}")
    assert f"--init {POCKET}" in trained and "--max-minutes 3.0" in trained
    assert f"--run {POCKET} " in before and "--run out/run " in after
    assert before.endswith("--split test --data out/data")
    assert exported.endswith("--to transformers --out out/transformers")
    told = done.out.split("\n")
    assert told[1].split() == ["the", "source", "copied", "1.0", "2.0"]
    assert told[-2].split() == ["adapted", "20.0", "40.0"]
    # each line is said before it is run
    assert done.err.splitlines() == [
        f"annotated {' '.join(x)}" for x in lines
    ]


def test_what_was_forgotten_and_a_model_from_nothing_stand_beside(
    call: Call, lines: list[list[str]]
) -> None:
    for name in ("o.en", "o.de"):
        Path(name).write_text("a line\n")
    done = call(f"{LINE} --run pocket --old o.en o.de --nothing --json")
    found = json.loads(done.out)
    names = ["as it was", "adapted"]
    assert [*found["old"]] == names
    base = ["the source copied", "nearest"]
    assert [*found["new"]] == [*base, *names, "from nothing"]
    data, *_ = (x for x in lines if "out/nothing/data" in x)
    assert "--tokens" not in data  # a vocabulary of its own
    [bare] = (x for x in lines if x[0] == "train" and "--init" not in x)
    tuned = next(x for x in lines if "--init" in x)
    at = bare.index("--max-minutes")
    assert bare[at + 1] == tuned[tuned.index("--max-minutes") + 1]
    olds = [x for x in lines if "o.en" in x]
    assert [x[x.index("--run") + 1] for x in olds] == [
        str(POCKET),
        "out/run",
    ]


@pytest.mark.parametrize(
    ("target", "told"),
    [(None, "nope.de cannot be read"), ("a\nb\n", "o.en has 1 lines but")],
)
def test_an_old_text_that_cannot_be_scored_is_told_before_the_minutes(
    call: Call, lines: list[list[str]], target: str | None, told: str
) -> None:
    Path("o.en").write_text("a line\n")
    if target is not None:
        Path("nope.de").write_text(target)
    done = call(f"{LINE} --run pocket --old o.en nope.de")
    assert told in done.complaint and lines == []


@pytest.mark.parametrize(
    ("form", "package"),
    [("onnx", "onnx"), ("ctranslate2", "ctranslate2")],
)
def test_a_package_that_the_form_needs_is_missed_before_the_minutes(
    call: Call,
    lines: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    package: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = call(f"{LINE} --run pocket --to {form}")
    assert f"pip install {package}" in done.complaint and lines == []


def test_what_lies_in_the_exported_folder_stays(
    call: Call, lines: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an export has written is not what it is made of."""
    typed = adapt.dispatch
    out = Path("out/safetensors")

    def exported(words: list[str]) -> None:
        typed(words)
        if words[0] == "export":
            out.mkdir()
            (out / "model.safetensors").write_text("weights")

    monkeypatch.setattr(adapt, "dispatch", exported)
    call(f"{LINE} --run pocket")
    (out / "notes").write_text("mine")
    before = len(lines)
    assert call(f"{LINE} --run pocket").err == ""
    assert len(lines) == before and (out / "notes").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "give one of --run and --published"),
        ("--run pocket --published x", "give one of --run and"),
        ("--run pocket --minutes 0", "--minutes must be more than 0"),
        ("--run pocket --minutes nan", "--minutes must be more than 0"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything(
    call: Call, lines: list[list[str]], words: str, told: str
) -> None:
    assert told in call(f"{LINE} {words}").complaint
    assert lines == [] and not Path("out").exists()


def test_a_published_model_is_imported_first(
    call: Call, lines: list[list[str]]
) -> None:
    done = call(f"{LINE} --published opus-mt-en-de")
    assert done.code == 0, done.err
    assert lines[0] == [
        "import",
        "marian",
        "opus-mt-en-de",
        "--out",
        "out/first",
    ]
    assert "out/first" in lines[2]


def test_the_same_command_goes_on_after_what_is_done(
    call: Call,
    lines: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A training that was stopped is resumed, and nothing done twice."""
    whole = adapt.dispatch

    def stops(words: list[str]) -> None:
        if words[0] == "train":
            Path("out/run").mkdir(parents=True)
            Path("out/run/recipe.json").write_text("{}")
            raise RunError("the disk is full")
        whole(words)

    monkeypatch.setattr(adapt, "dispatch", stops)
    assert "the disk is full" in call(f"{LINE} --run pocket").err
    assert heads(lines) == ["data"]
    monkeypatch.setattr(adapt, "dispatch", whole)
    first = call(f"{LINE} --run pocket")
    assert heads(lines) == STEPS
    assert "--resume" in lines[1]
    again = call(f"{LINE} --run pocket")
    assert len(lines) == 5 and again.err == "" and again.out == first.out


@pytest.mark.parametrize("broken", ["{", "[]", '\ufeff{"a": 1'])
def test_a_note_of_steps_that_is_broken_is_told_by_its_name(
    call: Call, lines: list[list[str]], broken: str
) -> None:
    Path("out").mkdir()
    Path("out/steps.json").write_text(broken, "utf-8")
    ended = call(f"{LINE} --run pocket")
    assert ended.code == 2 and "steps.json" in ended.err
    assert ended.err.count("\n") == 1 and lines == []


def test_other_files_of_the_same_name_are_other_steps(
    call: Call, lines: list[list[str]]
) -> None:
    """As they are said to be, and as prepare then finds."""
    call(f"{LINE} --run pocket")
    before = len(lines)
    Path("my.en").write_text("other lines\n")
    call(f"{LINE} --run pocket")
    # and so is what is made of them
    assert heads(lines[before:]) == STEPS


def test_what_depends_on_more_training_is_done_again(
    call: Call, lines: list[list[str]]
) -> None:
    call(f"{LINE} --run pocket")
    before = len(lines)
    call(f"{LINE} --run pocket --minutes 20")
    # the model as it was has its score
    assert heads(lines[before:]) == ["train", "evaluate", "export"]


def test_fewer_minutes_do_not_bring_back_the_scores_of_then(
    call: Call, lines: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has had more by now, and it is the run that is exported."""
    typed = adapt.dispatch

    def scored(words: list[str]) -> None:
        if words[:1] == ["evaluate"] and "out/run" in words:
            minutes = float(Path("out/run/model.safetensors").read_text())
            print(json.dumps({"bleu": minutes, "chrf": 0.0}))
        else:
            typed(words)

    monkeypatch.setattr(adapt, "dispatch", scored)
    told = [
        json.loads(call(f"{LINE} --run pocket --json --minutes {n}").out)
        for n in (10, 20, 10)
    ]
    scores = [one["new"]["adapted"]["bleu"] for one in told]
    assert scores == [10.0, 20.0, 20.0]
