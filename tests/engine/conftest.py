"""Runs and checkpoints that several files look at."""

import shutil
from pathlib import Path

import pytest

from annotated.engine.runner import train_recipe
from annotated.training import Trainer, TrainingConfig, copy_corpus
from tests.engine import trainings
from tests.engine.folders import TINY
from tests.searching import VOCAB, random_model


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


@pytest.fixture(scope="session")
def uninterrupted():
    """The weights and tokens of the training that nothing stops."""
    trainer = trainings.new_trainer()
    trainings.run(trainer)
    return trainings.weights(trainer), trainer.tokens


@pytest.fixture(scope="module")
def half_trained():
    """A copier that has begun to copy: it ends its outputs, mostly."""
    model = random_model(0, sure=1.0, end=0.0, dropout=0.1)
    corpus = copy_corpus(1000, vocab=VOCAB, length=5, seed=1)
    config = TrainingConfig(batch_tokens=300, warmup=100, max_steps=120)
    list(Trainer(model, corpus, config).steps())
    return model
