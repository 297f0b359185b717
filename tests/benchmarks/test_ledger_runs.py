"""Files of finished runs, which a benchmark goes on from."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT, benchmark, write_pairs

Runs = list[dict[str, Any]]


def test_runs_with_other_settings_are_not_told_as_those_asked_for(
    tmp_path: Path,
) -> None:
    work, out = tmp_path / "runs.jsonl", tmp_path / "out.json"
    made: list[tuple[int, int]] = []
    with benchmark("ledger") as script:

        def run(settings: Any, work: Path) -> None:
            def make(name: str, seed: int) -> dict[str, Any]:
                made.append((settings.steps, seed))
                return {}

            script.make_each(work, settings.seeds, "row", ("a",), make)

        def result(settings: Any, runs: Runs) -> Any:
            return {"steps": settings.steps, "seeds": len(runs)}

        short = script.Settings(steps=5, seeds=1, work=work)
        script.make_runs(short, run, result)
        with pytest.raises(SystemExit) as refused:
            script.make_runs(replace(short, steps=9, json=out), run, result)
        # more seeds of the same are what the file is for
        script.make_runs(replace(short, seeds=2, json=out), run, result)
    assert made == [(5, 0), (5, 1)]
    assert json.loads(out.read_text()) == {"steps": 5, "seeds": 2}
    for words in (str(work), "--steps 5", "--steps 9", "another --work"):
        assert words in str(refused.value)


def test_a_file_without_settings_is_gone_on_with(tmp_path: Path) -> None:
    work = tmp_path / "runs.jsonl"
    work.write_text('{"row": "a", "seed": 0}\n')
    with benchmark("ledger") as script:
        seen: Runs = []
        settings = script.Settings(work=work)
        script.make_runs(
            settings, lambda s, work: seen.extend(script.read(work)), dict
        )
    assert seen == [{"row": "a", "seed": 0}]


def test_a_run_that_was_cut_off_while_it_was_written_is_made_again(
    tmp_path: Path,
) -> None:
    """A full disk leaves half a line: the runs before it are not lost."""
    work = tmp_path / "runs.jsonl"
    work.write_text('{"row": "a", "seed": 0}\n{"row": "a", "se')
    made = []

    def make(name: str, seed: int) -> dict[str, Any]:
        made.append((name, seed))
        return {}

    with benchmark("ledger") as script:
        script.make_each(work, 3, "row", ("a",), make)
        runs = script.read(work)
    assert made == [("a", 1), ("a", 2)]
    assert [run["seed"] for run in runs] == [0, 1, 2]


def test_a_broken_line_within_a_file_of_runs_is_named(
    tmp_path: Path,
) -> None:
    work = tmp_path / "runs.jsonl"
    work.write_text('{"row": "a", "seed": 0}\n<<<<\n{"row": "b"}\n')
    with benchmark("ledger") as script, pytest.raises(SystemExit) as told:
        script.read(work)
    assert f"{work}, line 2" in str(told.value)


def test_a_note_that_is_kept_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a note would be read as one when the work goes on."""
    note = tmp_path / "new folder" / "trial.json"

    def full(self: Path, target: Path) -> None:
        raise OSError("the disk is full")

    with benchmark("ledger") as script:
        script.keep(note, "{}")
        assert note.read_text() == "{}"
        monkeypatch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="full"):
            script.keep(note, '{"seed": 1}')
    assert note.read_text() == "{}"
    assert [path.name for path in note.parent.iterdir()] == ["trial.json"]


@pytest.mark.parametrize(
    "script",
    sorted((ROOT / "benchmarks").glob("*.py")),
    ids=lambda p: p.stem,
)
def test_what_is_kept_is_written_by_the_ledger(script: Path) -> None:
    """It makes the folder that is not there, and no half a file: a result
    of hours is not lost on its last line.
    """
    text = script.read_text(encoding="utf-8")
    own = r"(?:settings\.json|\bnote|\bkept)\.write_text\("
    apart = script.stem == "mutants"  # it runs in a copy without benchmarks
    assert apart or not re.search(own, text)


def test_positions_are_compared_with_the_model_that_pair_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of its steps here, with the same peak of the rate."""
    file = tmp_path / "found.json"
    data = write_pairs(tmp_path / "data", train=400, valid=20)
    own = {
        "data": "data", "d_model": 16, "d_ff": 16, "num_encoder_layers": 1,
        "num_decoder_layers": 1, "dropout": 0.0, "batch_tokens": 200,
        "max_steps": 12, "warmup": 4, "cooldown": 6, "rate": 1.0,
    }  # fmt: skip
    with benchmark("positions") as script:
        found = {"pair-data": {"recipe": "pair", "settings": own}}
        monkeypatch.setattr(script, "ledger", lambda: found)
        script.main(
            script.Settings(
                data=(str(data),), work=tmp_path / "runs", share=0.5,
                precision="float32", json=file,
            )
        )  # fmt: skip
        with pytest.raises(SystemExit, match="no run of pair on 'other'"):
            script.main(script.Settings(data=("other",)))
    made = json.loads(file.read_text())
    assert made["command"].startswith("python benchmarks/positions.py data")
    one, other = made["metrics"]["runs"]
    assert (one["positions"], other["positions"]) == (
        "rotary",
        "sinusoidal",
    )
    assert one["nats"] != other["nats"]
    for steps in ("--max-steps 6", "--warmup 2", "--cooldown 3"):
        assert steps in one["options"]
    assert "--rate 0.707" in one["options"]
