"""What a training prepares in its process, and puts back: page E5's
trainer, however it is made, and page E10's runner.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from annotated.engine import machine, runner
from annotated.engine import trainer as engine
from annotated.engine.runner import train_recipe
from annotated.engine.trainer import Trainer
from tests.engine.small import small_trainer
from tests.helpers import TINY


@pytest.mark.parametrize(
    ("device", "asked"),
    [
        ("cuda", ["high", 1]),
        ("cuda:1", ["high", "cuda:1", 1]),
        ("cpu", ["memory"]),
        ("mps", []),
    ],
)
def test_a_device_is_prepared_for_training(
    monkeypatch: pytest.MonkeyPatch, device: str, asked: list[Any]
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", found.append)
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    monkeypatch.setattr(
        machine, "keep_freed_memory", lambda: found.append("memory")
    )
    machine.set_up(device)
    assert found == asked


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_picked_gpu_is_the_current_one(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """torch.cuda.graph and Triton run on the current device."""
    found: list[str] = []
    monkeypatch.setattr(torch, "empty", lambda *size, device: None)
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    assert machine.pick_device(name) == name
    assert found == ([name] if ":" in name else [])


def test_a_trainer_made_by_hand_prepares_its_models_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[str] = []
    monkeypatch.setattr(engine, "set_up", found.append)
    small_trainer()
    assert found == ["cpu"]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_the_collector_passes_over_what_was_there_while_a_run_trains(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: bool,
    asked: bool,
) -> None:
    """And no longer; it still finds what comes later, if it was on."""
    steps, frozen = Trainer.steps, []

    def watched(trainer: Trainer) -> Any:
        for progress in steps(trainer):
            frozen.append((gc.get_freeze_count() > 10_000, gc.isenabled()))
            if fails:
                raise KeyError
            yield progress

    monkeypatch.setattr(runner.Trainer, "steps", watched)
    on = gc.isenabled()
    (gc.enable if asked else gc.disable)()
    try:
        train_recipe(
            TINY.changed(max_steps=2), tmp_path / "run", device="cpu"
        )
    except KeyError:
        assert fails
    finally:
        found = gc.get_freeze_count(), gc.isenabled()
        (gc.enable if on else gc.disable)()
    assert found == (0, asked)
    assert frozen == [(True, asked)] * (1 if fails else 2)
