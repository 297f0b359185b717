"""A sweep: book.sweep, page E19, and the command annotated sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from annotated.book import sweep as module
from annotated.book.sweep import Sweep, _SharedData, one_run, shared_data
from annotated.cli import main
from annotated.engine.errors import RunError, UsageError
from annotated.engine.recipes import Recipe
from annotated.variations import small_rows
from tests.helpers import environment

TINY = {
    "train_pairs": 40, "d_model": 16, "d_ff": 16, "num_encoder_layers": 1,
    "num_decoder_layers": 1, "batch_tokens": 100, "extra": 2,
}  # fmt: skip


def tiny_rows(steps: int, seed: int = 0) -> dict[str, Recipe]:
    """Two rows that take no time."""
    base = small_rows(steps, seed)["base"].changed(**TINY)
    return {"base": base, "C-N4": base.changed(num_encoder_layers=2)}


def tiny_data(recipe: Recipe) -> _SharedData:
    """Few sentences to be judged by."""
    full = shared_data(recipe)
    return _SharedData(
        full.tokenizers,
        full.train,
        full.valid.first(20),
        full.lines[:3],
        full.references[:3],
    )


@pytest.fixture(scope="module")
def data() -> _SharedData:
    return tiny_data(tiny_rows(20, 0)["base"])


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, data: _SharedData) -> list[str]:
    """The runs that are made, as they are made; all of them tiny."""
    monkeypatch.setattr(module, "small_rows", tiny_rows)
    monkeypatch.setattr(module, "shared_data", lambda recipe: data)
    names = []

    def note(recipe: Recipe, *rest: Any) -> dict[str, Any]:
        layers = recipe.model.num_encoder_layers
        names.append(f"{layers}, seed {recipe.training.seed}")
        return one_run(recipe, *rest)

    monkeypatch.setattr(module, "one_run", note)
    return names


def sweep(out: Path, **changes: Any) -> Sweep:
    given = {"seeds": 1, "steps": 20, "device": "cpu", "minutes": 5.0}
    return Sweep(experiment="table3", out=out, **given | changes)


# --- runs -----------------------------------------------------------------


def test_a_run_is_a_function_of_its_recipe(data: _SharedData) -> None:
    rows = tiny_rows(20, 0)
    one, again, other = (
        one_run(recipe, data)
        for recipe in (rows["base"], rows["base"], tiny_rows(20, 1)["base"])
    )
    one.pop("seconds"), again.pop("seconds")
    assert one == again
    assert one["perplexity"] != other["perplexity"]
    assert one["parameters"] == other["parameters"]


def test_a_run_says_what_section_6_1_asks_for(data: _SharedData) -> None:
    found = one_run(tiny_rows(20, 0)["base"], data)
    for name in ("bleu", "greedy_bleu", "alpha0_bleu", "mean_bleu"):
        assert 0 <= found[name] <= 100
    for name in ("accuracy", "mean_accuracy"):
        assert 0 < found[name] < 100
    assert found["signature"].startswith("nrefs:1")
    # the mean of the last snapshots is another model than the last
    assert found["mean_perplexity"] != found["perplexity"]


def test_averaging_takes_the_last_five_snapshots(
    data: _SharedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one snapshot, the mean is the last model."""
    monkeypatch.setattr(module, "_KEPT", 1)
    found = one_run(tiny_rows(20, 0)["base"], data)
    for name in ("perplexity", "accuracy", "bleu"):
        assert found[f"mean_{name}"] == pytest.approx(found[name], rel=1e-6)


def test_the_data_do_not_depend_on_the_seed(data: _SharedData) -> None:
    other = tiny_data(tiny_rows(20, 1)["base"])
    assert data.lines == other.lines
    assert (data.train.src.ids == other.train.src.ids).all()


# --- sweeps ---------------------------------------------------------------


def test_every_row_is_run_with_every_seed(
    made: list[str], tmp_path: Path
) -> None:
    done = sweep(tmp_path, seeds=2).run()
    assert done == {"steps": 20, "runs": 4, "open": 0}
    assert made == ["1, seed 0", "2, seed 0", "1, seed 1", "2, seed 1"]
    for seed in (0, 1):
        path = tmp_path / f"table3-small-{seed}.json"
        file = json.loads(path.read_text())
        assert file["recipe"] == "table3"
        assert file["seed"] == seed
        assert file["settings"]["steps"] == 20
        assert list(file["metrics"]["runs"]) == ["base", "C-N4"]
        assert file["wall_seconds"] > 0
        for key in ("command", "commit", "date", "hardware", "versions"):
            assert key in file
        assert (
            f"--first-seed {seed} --seeds 1 --steps 20" in file["command"]
        )


def test_a_run_that_is_there_is_not_made_again(
    made: list[str], tmp_path: Path
) -> None:
    sweep(tmp_path, only=("C-N4",)).run()
    before = sweep(tmp_path).kept(0)
    assert sweep(tmp_path, seeds=2).run()["runs"] == 4
    assert made == ["2, seed 0", "1, seed 0", "1, seed 1", "2, seed 1"]
    after = sweep(tmp_path).kept(0)
    assert before is not None and after is not None
    runs = after["metrics"]["runs"]
    assert runs["C-N4"] == before["metrics"]["runs"]["C-N4"]
    assert after["wall_seconds"] > before["wall_seconds"]


