"""annotated average and export."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.commands.conftest import TINY, Call
from tests.helpers import content


def losses_of(run: Path, **nll: float) -> None:
    """Let the validations of a run have been these, by step."""
    entries = [
        {"step": int(step[1:]), "valid": {"nll": value}}
        for step, value in nll.items()
    ]
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    (run / "metrics.jsonl").write_text(text)


def weights_of(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


def test_the_last_checkpoints_are_averaged(
    call: Call, run: Path, tmp_path: Path
) -> None:
    before = content(run)
    out = tmp_path / "mean"
    done = call(f"average --run {run} --last 2 --out {out}")
    assert json.loads(done.out) == {"averaged": [10, 20]}
    places = [
        weights_of(run / "checkpoints" / f"{n:08d}") for n in (10, 20)
    ]
    for name, mean in weights_of(out).items():
        both = (places[0][name].double() + places[1][name].double()) / 2
        assert torch.equal(mean, both.float())
    assert content(run) == before


def test_a_mean_is_a_run_like_any_other(
    call: Call, run: Path, pair: str, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "mean"
    assert call(f"average --run {run} --out {out}").code == 0
    assert call(f"translate --run {out}", b"a b\n").code == 0
    done = call(f"evaluate --run {run} {pair} --against {out} --json")
    # train ended with the mean of all that it kept
    assert json.loads(done.out)["against"]["chrf_difference"]["p"] == 1.0


def test_the_best_checkpoint_is_the_one_that_validated_best(
    call: Call, run: Path, tmp_path: Path
) -> None:
    losses_of(run, s10=1.0, s20=2.0)
    out = tmp_path / "best"
    done = call(f"average --run {run} --best 1 --out {out}")
    assert json.loads(done.out) == {"averaged": [10]}
    best = weights_of(run / "checkpoints" / "00000010")
    for name, weight in weights_of(out).items():
        assert torch.equal(weight, best[name])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--last 3", "3 checkpoints are wanted, but there are 2"),
        ("--best 2", "2 validated checkpoints are wanted, but there are 1"),
        ("--last 0", "an integer >= 1, not 0"),
        ("--best -1", "an integer >= 1, not -1"),
        ("--last 1 --best 1", "give --last or --best, not both"),
    ],
)
def test_checkpoints_that_are_not_there_are_missed(
    call: Call, run: Path, tmp_path: Path, options: str, complaint: str
) -> None:
    losses_of(run, s20=1.0)
    out = tmp_path / "mean"
    done = call(f"average --run {run} --out {out} {options}")
    assert complaint in done.complaint
    assert not out.exists()


def test_the_mean_of_a_run_that_went_on_from_another_stands_alone(
    call: Call, run: Path, tmp_path: Path
) -> None:
    """It lacks the other's weights, and does not say that it had them."""
    line = f"train copy --init {run} --out {tmp_path / 'more'} {TINY}"
    assert call(line).code == 0
    out = tmp_path / "mean"
    assert call(f"average --run {tmp_path / 'more'} --out {out}").code == 0
    done = call(f"average --run {out} --out {tmp_path / 'again'}")
    assert "has no checkpoints to average" in done.complaint
    done = call(f"train copy --resume --out {out}")
    assert "no intact checkpoint to resume from" in done.complaint


def test_a_mean_overwrites_nothing(call: Call, run: Path) -> None:
    before = content(run)
    done = call(f"average --run {run} --out {run}")
    assert f"{run} is not empty: choose another --out" in done.complaint
    # which average has no --resume for
    assert "a run that train continues with --resume" in done.complaint
    done = call(f"average --run {run} --out {run / 'recipe.json'}")
    assert "recipe.json is a file: choose another --out" in done.complaint
    assert content(run) == before


def test_a_run_that_cannot_be_averaged_is_named(
    call: Call, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mean"
    done = call(f"average --run {tmp_path / 'no'} --out {out}")
    assert "is not a run folder" in done.complaint
    place = run / "checkpoints" / "00000020" / "model.safetensors"
    place.write_bytes(place.read_bytes()[:100])
    done = call(f"average --run {run} --out {out}")
    assert "00000020/model.safetensors cannot be read" in done.complaint
    shutil.rmtree(run / "checkpoints")
    done = call(f"average --run {run} --out {out}")
    assert "has no checkpoints to average" in done.complaint
    assert not out.exists()


def test_an_exported_run_translates_as_before(
    call: Call, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = call(f"export --run {run} --to safetensors --out {out}")
    told = json.loads(done.out)
    assert told["to"] == "safetensors" and told["out"] == str(out)
    assert told["files"] == sorted(path.name for path in out.iterdir())
    before, after = (
        call(f"translate --run {folder}", b"a b c\n\n")
        for folder in (run, out)
    )
    assert before == after and before.code == 0
    again = call(f"export --run {run} --to safetensors --out {out}")
    assert "is not empty" in again.complaint
    wrong = call(f"export --run {run} --to gguf --out {tmp_path / 'new'}")
    assert wrong.code == 2 and "gguf" in wrong.err
