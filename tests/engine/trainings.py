"""What tests of checkpoints share: a training of sixteen steps."""

import torch

from annotated.engine import trainer as engine
from annotated.engine.checkpoints import (
    checkpoints,
    drop_old,
    write_checkpoint,
)
from annotated.engine.checkpoints import restore as load_checkpoint
from annotated.engine.trainer import RunConfig
from annotated.model import Transformer, TransformerConfig
from annotated.training import copy_corpus
from tests.helpers import SHAPE

CONFIG = RunConfig(batch_tokens=60, warmup=10, max_steps=16)
CORPUS = copy_corpus(40, vocab=12, length=5)
EPOCH = len(CORPUS.plan(CONFIG.batch_tokens, CONFIG.seed, 0))


def new_trainer(seed=0, config=CONFIG, kind=engine.Trainer, **changes):
    torch.manual_seed(seed)
    shape = SHAPE | {"dropout": 0.2} | changes
    model = Transformer(TransformerConfig(**shape))
    return kind(model, CORPUS, config)


def run(trainer, until=CONFIG.max_steps):
    if trainer.step >= until:
        return
    for progress in trainer.steps():
        if progress.step == until:
            return


def save_checkpoint(trainer, folder, keep=5, every=1):
    folder.mkdir(exist_ok=True)
    place = folder / f"{trainer.step:08d}"
    parts = trainer.weights(), trainer.moments(), trainer.state()
    write_checkpoint(*parts, place)
    drop_old(place, keep, every)
    return place


def weights(trainer):
    return {
        n: p.detach().clone() for n, p in trainer.model.named_parameters()
    }


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def assert_whole(folder, steps):
    """Just these checkpoints are listed, and each can be taken up."""
    assert [int(p.name) for p in checkpoints(folder)] == steps
    for place in checkpoints(folder):
        later = new_trainer(seed=9)
        load_checkpoint(later, place)
        run(later, later.step + 1)
