"""Which precision and which device: engine.machine and engine.runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from annotated.engine import machine, runs
from annotated.engine.runner import train_recipe
from annotated.engine.runs import read_recipe
from tests.helpers import TINY, Killed, at_step


def test_a_machine_that_multiplies_bfloat16_faster_trains_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "bfloat16_speedup", lambda n: 2.0)
    assert machine.pick_precision("cpu")[0] == "bfloat16"
    monkeypatch.setattr(machine, "bfloat16_speedup", lambda n: 1.1)
    assert machine.pick_precision("cpu")[0] == "float32"
    # what is emulated is not timed in a large product
    sizes = []
    monkeypatch.setattr(
        machine, "bfloat16_speedup", lambda n: sizes.append(n) or 0.02
    )
    assert machine.pick_precision("cpu")[0] == "float32"
    assert len(sizes) == 1


def test_a_gpu_says_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = machine.torch.cuda
    monkeypatch.setattr(cuda, "get_device_name", lambda device: "T4")
    for version, precision in (((7, 5), "float32"), ((8, 0), "bfloat16")):
        monkeypatch.setattr(
            cuda, "get_device_capability", lambda device, v=version: v
        )
        found, reason = machine.pick_precision("cuda")
        assert found == precision
        assert "T4" in reason


@pytest.mark.parametrize("faster", ["float32", "bfloat16"])
def test_what_the_machine_decides_is_said_and_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    faster: str,
) -> None:
    auto = TINY.changed(precision="auto")
    monkeypatch.setattr(
        runs, "pick_precision", lambda device: (faster, "so it is")
    )
    summary = train_recipe(auto, tmp_path / "run", device="cpu")
    line = f"precision {faster} on cpu: so it is\n"
    assert capsys.readouterr().err.count(line) == 1
    assert summary["precision"] == faster
    kept = read_recipe(tmp_path / "run").training.precision
    assert kept == faster
    # another machine would decide otherwise, and is not asked
    other = {"float32": "bfloat16", "bfloat16": "float32"}[faster]
    monkeypatch.setattr(
        runs, "pick_precision", lambda device: (other, "of another")
    )
    longer = auto.changed(max_steps=22)
    summary = train_recipe(
        longer, tmp_path / "run", resume=True, device="cpu"
    )
    assert summary["precision"] == faster
    assert "of another" not in capsys.readouterr().err


def test_a_killed_run_goes_on_bit_for_bit_in_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = TINY.changed(precision="bfloat16", dropout=0.1, max_steps=12)
    train_recipe(half, tmp_path / "whole", device="cpu")

    def killed() -> None:
        raise Killed

    with monkeypatch.context() as patch:
        at_step(patch, 8, killed)
        with pytest.raises(Killed):
            train_recipe(half, tmp_path / "cut", device="cpu")
    train_recipe(half, tmp_path / "cut", resume=True, device="cpu")
    whole, cut = (
        load_file(tmp_path / name / "model.safetensors")
        for name in ("whole", "cut")
    )
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    full = half.changed(precision="float32")
    train_recipe(full, tmp_path / "full", device="cpu")
    other = load_file(tmp_path / "full" / "model.safetensors")
    assert not all(torch.equal(whole[name], other[name]) for name in whole)


def test_apples_gpu_comes_after_cudas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine.torch, "empty", lambda *_, **__: None)
    apple, cuda = machine.torch.backends.mps, machine.torch.cuda
    found = []
    for there in ((False, False), (True, False), (True, True)):
        monkeypatch.setattr(apple, "is_available", lambda t=there: t[0])
        monkeypatch.setattr(cuda, "is_available", lambda t=there: t[1])
        found.append(machine.pick_device())
    assert found == ["cpu", "mps", "cuda"]
