"""One process of two threads against two processes of one thread.

    python benchmarks/data_parallel.py
    python benchmarks/data_parallel.py --json book/results/data-parallel.json

Both train the same model on the same global batches, in turn: while one
works, the other waits without using the processor. The processes exchange
their gradients by gloo, as `torchrun … annotated train` does on a CPU. It
also compares the losses: shared out or not, it has to be the same step.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import tyro
from ledger import typed, write
from models import Shape

from annotated.book.results import entry
from annotated.engine.distributed import process_group
from annotated.engine.trainer import RunConfig, Trainer
from annotated.model import Transformer
from annotated.training import copy_corpus


@dataclass(frozen=True, kw_only=True)
class Settings(Shape):
    """The shape, the batch and the measurement."""

    free = {"json"}

    vocab: int = 8000
    batch_tokens: int = 3000
    """on each side, over all processes"""
    length: int = 26
    """the most tokens in a sentence"""
    processes: int = 2
    rounds: int = 8
    steps: int = 4
    """steps of each contender in a round"""
    json: Path | None = None
    """also write the result here, as the results ledger has it"""


def new_trainer(settings: Settings) -> Trainer:
    torch.manual_seed(0)
    model = Transformer(settings.config(dropout=0.0))
    corpus = copy_corpus(4000, settings.vocab, settings.length)
    # rates so low that rounding stays rounding over some dozen steps
    training = RunConfig(batch_tokens=settings.batch_tokens, warmup=4000)
    return Trainer(model, corpus, training)


def work(
    settings: Settings,
    rank: int,
    size: int,
    port: int,
    wishes: Any,
) -> None:
    """A process: trains some steps at each wish, and says how it went."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(max(1, settings.processes // size))
    with process_group("cpu"):
        steps = new_trainer(settings).steps()
        next(steps)  # the first step pays for allocation
        wishes.send(None)
        while wishes.recv():
            start = time.perf_counter()
            made = [next(steps) for _ in range(settings.steps)]
            took = time.perf_counter() - start
            wishes.send((took, [p.loss for p in made], made[-1].tokens))
    wishes.close()


class Contender:
    """A team of processes that waits, and works when it is asked to."""

    def __init__(self, settings: Settings, size: int):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(
                target=work,
                args=(settings, rank, size, port, there),
                daemon=True,
            )
            process.start()
            there.close()  # so that a death there is noticed here
            self.pipes.append(here)
            self.processes.append(process)
        for pipe in self.pipes:
            pipe.recv()

    def run(self) -> tuple[float, list[float], int]:
        """Seconds, losses and target tokens so far of some steps."""
        for pipe in self.pipes:
            pipe.send(True)
        found = [pipe.recv() for pipe in self.pipes]
        return max(f[0] for f in found), found[0][1], found[0][2]

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.send(False)
        for process in self.processes:
            process.join(timeout=60)


def measure(settings: Settings) -> dict[str, Any]:
    """Throughput of both, the ratio within rounds, and the losses' gap."""
    one, many = (Contender(settings, n) for n in (1, settings.processes))
    times: list[tuple[float, float]] = []
    gap, tokens = 0.0, 0
    for _ in range(settings.rounds + 1):
        (a, losses, tokens), (b, others, _) = one.run(), many.run()
        pairs = zip(losses, others, strict=True)
        gap = max(gap, *(abs(x - y) for x, y in pairs))
        times.append((a, b))
    one.end()
    many.end()
    times = times[1:]  # the first round warms up
    each = tokens / ((settings.rounds + 1) * settings.steps + 1)
    speeds = [
        each * settings.steps / median(t) for t in zip(*times, strict=True)
    ]
    return {
        "threads_tokens_per_second": round(speeds[0], 1),
        "processes_tokens_per_second": round(speeds[1], 1),
        "ratio": round(median(a / b for a, b in times), 3),
        "ratio_range": [
            round(f(a / b for a, b in times), 3) for f in (min, max)
        ],
        "largest_loss_gap": gap,
    }


def main(argv: Sequence[str] | None = None) -> int:
    settings = tyro.cli(
        Settings, args=argv, description=(__doc__ or "").splitlines()[0]
    )
    start = time.perf_counter()
    metrics = measure(settings)
    for name, value in metrics.items():
        print(f"{name:28} {value}")
    if settings.json is not None:
        shape = {k: v for k, v in asdict(settings).items() if k != "json"}
        result = entry(
            "data_parallel",
            typed("data_parallel.py", settings),
            metrics,
            wall_seconds=time.perf_counter() - start,
            settings=shape,
        )
        write(settings.json, result)
    if metrics["largest_loss_gap"] > 1e-3:
        print("the losses differ: this is not the same step")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
