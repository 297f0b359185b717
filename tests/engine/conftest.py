"""Runs and checkpoints that several files look at."""

import shutil
from pathlib import Path

import pytest

from annotated.engine.runner import train_recipe
from tests.engine import trainings
from tests.engine.folders import TINY


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that went from beginning to end. Look, do not touch."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    train_recipe(TINY, folder)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to do things to."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def saved(tmp_path):
    """A trainer after 3 steps and its checkpoint."""
    trainer = trainings.new_trainer()
    trainings.run(trainer, 3)
    return trainer, trainings.save_checkpoint(trainer, tmp_path, keep=5)