def test_a_row_that_is_named_twice_is_run_once(
    made: list[str], tmp_path: Path
) -> None:
    done = sweep(tmp_path, only=("C-N4", "C-N4")).run()
    assert done == {"steps": 20, "runs": 1, "open": 0}
    assert made == ["2, seed 0"]


def test_when_the_minutes_are_over_the_rest_is_open(
    made: list[str], tmp_path: Path
) -> None:
    done = sweep(tmp_path, minutes=1e-9).run()
    assert done == {"steps": 20, "runs": 0, "open": 2}
    assert made == []


def test_a_sweep_that_goes_on_keeps_its_steps(
    made: list[str], tmp_path: Path
) -> None:
    sweep(tmp_path, only=("base",)).run()
    assert sweep(tmp_path, steps=None).run()["steps"] == 20
    with pytest.raises(RunError, match="20 and 30 steps cannot be"):
        sweep(tmp_path, steps=30).run()


def test_minutes_are_divided_among_the_runs(
    made: list[str], tmp_path: Path, data: _SharedData
) -> None:
    """As many steps as fit: more minutes, more; more seeds, fewer."""
    few, many, shared = (
        sweep(tmp_path, minutes=m, seeds=s).steps_that_fit(data, "cpu")
        for m, s in ((5, 1), (50, 1), (50, 10))
    )
    assert 3 < many / few < 30
    assert 3 < many / shared < 30
    with pytest.raises(UsageError, match=r"give at least \d+ minutes"):
        sweep(tmp_path, minutes=1e-6).steps_that_fit(data, "cpu")


def test_a_commit_is_told_for_all_runs_of_a_file(
    made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = module.entry

    def at(commit: str | None) -> None:
        monkeypatch.setattr(
            module,
            "entry",
            lambda *a, **k: content(*a, **k) | {"commit": commit},
        )

    for row, commit in (("base", "one"), ("C-N4", "two")):
        at(commit)
        sweep(tmp_path, only=(row,)).run()
    file = sweep(tmp_path).kept(0)
    assert file is not None and file["commit"] == "one, two"


# --- what can be wrong ----------------------------------------------------


def test_another_base_is_not_mixed_in(
    made: list[str], tmp_path: Path
) -> None:
    sweep(tmp_path, only=("base",)).run()
    path = tmp_path / "table3-small-0.json"
    file = json.loads(path.read_text())
    file["settings"]["base"]["d_model"] = 8
    path.write_text(json.dumps(file))
    with pytest.raises(RunError, match="another base recipe"):
        sweep(tmp_path).run()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"settings": 1}'])
def test_a_damaged_file_is_named_and_kept(
    made: list[str], tmp_path: Path, text: str
) -> None:
    path = tmp_path / "table3-small-0.json"
    path.write_text(text)
    with pytest.raises(RunError, match=f"{path.name} is not a sweep"):
        sweep(tmp_path).run()
    assert path.read_text() == text
    assert made == []


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("table4 --minutes 1", "'table4'"),
        ("table3", "--minutes"),
        ("table3 --minutes 0", "minutes must be positive, not 0"),
        ("table3 --minutes nan", "minutes must be positive"),
        ("table3 --minutes x", "--minutes"),
        (
            "table3 --minutes 1 --seeds 0",
            "seeds must be an integer >= 1",
        ),
        (
            "table3 --minutes 1 --steps 5",
            "steps must be an integer >= 20",
        ),
        (
            "table3 --minutes 1 --first-seed -1",
            "first_seed must be an integer >= 0",
        ),
        ("table3 --minutes 1 --only A-h2", "no row 'A-h2'; there are base"),
        ("table3 --minutes 1 --out file", "file is not a folder"),
        ("table3 --minutes 1 --device tpu", "no 'tpu' device"),
    ],
)
def test_a_wrong_line_ends_with_code_2(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    line: str,
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    monkeypatch.setattr(sys, "argv", ["annotated", "sweep", *line.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert complaint in " ".join(said.err.replace("│", " ").split())
    assert "Traceback" not in said.err
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


SCRIPT = """
import sys
from pathlib import Path
from annotated.book import sweep
from tests.book.test_sweep import tiny_data, tiny_rows
data = tiny_data(tiny_rows(20, 0)["base"])
sweep.small_rows = tiny_rows
sweep.shared_data = lambda recipe: data
print(sweep.Sweep(experiment="table3", minutes=5, steps=20, seeds=40,
                  device="cpu", out=Path(sys.argv[1])).run())
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_a_sweep_that_is_killed_keeps_what_it_had(
    made: list[str], tmp_path: Path
) -> None:
    running = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    later = tmp_path / "table3-small-1.json"
    end = time.monotonic() + 600
    while not later.exists() and time.monotonic() < end:
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    first = sweep(tmp_path).kept(0)
    assert first is not None and len(first["metrics"]["runs"]) == 2
    assert sweep(tmp_path, seeds=2).run()["open"] == 0
    assert all(name.endswith("seed 1") for name in made)
    assert sweep(tmp_path).kept(0) == first
