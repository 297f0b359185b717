"""Chapter 15, E5 and E10: a training is whole again, whatever trains it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from annotated import checkpoints as plain
from annotated import training
from annotated.engine import log, runner
from annotated.engine.checkpoints import (
    _FILES,
    checkpoints,
    restore,
)
from annotated.engine.distributed import rank
from annotated.engine.runner import train_recipe
from annotated.engine.runs import read_metrics
from tests.engine.groups import (
    SHARDED_ONLY,
    in_processes,
    joined,
    started,
    together,
)
from tests.engine.optimizers import (
    CONFIG,
    OPTIMIZERS,
    STOP,
    VALID,
    differences,
    everything,
    new_trainer,
    run,
    with_optimizer,
)
from tests.helpers import TINY

MOMENTS = "after a validation", "before one"
WORLDS = {
    "plain": (1, False),
    "2 processes": (2, False),
    "shard": (2, True),
}


def cell(name: str, moment: str, folder: Path, shard: bool) -> str:
    """A run that is saved, thrown away and taken up, beside one that was
    not; "" where both end, in this process, with the same weights and state.
    """
    kind, more = with_optimizer(OPTIMIZERS[name]), {"shard": shard}
    whole = new_trainer(kind, **more)
    run(whole)
    trainer = new_trainer(kind, **more)
    run(trainer, STOP)
    if moment == MOMENTS[0]:
        trainer.validate(VALID)
    places = folder / f"{name} {moment}"
    if rank() == 0:
        places.mkdir(parents=True)
    place = trainer.save(places)
    trainer = new_trainer(kind, seed=5, **more)
    restore(trainer, place)
    run(trainer)
    return differences(everything(whole), everything(trainer))


def cells(folder: str, shard: bool) -> dict[tuple[str, str], str]:
    """All ten of a world, in its processes, one after the other."""
    found = {}
    for name in OPTIMIZERS:
        for moment in MOMENTS:
            try:
                found[name, moment] = cell(
                    name, moment, Path(folder), shard
                )
            except Exception as error:
                found[name, moment] = f"{type(error).__name__}: {error}"
    return found


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What becomes of the cells of a world in each of its processes,
    computed once.
    """
    known: dict[str, list[dict[tuple[str, str], str]]] = {}

    def of(world: str) -> list[dict[tuple[str, str], str]]:
        if world not in known:
            size, shard = WORLDS[world]
            folder = str(tmp_path_factory.mktemp("grid"))
            known[world] = (
                [cells(folder, shard)]
                if size == 1
                else together(size, cells, folder, shard)
            )
        return known[world]

    yield of


NO_MUON = pytest.mark.skipif(
    not hasattr(torch.optim, "Muon"), reason="torch has no Muon"
)
THIRTY = [
    pytest.param(
        world,
        name,
        moment,
        marks=[
            *([SHARDED_ONLY] if world == "shard" else []),
            *([NO_MUON] if name == "Muon" else []),
        ],
    )
    for world in WORLDS
    for name in OPTIMIZERS
    for moment in MOMENTS
]


@pytest.mark.parametrize(("world", "name", "moment"), THIRTY)
def test_a_resumed_run_is_the_same_to_the_bit_whatever_trains_it(
    grid: Any, world: str, name: str, moment: str
) -> None:
    for of_process in grid(world):
        assert of_process[name, moment] == ""


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[NO_MUON] if name == "Muon" else [])
        for name in OPTIMIZERS
    ],
)
def test_so_is_one_of_the_storys_trainer(
    name: str, moment: str, tmp_path: Path
) -> None:
    kind = with_optimizer(OPTIMIZERS[name], training.Trainer)
    whole, trainer = new_trainer(kind), new_trainer(kind)
    run(whole)
    run(trainer, STOP)
    if moment == MOMENTS[0]:
        training.validate(trainer.model, VALID, CONFIG)
    place = plain.save_checkpoint(trainer, tmp_path)
    trainer = new_trainer(kind, seed=5)
    plain.load_checkpoint(trainer, place)
    run(trainer)
    assert differences(everything(whole), everything(trainer)) == ""


# --- the runner's order: validate, save, kill, resume ---------------------


def train(
    folder: str, name: str, shard: bool, moment: str, last: int
) -> None:
    """train_recipe; with last, until kill -9 at that step of all."""
    changes: dict[str, Any] = {"max_steps": 10, "save_every": 4}
    if moment == MOMENTS[1]:  # each step is saved: nothing is validated yet
        changes |= {"save_minutes": 1e-9}
    recipe = TINY.changed(dropout=0.1, **changes)
    runner.Trainer = with_optimizer(OPTIMIZERS[name])  # type: ignore[misc]
    note = log.Log.step

    def and_die(log: Any, progress: Any) -> None:
        note(log, progress)
        if progress.step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    log.Log.step = and_die  # type: ignore[method-assign]
    resume = (Path(folder) / "recipe.json").exists()
    train_recipe(
        recipe, Path(folder), resume=resume, device="cpu", shard=shard
    )


def end_of(folder: Path) -> dict[str, Any]:
    """Weights and state of the last step, the model, and the scores."""
    last = checkpoints(folder / "checkpoints")[-1]
    files = [last / name for name in _FILES[:2]]
    files += [folder / "model.safetensors", folder / "best.safetensors"]
    scores = [e["valid"] for e in read_metrics(folder) if "valid" in e]
    return {
        "step": last.name,
        "scores": scores,
        **{file.name: file.read_bytes() for file in files},
    }


def killed_and_resumed(
    world: str, name: str, moment: str, tmp_path: Path
) -> None:
    size, shard = WORLDS[world]
    whole, folder = tmp_path / "whole", tmp_path / "run"
    how = name, shard, moment
    found = in_processes(size, joined, train, str(whole), *how, 0)
    assert found == [None] * size
    last = {MOMENTS[0]: 6, MOMENTS[1]: 3}[moment]
    with started(size, joined, train, str(folder), *how, last) as (some, _):
        for process in some:
            process.join(120)
            assert process.exitcode == -signal.SIGKILL
    steps = [p.name for p in checkpoints(folder / "checkpoints")]
    assert steps == {6: ["00000004"], 3: ["00000002"]}[last]
    found = in_processes(size, joined, train, str(folder), *how, 0)
    assert found == [None] * size
    assert end_of(folder) == end_of(whole)


@pytest.mark.parametrize(
    ("world", "name", "moment"),
    [
        ("plain", "AdamW in two groups", MOMENTS[0]),
        ("2 processes", "SGD with momentum", MOMENTS[1]),
        pytest.param("shard", "Adam", MOMENTS[0], marks=SHARDED_ONLY),
    ],
)
def test_a_run_that_was_killed_is_the_same_to_the_bit(
    world: str, name: str, moment: str, tmp_path: Path
) -> None:
    killed_and_resumed(world, name, moment, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("world", "name", "moment"), THIRTY)
def test_killed_and_resumed_it_is_the_same_whatever_trains_it(
    world: str, name: str, moment: str, tmp_path: Path
) -> None:
    killed_and_resumed(world, name, moment, tmp_path)
