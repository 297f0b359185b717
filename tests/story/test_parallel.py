"""The plain trainer in several processes (chapter 21; gloo, on a CPU)."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from annotated.batches import Corpus
from annotated.model import Transformer, TransformerConfig
from annotated.parallel import ParallelTrainer
from annotated.training import Trainer, TrainingConfig, copy_corpus
from tests.engine.groups import in_processes

SHAPE = TransformerConfig(
    src_vocab=12,
    tgt_vocab=12,
    num_encoder_layers=1,
    num_decoder_layers=1,
    d_model=16,
    d_ff=16,
    num_heads=2,
    # the keys' has a gradient of 0, and Adam makes whole steps of its
    # rounding errors
    bias=False,
)
CONFIG = TrainingConfig(batch_tokens=60, warmup=20, max_steps=12)
CORPUS = copy_corpus(50, vocab=12, length=6)
Found = tuple[list[float], list[float]]  # losses, and the last weights


def trained(trainer: Trainer) -> Found:
    losses = [p.loss for p in trainer.steps()]
    weights = [p.detach().flatten() for p in trainer.model.parameters()]
    return losses, torch.cat(weights).tolist()


def new_model(dropout: float = 0.0) -> Transformer:
    torch.manual_seed(0)
    return Transformer(replace(SHAPE, dropout=dropout))


def learn(corpus: Corpus, dropout: float = 0.0) -> Found:
    dist.init_process_group("gloo")
    try:
        model = new_model(dropout)
        return trained(ParallelTrainer(model, corpus, CONFIG))
    finally:
        # torch 2.3 parts with the lock of Python in its hand, for which a
        # thread of gloo may be waiting to forget a tensor: let it pass
        time.sleep(0.2)
        dist.destroy_process_group()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_number_of_processes_is_one_trainer(size: int) -> None:
    losses, weights = trained(Trainer(new_model(), CORPUS, CONFIG))
    for found in in_processes(size, learn, CORPUS):
        assert found[0] == pytest.approx(losses, abs=2e-5)
        assert found[1] == pytest.approx(weights, abs=1e-4)


def test_a_process_may_have_no_part_of_a_batch() -> None:
    long = copy_corpus(4, vocab=12, length=60)  # one or two to a batch
    losses, _ = trained(Trainer(new_model(), long, CONFIG))
    for found in in_processes(3, learn, long):
        assert found[0] == pytest.approx(losses, abs=2e-5)


def test_with_dropout_all_have_the_same_weights() -> None:
    one, other = in_processes(2, learn, CORPUS, 0.3)
    assert one == other


def noises(corpus: Corpus) -> list[int]:
    """What the dropout of each step was seeded with, for two seeds."""
    dist.init_process_group("gloo")
    try:
        found = []
        for seed in (0, 1):
            config = replace(CONFIG, seed=seed, max_steps=3)
            trainer = ParallelTrainer(new_model(0.3), corpus, config)
            found += [torch.initial_seed() for _ in trainer.steps()]
        return found
    finally:
        time.sleep(0.2)
        dist.destroy_process_group()


def test_each_process_each_step_and_each_run_has_noise_of_its_own() -> None:
    one, other = in_processes(2, noises, CORPUS)
    assert len(one) == 6 and len({*one, *other}) == 12
