"""What tests of several processes share: processes as torchrun starts
them, and small trainers for them.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from annotated.batches import Corpus
from annotated.engine import distributed
from annotated.engine.distributed import (
    process_group,
)
from annotated.engine.trainer import RunConfig, Trainer
from annotated.model import Transformer, TransformerConfig
from annotated.training import copy_corpus
from tests.helpers import SHAPE, forking

SHARDED_ONLY = pytest.mark.skipif(
    torch.__version__ < "2.9", reason="fully_shard as it is used here"
)
SHARDED = pytest.param(True, marks=SHARDED_ONLY)
# without a bias: that of the keys has a gradient of 0, and Adam makes
# whole steps of its rounding errors
CONFIG = RunConfig(batch_tokens=60, warmup=20, max_steps=12)
CORPUS = copy_corpus(50, vocab=12, length=6)


def together(
    size: int, action: Callable[..., Any], *args: Any
) -> list[Any]:
    """What action(*args) returns, or raises, in each process of a group."""
    return in_processes(size, joined, action, *args)


def joined(action: Callable[..., Any], *args: Any) -> Any:
    with process_group("cpu", minutes=30):
        return action(*args)


def in_processes(
    size: int, action: Callable[..., Any], *args: Any
) -> list[Any]:
    """What action(*args) returns, or raises, in processes of torchrun."""
    with started(size, action, *args) as (processes, results):
        found = dict(results.get(timeout=1800) for _ in processes)
        for process in processes:
            process.join(timeout=60)
    return [found[rank] for rank in range(size)]


@contextlib.contextmanager
def started(
    size: int, action: Callable[..., Any], *args: Any
) -> Iterator[tuple[list[Any], Any]]:
    """Processes as torchrun starts them, and where their results come; at
    the end they are killed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    results = forking().Queue()
    processes = [
        forking().Process(
            target=member, args=(results, rank, size, port, action, args)
        )
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        yield processes, results
    finally:
        for process in processes:
            process.kill()
            process.join()


def member(
    results: Any,
    rank: int,
    size: int,
    port: str,
    action: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    torch.set_num_threads(1)
    result: Any = None
    try:
        result = action(*args)
    except Exception as error:
        result = type(error), str(error)
    results.put((rank, result))
    results.close()
    results.join_thread()


def new_trainer(
    config: RunConfig = CONFIG,
    corpus: Corpus = CORPUS,
    seed: int = 0,
    shard: bool = False,
    **changes: Any,
) -> Trainer:
    torch.manual_seed(seed)
    shape = SHAPE | {"dropout": 0.0, "bias": False} | changes
    model = Transformer(TransformerConfig(**shape))
    return Trainer(model, corpus, config, shard)


def learn(
    config: RunConfig = CONFIG, shard: bool = False
) -> tuple[list[float], list[float], int, dict[str, Any]]:
    """Losses, norms, tokens and the weights at the end."""
    trainer = new_trainer(config, shard=shard)
    history = list(trainer.steps())
    weights = weights_of(trainer)
    losses = [p.loss for p in history]
    return (
        losses,
        [p.gradient_norm for p in history],
        trainer.tokens,
        weights,
    )


def weights_of(trainer: Trainer) -> dict[str, Any]:
    """Copies of all weights, whole, in every process."""
    whole = distributed.full_tensor
    return {
        name: whole(p.detach()).numpy().copy()
        for name, p in trainer.model.named_parameters()
    }


def assert_same_run(one: Any, other: Any, atol: float = 2e-5) -> None:
    for a, b in zip(one[:2], other[:2], strict=True):
        assert a == pytest.approx(b, abs=10 * atol)
    assert one[2] == other[2]
    for name in one[3]:
        difference = abs(one[3][name] - other[3][name]).max()
        assert difference < atol, name
