"""Exported from the book; edit the chapter, then run `make export`."""

from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from annotated.batches import Corpus, Sentences
from annotated.engine.errors import RunError
from annotated.engine.machine import HALF, pick_precision
from annotated.engine.packing import compile_layers
from annotated.engine.parts import build
from annotated.engine.trainer import RunConfig, packed_loss
from annotated.model import Transformer, TransformerConfig

__all__ = ["wrong_gradients", "check_compiler"]


# E2-packing.md: Compiled layers
@cache
def wrong_gradients(
    config: TransformerConfig, precision: str, device: str
) -> list[str]:
    """The parameters of a model of this configuration, but with a layer in
    each stack, whose gradients are others when its layers are compiled.
    """
    layers = min(config.num_encoder_layers, config.num_decoder_layers)
    layers = min(layers, len(getattr(config, "windows", ())) or 1)
    small = replace(
        config, src_vocab=40, tgt_vocab=40, num_encoder_layers=layers,
        num_decoder_layers=layers, dropout=0.0, attention_dropout=0.0,
        activation_dropout=0.0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build(small).to(device)
    right = _gradients(model, precision)
    compile_layers(model)
    try:
        compiled = _gradients(model, precision)
    finally:  # these graphs would count among those of the run
        torch._dynamo.reset()
    near, least = (0.3, 1e-3) if precision in HALF else (0.02, 1e-6)
    least *= max(float(g.norm()) for g in right.values())
    return [
        name
        for name, g in right.items()
        if not float((compiled[name] - g).norm())
        <= near * float(g.norm()) + least
    ]


def _gradients(model: Transformer, precision: str) -> dict[str, Tensor]:
    """By parameter, zeros for one that gets none."""
    draw, device = np.random.default_rng(0), next(model.parameters()).device
    sides = [
        Sentences.of([draw.integers(4, 40, n).tolist() for n in lengths])
        for lengths in ((7, 3, 5), (4, 6, 2))
    ]
    batch = Corpus(*sides).batch(range(3)).to(device)
    model.zero_grad()
    how = RunConfig(precision=precision)  # type: ignore[arg-type]
    packed_loss(model, batch, how)[0].backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
    }


def check_compiler(
    config: TransformerConfig, precision: str, device: str
) -> None:
    """RunError if torch.compile finds no compiler for a device, or if the
    layers of a model of this kind would learn something else with it.
    """
    if precision == "auto":
        precision, _ = pick_precision(device)
    try:
        wrong = wrong_gradients(config, precision, device)
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise RunError(
            f"cannot compile layers on {device} ({reason}): omit --compile"
        ) from None
    if wrong:
        raise RunError(
            f"torch {torch.__version__} compiles this model wrongly on "
            f"{device}: with it the gradients of {len(wrong)} parameters "
            f"are others (of {wrong[0]}, say): omit --compile, or use "
            "another version of torch"
        )
