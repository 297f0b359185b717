"""annotated.costs.

Exported from the book; edit the chapter, then run `make export`.

- 19-scale.md: Scale: many devices, and what a run costs
"""

from __future__ import annotations

import math
import os

import torch

from annotated.engine.distributed import world_size
from annotated.engine.machine import matmul_speed
from annotated.engine.recipes import RECIPES, Recipe
from annotated.model import TransformerConfig, count_parameters

__all__ = [
    "forward_flops",
    "step_flops",
    "kept_bytes",
    "state_bytes",
    "device_bytes",
    "with_pieces",
    "P100",
    "PAPER_HOURS",
    "paper_cost",
    "useful_share",
    "ASSUMED_SHARE",
    "dry_run",
]


# 19-scale.md: What a step costs
def forward_flops(config: TransformerConfig, length: int = 28) -> float:
    """Floating-point operations of a forward pass for one source and one
    target token, in sentences of length tokens.
    """
    d, h = config.d_model, config.num_heads
    both = h * (config.key_size + config.value_size)
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    attention, feed = 2 * d * both, 2 * d * config.d_ff
    source = encoder * (attention + feed) + decoder * d * both
    target = decoder * (attention + d * both + feed)
    target += d * config.tgt_vocab
    # the decoder's own half is masked: on average half the keys
    mixing = (encoder + 1.5 * decoder) * both * length
    return 2 * (source + target + mixing)


def step_flops(recipe: Recipe, length: int = 28) -> float:
    """Of a training step: forward, and twice as much backward."""
    config = recipe.model.config(recipe.vocab, recipe.vocab)
    return 3 * recipe.training.batch_tokens * forward_flops(config, length)


# 19-scale.md: Memory
def kept_bytes(
    config: TransformerConfig, length: int = 28, precision: str = "float32"
) -> float:
    """About what the forward pass keeps for the backward pass, of one
    source and one target token.
    """
    d, h = config.d_model, config.num_heads
    both = h * (config.key_size + config.value_size)
    attention = 3 * d + 2.5 * both + h * length
    feed = 3 * d + config.d_ff
    encoder = config.num_encoder_layers * (attention + feed)
    decoder = config.num_decoder_layers * (2 * attention + feed)
    size = 2.5 if precision == "bfloat16" else 4
    return size * (encoder + decoder + 8 * d)


def state_bytes(config: TransformerConfig) -> int:
    """Of the weights, their gradients and Adam's two moments."""
    return 16 * count_parameters(config)


def device_bytes(device: str) -> float:
    """The memory of a device; of a CPU, this process's share of it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # not on every system
        return math.inf
    return whole / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def with_pieces(recipe: Recipe, device: str) -> Recipe:
    """The recipe, with micro_tokens set where a process's share of a batch
    would fill more than two thirds of its device's memory.
    """
    if recipe.training.micro_tokens is not None:
        return recipe
    config = recipe.model.config(recipe.vocab, recipe.vocab)
    state = state_bytes(config)
    room = device_bytes(device) * 2 / 3 - state
    kept = kept_bytes(config, precision=recipe.training.precision)
    fits = max(500, room / kept)
    if fits >= recipe.training.batch_tokens / world_size():
        return recipe
    return recipe.changed(micro_tokens=int(fits))


# 19-scale.md: The cost model of Table 2
P100 = 9.5e12  # sustained operations a second, by footnote 5


PAPER_HOURS = {"base": 12.0, "big": 84.0}  # §5.2, on eight of them


def paper_cost(hours: float, gpus: int = 8, speed: float = P100) -> float:
    """Table 2's measure of a training: time × GPUs × speed."""
    return hours * 3600 * gpus * speed


def useful_share(size: str) -> float:
    """What the model needs, of what the paper's machine could have done;
    size is base or big.
    """
    recipe = RECIPES[f"wmt14-en-de-{size}"]
    needed = step_flops(recipe) * recipe.training.max_steps
    return needed / paper_cost(PAPER_HOURS[size])


# 19-scale.md: Before you pay
ASSUMED_SHARE = 0.4  # of a matrix product's speed, in a training step


def dry_run(recipe: Recipe, device: str) -> str:
    """What a recipe would take on this device and on the paper's machine.
    Reads no data.
    """
    config = recipe.model.config(recipe.vocab, recipe.vocab)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    share = recipe.training.batch_tokens / processes
    piece = min(share, recipe.training.micro_tokens or share)
    step = step_flops(recipe)
    total = step * recipe.training.max_steps
    speed = matmul_speed(device, recipe.training.precision)
    size = "big" if recipe.model.d_model >= 1024 else "base"
    fast = total / (speed * processes) / 3600
    kept = piece * kept_bytes(config, precision=recipe.training.precision)
    rows = {
        "model": f"{count_parameters(config):,} parameters",
        "step": f"{recipe.training.batch_tokens:,} source and target "
        "tokens",
        "memory": f"{_gib(state_bytes(config))} for weights, gradients "
        f"and moments, {_gib(kept)} for {piece:,.0f} tokens at once, of "
        f"{_gib(device_bytes(device))}",
        "operations": f"{step:.2e} a step, {total:.2e} in "
        f"{recipe.training.max_steps:,} steps",
        "here": f"{speed / 1e12:.2f} TFLOP/s in matrix products on "
        f"{processes} × {device}",
        "hours here": f"{fast / ASSUMED_SHARE:,.1f}, at "
        f"{ASSUMED_SHARE:.0%} of that speed; {fast:,.1f} at all of it",
        "hours, 8 × P100": f"{_paper_hours(total, size):,.1f}, used as "
        f"well as for the paper's {size} model",
        "cost by Table 2": f"{paper_cost(_paper_hours(total, size)):.1e} "
        "operations",
    }
    return "\n".join(f"{name:16}{value}" for name, value in rows.items())


def _paper_hours(total: float, size: str) -> float:
    return total / (useful_share(size) * paper_cost(1.0))


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"
