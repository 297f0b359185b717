"""A run that had finished and is trained further: engine.runner, from page
E10.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from annotated.engine import runner, start
from annotated.engine.errors import RunError, Stopped
from annotated.engine.runner import train_recipe
from annotated.engine.runs import Run
from tests.engine.folders import TINY, send
from tests.helpers import Killed, at_step


def test_a_finished_run_that_goes_on_is_its_newest_checkpoint(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it is what it was, its scores included; and it is not
    begun anew where its checkpoints have been deleted.
    """
    names = "model.safetensors", "summary.json", "scores.json"
    (run / "scores.json").write_text("{}")
    before = [(run / name).read_bytes() for name in names]
    longer = TINY.changed(max_steps=60, save_every=5)

    def is_as_it_was() -> None:
        assert [(run / name).read_bytes() for name in names] == before
        send(signal.SIGINT)()

    at_step(monkeypatch, 23, is_as_it_was)
    with pytest.raises(Stopped, match="at step 23"):
        train_recipe(longer, run, resume=True)
    left = [(run / f"discarded-{name}").read_bytes() for name in names]
    assert left == before
    assert not any((run / name).exists() for name in names)
    newest = run / "checkpoints" / "00000023" / names[0]
    weights, expected = Run.open(run).model.state_dict(), load_file(newest)
    assert all(torch.equal(weights[n], expected[n]) for n in expected)
    shutil.rmtree(run / "checkpoints")
    for name in ("metrics.jsonl", "best.safetensors"):
        (run / name).unlink()
    with pytest.raises(RunError, match="no intact.*left as it is"):
        train_recipe(longer, run, resume=True)


@pytest.mark.parametrize(
    "moved", ["model.safetensors", "scores.json", "summary.json"]
)
def test_killed_between_two_files_set_aside_the_next_save_goes_on(
    run: Path, monkeypatch: pytest.MonkeyPatch, moved: str
) -> None:
    """Nor are the scores of the model before taken for those of this one."""
    (run / "scores.json").write_text("{}")
    real = runner.move

    def move(path: Path, to: Path) -> None:
        real(path, to)
        if path.name == moved:
            raise Killed

    longer = TINY.changed(max_steps=30)
    with monkeypatch.context() as patch:
        patch.setattr(runner, "move", move)
        with pytest.raises(Killed):
            train_recipe(longer, run, resume=True)
    newest = run / "checkpoints" / "00000025" / "model.safetensors"
    weights, expected = Run.open(run).model.state_dict(), load_file(newest)
    assert all(torch.equal(weights[n], expected[n]) for n in expected)
    summary = train_recipe(longer, run, resume=True)
    kept = json.loads((run / "summary.json").read_text("utf-8"))
    assert kept == summary
    assert (run / "discarded-summary.json").exists()
    assert not (run / "scores.json").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_of_several_processes_one_says_what_has_changed(
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rank: int,
) -> None:
    monkeypatch.setattr(start, "rank", lambda: rank, raising=False)
    start.resume_run(TINY.changed(max_steps=30), run)
    said = capsys.readouterr().err
    assert said == ("" if rank else "resuming with: max_steps 30\n")
