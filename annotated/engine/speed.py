"""Exported from the book; edit the chapter, then run `make export`."""

import copy
import time
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from annotated.batches import Corpus, Sentences
from annotated.engine.distributed import alone, world_size
from annotated.engine.machine import pick_device, quicker_device
from annotated.engine.packing import NoCacheError
from annotated.engine.parts import OURS, build
from annotated.engine.recipes import Recipe
from annotated.engine.search import beam_search
from annotated.engine.trainer import RunConfig, Trainer
from annotated.model import Transformer, TransformerConfig
from annotated.search import SearchConfig
from annotated.tokens import SPECIALS

__all__ = [
    "training_speed", "step_seconds", "training_device", "search_device",
]  # fmt: skip


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


def step_seconds(
    config: TransformerConfig, training: RunConfig, device: str,
    tokens: float, length: int = 28,
) -> tuple[float, list[int]]:  # fmt: skip
    """Seconds of this process's part of a training step on a device, and
    the sizes of the batches that were timed: of made-up sentences of
    length tokens, the largest with about so many tokens.
    """
    length = min(length, config.max_len)
    share = -(-training.batch_tokens // world_size())
    most = max(8 * length, int(tokens)) // length * length
    sizes = [share] if share <= most else [most // 4, most]
    model = build(config).to(device)
    draw, times = np.random.default_rng(0), []
    for size in sizes:
        shape = max(1, 8 * size // length), length - 1
        sides = [
            Sentences.of([*draw.integers(len(SPECIALS), vocab, shape)])
            for vocab in (config.src_vocab, config.tgt_vocab)
        ]
        how = replace(
            training, batch_tokens=size, batching=OURS["batching"],
            bpe_dropout=0.0, curriculum=0,
        )  # fmt: skip
        wall, own = _step_seconds(model, Corpus(*sides), how)
        times.append(min(wall, own) if device == "cpu" else wall)
    first, last = times[0], times[-1]
    more = (last - first) / max(1, sizes[-1] - sizes[0])
    return last + max(0.0, more) * (share - sizes[-1]), sizes


def training_device(recipe: Recipe, name: str | None) -> str:
    """name; if it is None, what pick_device picks, but on a Mac the device
    on which the recipe's steps take less time. RunError as there.
    """
    config = recipe.config()
    training = replace(recipe.training, precision="float32", compile=False)

    def measure(device: str) -> float:
        with torch.random.fork_rng(devices=[]):
            return step_seconds(config, training, device, 4000)[0]

    about = {"model": asdict(config), "tokens": training.batch_tokens}
    return quicker_device(name, "training", about, measure)


def search_device(
    model: Transformer, search: SearchConfig, name: str | None
) -> str:
    """name; if it is None, what pick_device picks, but on a Mac the device
    on which a search takes less time. RunError as there.
    """
    config, draw = model.config, np.random.default_rng(0)
    short = config.positions == "learned"  # no more than it has
    shape = 8, max(1, min(20, config.max_len - 1)) if short else 20
    src = draw.integers(len(SPECIALS), config.src_vocab, shape).tolist()

    def measure(device: str) -> float:
        moved, times = copy.deepcopy(model).to(device), []
        for _ in range(3):
            started = time.perf_counter()
            beam_search(moved, src, search)
            times.append(time.perf_counter() - started)
        return min(times)

    about = {"model": asdict(config), "search": asdict(search)}
    try:
        return quicker_device(name, "search", about, measure)
    except NoCacheError:  # it is searched slowly, wherever
        return pick_device(name)
