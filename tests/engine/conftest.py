"""What several files of this room need."""

import pytest

from annotated.training import Trainer, TrainingConfig, copy_corpus
from tests.searching import VOCAB, random_model


@pytest.fixture(scope="module")
def half_trained():
    """A copier that has begun to copy: it ends its outputs, mostly."""
    model = random_model(0, sure=1.0, end=0.0, dropout=0.1)
    corpus = copy_corpus(1000, vocab=VOCAB, length=5, seed=1)
    config = TrainingConfig(batch_tokens=300, warmup=100, max_steps=120)
    list(Trainer(model, corpus, config).steps())
    return model
