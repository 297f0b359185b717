"""Exported from the book; edit the chapter, then run `make export`."""

import time
from dataclasses import replace
from typing import Any

import torch

from annotated.batches import Corpus
from annotated.engine.distributed import alone
from annotated.engine.trainer import RunConfig, Trainer
from annotated.model import Transformer

__all__ = ["training_speed"]


# E9-recipes.md: How fast is this machine?
def training_speed(
    model: Transformer, corpus: Corpus, config: RunConfig
) -> tuple[float, bool]:
    """Training steps per second of this process alone, and whether other
    programs kept it from measuring them. The model learns meanwhile.
    """
    wall, processor = _step_seconds(model, corpus, config)
    threads = torch.get_num_threads()
    if next(model.parameters()).device.type != "cpu":
        return 1 / wall, False
    if threads > 1:
        torch.set_num_threads(1)
        try:
            _, processor = _step_seconds(model, corpus, config)
        finally:
            torch.set_num_threads(threads)
    single = threads == 1
    busy = wall > _BUSY * processor if single else wall * _BUSY > processor
    return 1 / min(wall, processor), busy


_BUSY = 1.25  # times as long: other programs take part of the machine


def _step_seconds(
    model: Transformer, corpus: Corpus, config: RunConfig
) -> tuple[float, float]:
    """The seconds of a training step, the least of several measurements:
    by the clock on the wall, and in processor time.
    """
    many = 1 if next(model.parameters()).device.type == "cpu" else 5
    config = replace(config, max_steps=6 * many, max_minutes=None)
    spent: list[tuple[float, float]] = []
    with alone():
        trainer = Trainer(model, corpus, config)
        steps: Any = trainer.steps()
        for _ in range(6):
            started = time.perf_counter(), time.process_time()
            for _ in range(many):
                next(steps)
            trainer.look()
            ended = time.perf_counter(), time.process_time()
            wall, own = (e - s for e, s in zip(ended, started))
            spent.append((wall / many, own / many))
            if many * sum(wall for wall, _ in spent[1:]) > 1:
                break
        steps.close()
    wall, own = map(min, zip(*spent[1:]))
    return wall, own or wall  # some clocks tick coarsely
