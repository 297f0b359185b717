"""What tests of optimizers share: five of them, and a trainer for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from annotated import training
from annotated.engine import trainer as engine
from annotated.engine.optimizers import ChainedOptimizer
from annotated.engine.trainer import RunConfig
from annotated.model import Transformer, TransformerConfig
from annotated.training import copy_corpus
from tests.helpers import SHAPE

CONFIG = RunConfig(batch_tokens=60, warmup=10, max_steps=6)
CORPUS = copy_corpus(60, vocab=12, length=5)
VALID = copy_corpus(20, vocab=12, length=5, seed=1)
STOP = 3  # the step of the checkpoint

Make = Callable[[dict[str, nn.Parameter]], torch.optim.Optimizer]


def decayed(named: dict[str, nn.Parameter], **more: Any) -> list[Any]:
    """Two groups, those that decay first, as nanoGPT has them."""
    matrices = [w for w in named.values() if w.dim() == 2]
    rest = [w for w in named.values() if w.dim() != 2]
    return [
        {"params": matrices, "weight_decay": 0.1, **more},
        {"params": rest, "weight_decay": 0.0},
    ]


def muon(named: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    matrices, rest = (group["params"] for group in decayed(named))
    return ChainedOptimizer(
        torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest),
    )


OPTIMIZERS: dict[str, Make] = {
    "Adam": lambda named: torch.optim.Adam(
        named.values(), betas=(0.9, 0.98)
    ),
    "AdamW in two groups": lambda named: torch.optim.AdamW(decayed(named)),
    "SGD with momentum": lambda named: torch.optim.SGD(
        named.values(), momentum=0.9
    ),
    "Muon": muon,
    "amsgrad": lambda named: torch.optim.AdamW(
        named.values(), amsgrad=True
    ),
}


def with_optimizer(make: Make, base: Any = engine.Trainer) -> Any:
    """As a user has it: a subclass that sets self.optimizer."""

    class Own(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **more: Any):
            super().__init__(*args, **more)
            named = dict(self.model.named_parameters())
            self.optimizer = make(named)

    return Own


def new_trainer(kind: Any, seed: int = 0, **more: Any) -> Any:
    torch.manual_seed(seed)
    # each tensor is an exchange of processes, so there are few
    shape = SHAPE | {"dropout": 0.2, "bias": False}
    model = Transformer(TransformerConfig(**shape))
    return kind(model, CORPUS, CONFIG, **more)


def run(trainer: Any, until: int = CONFIG.max_steps) -> None:
    while trainer.step < until:
        next(trainer.steps())


def everything(trainer: Any) -> dict[str, Tensor]:
    """Copies of all that a trainer has learned; of what is sharded, of
    this process's own part, for which no other one is asked.
    """
    weights = training.Trainer.weights(trainer)
    return {
        name: (x.to_local() if hasattr(x, "to_local") else x).clone()
        for name, x in (weights | training.Trainer.moments(trainer)).items()
    }


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> str:
    r"""The empty string if they are equal to the last bit."""
    if one.keys() != other.keys():
        return f"other tensors: {sorted(one.keys() ^ other.keys())[:3]}"
    wrong = [n for n in one if not torch.equal(one[n], other[n])]
    return (
        f"{len(wrong)} of {len(one)} differ: {wrong[:2]}" if wrong else ""
    )
