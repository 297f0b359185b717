"""Apple's GPU: the loss curve of the CPU, and nothing that it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from annotated.batches import Corpus, Sentences
from annotated.engine.packing import PackedTransformer
from annotated.engine.search import beam_search
from annotated.engine.trainer import RunConfig, Trainer
from annotated.model import TransformerConfig
from annotated.search import SearchConfig
from tests.helpers import ROOT, environment
from tests.machines.apple import PACKAGE, Apple

APPLE = torch.backends.mps.is_available()
draw = np.random.default_rng(0)
ROWS = [
    [int(i) for i in draw.integers(4, 40, draw.integers(2, 9))]
    for _ in range(60)
]
CORPUS = Corpus(Sentences.of(ROWS), Sentences.of(ROWS))


def trainer(
    positions: str, device: str = "cpu", steps: int = 20
) -> Trainer:
    torch.manual_seed(0)
    config = TransformerConfig(
        src_vocab=40, tgt_vocab=40, d_model=16, num_heads=2, d_ff=32,
        num_encoder_layers=1, num_decoder_layers=1, positions=positions,
        dropout=0.0,
    )  # fmt: skip
    model = PackedTransformer(config).to(device)
    settings = RunConfig(
        max_steps=steps, batch_tokens=60, precision="float32"
    )
    return Trainer(model, CORPUS, settings)


def losses(one: Trainer) -> list[float]:
    return [progress.loss for progress in one.steps()]


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_nothing_is_computed_that_apples_gpu_refuses(
    positions: str,
) -> None:
    """Training, validation and search in float32, on a device that has
    neither float64 nor complex numbers."""
    one = trainer(positions)
    with Apple(one.model) as apple:
        losses(one)
        one.validate(CORPUS)
        beam_search(one.model, ROWS[:5], SearchConfig(beam=4))
    assert apple.refused == set()
    assert {"mm", "native_layer_norm"} & apple.operations


WIDE = "def widened(x):\n    return x.double()\n"


def test_what_apples_gpu_refuses_is_seen_where_it_is_ours() -> None:
    ours: dict[str, Callable] = {}
    exec(compile(WIDE, f"{PACKAGE}/made.py", "exec"), ours)
    model = torch.nn.Linear(2, 2)
    with Apple(model) as apple:
        y = model(torch.ones(1, 2))
        wide = y.double()  # a test may
        wide + 1
        ours["widened"](y.cpu())
        assert apple.refused == set()
        ours["widened"](y)
    [line] = apple.refused
    assert "float64" in line and line.endswith("made.py:2")


FILES = (  # what trains, validates and searches
    "engine/test_trainer.py", "engine/test_packing.py",
    "engine/test_search_batches.py", "story/test_model.py",
)  # fmt: skip


@pytest.mark.exhaustive
def test_tests_pass_on_apples_gpu() -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "-p", "tests.machines.apple", "--tb=short",
            "-m", "not slow and not exhaustive",
            *(f"tests/{name}" for name in FILES),
        ],
        cwd=ROOT, env=environment(OMP_NUM_THREADS="1"),
        capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.skipif(not APPLE, reason="needs Apple's GPU")
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_twenty_steps_there_are_twenty_steps_on_the_cpu(
    positions: str,
) -> None:
    here, there = (losses(trainer(positions, d)) for d in ("cpu", "mps"))
    np.testing.assert_allclose(there, here, atol=1e-3)
