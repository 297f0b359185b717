"""annotated train --config FILE: a recipe.json, or TOML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from annotated.commands import train as training
from annotated.engine.recipes import RECIPES, Recipe
from annotated.engine.runs import read_recipe
from tests.commands.conftest import Call

TOML = """
recipe = "pair"
data = "ready"   # a comment
max_minutes = 30
parts = []

[model]
d_model = 48
norm = "post"
windows = [3, 0]

[search]
beam = 2
"""


@pytest.fixture
def asked(call: Call, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recipe that a command line would train."""

    def ask(line: str) -> Recipe:
        seen: list[Recipe] = []
        monkeypatch.setattr(
            training.Train, "act", lambda s: seen.append(s.recipe)
        )
        done = call(line)
        assert done.code == 0, done.err
        return seen[0]

    return ask


def test_toml_says_what_differs_from_a_recipe(
    asked: Any, tmp_path: Path
) -> None:
    (tmp_path / "my.toml").write_text(TOML, "utf-8")
    expected = RECIPES["pair"].changed(
        data="ready", max_minutes=30, d_model=48, norm="post",
        windows=(3, 0), beam=2,
    )  # fmt: skip
    line = f"--config {tmp_path}/my.toml --out x"
    assert asked(f"train {line}") == expected
    assert "d_model" not in expected.fit and "d_ff" in expected.fit
    # the command line comes first, and a recipe that it names
    assert asked(f"train {line} --d-model 8") == expected.changed(d_model=8)
    copy = asked(f"train copy --config={tmp_path}/my.toml --out x")
    assert (copy.about, copy.model.d_model) == (RECIPES["copy"].about, 48)


def test_a_run_is_repeated_from_its_recipe(asked: Any, run: Path) -> None:
    own = read_recipe(run)
    assert asked(f"train --config {run}/recipe.json --out x") == own
    longer = asked(
        f"train --config {run}/recipe.json --max-steps 9 --out x"
    )
    assert longer == own.changed(max_steps=9)


def test_a_recipe_of_ones_own_is_trained_and_resumed(
    call: Call, run: Path, tmp_path: Path
) -> None:
    file = tmp_path / "again.json"
    values = json.loads((run / "recipe.json").read_text())
    values["training"] |= {"max_steps": 2, "save_every": 1}
    file.write_text(json.dumps(values))
    done = call(f"train --config {file} --out {tmp_path}/mine")
    assert done.code == 0, done.err
    values["training"]["max_steps"] = 3
    file.write_text(json.dumps(values))
    done = call(f"train --config {file} --out {tmp_path}/mine --resume")
    assert done.code == 0, done.err
    assert read_recipe(tmp_path / "mine").training.max_steps == 3
    values["training"]["seed"] = 7
    file.write_text(json.dumps(values))
    done = call(f"train --config {file} --out {tmp_path}/mine --resume")
    assert "was started with seed 0" in done.complaint


@pytest.mark.parametrize("typed", ["", "--fit d_model max_steps"])
def test_what_a_file_lets_be_fitted_stays_so_and_the_rest_changes(
    call: Call, run: Path, tmp_path: Path, typed: str
) -> None:
    """The run has other values than the file, whose fields were fitted."""
    file = tmp_path / "open.toml"
    file.write_text(
        'recipe = "copy"\nclip = 2.0\nd_model = 64\nmax_steps = 10\n'
        'fit = ["d_model", "max_steps"]\n'
    )
    line = f"train --config {file} --out {run} --resume {typed}"
    done = call(f"{line} --d-model 32")
    assert "started with d_model 16" in done.complaint
    done = call(f"{line} --rate 0.5" + ("" if typed else " --max-steps 22"))
    assert done.code == 0, done.err
    assert "clip 2.0" in done.err and "rate 0.5" in done.err
    training = read_recipe(run).training
    assert training.max_steps == (20 if typed else 22)


WRONG: dict[str, tuple[str, str]] = {
    "no TOML": ("d_model 3", "is not TOML: "),
    "no field": ('recipe = "copy"\nd_modle = 3', "my.toml: unknown field 'd_modle': did you mean d_model"),
    "no table": ('recipe = "copy"\n[modle]\nd_ff = 3', "unknown field 'modle'"),
    "a text for a number": ('recipe = "copy"\nd_model = "wide"', "my.toml: d_model must be a whole number, not 'wide'"),
    "yes for a number": ('recipe = "copy"\nd_model = true', "d_model must be a whole number"),
    "a number for a text": ('recipe = "copy"\ndata = 3', "data must be a text, not 3"),
    "a text for a list": ('recipe = "copy"\nwindows = "3"', "windows must be a list, not '3'"),
    "a list of texts": ('recipe = "copy"\nwindows = ["3"]', "windows must be a list, each a whole number"),
    "a list for a choice": ('recipe = "copy"\nnorm = ["pre"]', "norm must be a text"),
    "no choice": ('recipe = "copy"\nnorm = "mid"', "my.toml: norm must be one of post, pre"),
    "too small": ('recipe = "copy"\nd_model = 0', "my.toml: d_model must be"),
    "a list for a rate": ('recipe = "copy"\ndropout = [1]', "my.toml: dropout must be a number"),
    "no recipe": ("d_model = 3", 'my.toml names no recipe: say recipe = "pair"'),
    "no such recipe": ('recipe = "pear"', "unknown recipe 'pear': did you mean pair"),
    "a recipe that is none": ("recipe = [1]", r"unknown recipe"),
    "an import": ('recipe = "copy"\n[imports]\n"x.py" = "0"', "was trained with parts of x.py: give --import"),
    "no training": ('recipe = "copy"\ntraining = 3', "my.toml: training must be a table"),
    "a list for a table": ('recipe = "copy"\nsearch = [1]', "my.toml: search must be a table"),
    "no table's name": ('recipe = "copy"\ntrainin = 3', "unknown field 'trainin': did you mean train_pairs?"),
    "a table's name": ('recipe = "copy"\n[trainin]\nseed = 3', "unknown field 'trainin': did you mean training?"),
    "no imports": ('recipe = "copy"\nimports = 3', "imports must be a table"),
    "no text": ("\0", "my.toml, line 1"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_in_a_file_is_one_line(
    kind: str, call: Call, tmp_path: Path
) -> None:
    text, message = WRONG[kind]
    (tmp_path / "my.toml").write_text(text, "utf-8")
    done = call(f"train --config {tmp_path}/my.toml --out {tmp_path}/mine")
    assert message in done.complaint
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("text", ["[1]", "{", "[" * 99_999, '"x"'])
def test_json_that_holds_no_fields_is_one_line(
    text: str, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "my.json").write_text(text, "utf-8")
    done = call(f"train --config {tmp_path}/my.json --out x")
    assert "my.json" in done.complaint


def test_a_file_that_is_not_there_is_one_line(call: Call) -> None:
    assert "nowhere.toml" in call("train --config nowhere.toml").complaint
    assert call("train --config").complaint
