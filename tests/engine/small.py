"""A packed model and its trainer, small enough for any test."""

from typing import Any

import torch

from annotated.engine.packing import PackedTransformer
from annotated.engine.trainer import RunConfig, Trainer
from annotated.model import TransformerConfig
from annotated.training import copy_corpus
from tests.helpers import SHAPE


def small_model(**changes: Any) -> PackedTransformer:
    torch.manual_seed(0)
    shape = SHAPE | {"dropout": 0.0} | changes
    return PackedTransformer(TransformerConfig(**shape))


def small_trainer(**config: Any) -> Trainer:
    corpus = copy_corpus(20, vocab=12, length=5)
    return Trainer(small_model(), corpus, RunConfig(**config))


class CountingBackend:
    """A back-end of torch.compile that runs each graph as it stands, and
    counts how often one has run.
    """

    ran = 0

    def __call__(self, graph: Any, _: Any) -> Any:
        def run(*inputs: Any) -> Any:
            self.ran += 1
            return graph.forward(*inputs)

        return run
