"""Corpora and trainers that the tests of both trainers share."""

import torch

from annotated.engine.trainer import RunConfig
from annotated.model import Transformer, TransformerConfig
from annotated.training import copy_corpus
from tests.helpers import SHAPE


def small_model(seed=0, **changes):
    torch.manual_seed(seed)
    return Transformer(TransformerConfig(**(SHAPE | changes)))


def small_corpus(count=40, **kind):
    return copy_corpus(count, vocab=12, length=5, **kind)


CONFIG = RunConfig(batch_tokens=60, warmup=10, max_steps=12)


def train(kind, model, corpus=None, config=CONFIG):
    return list(kind(model, corpus or small_corpus(), config).steps())


def weights(model):
    return {
        name: p.detach().clone() for name, p in model.named_parameters()
    }


def same(one, other):
    """Whether two models, or sets of weights, are equal bit for bit."""
    if isinstance(one, torch.nn.Module):
        one, other = weights(one), weights(other)
    return all(torch.equal(one[name], other[name]) for name in one)


def far(one, other):
    """The largest difference of a weight."""
    one, other = weights(one), weights(other)
    return max((one[n] - other[n]).abs().max().item() for n in one)


def parts(trainer):
    return trainer.weights(), trainer.moments(), trainer.state()
