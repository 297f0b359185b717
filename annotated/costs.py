"""Exported from the book; edit the chapter, then run `make export`."""

import math

import torch

from annotated.engine.distributed import world_size
from annotated.engine.kernels import SHORT, choose, machine_at
from annotated.engine.machine import HALF, matmul_speed, memory_bytes
from annotated.engine.speed import step_seconds
from annotated.engine.trainer import RunConfig
from annotated.model import TransformerConfig, count_parameters

__all__ = [
    "P100", "PAPER_HOURS", "paper_cost", "forward_flops", "step_flops",
    "useful_share", "kept_bytes", "state_bytes", "dry_run",
]  # fmt: skip


# 22-costs.md: What the paper charges
P100 = 9.5e12  # sustained operations per second (footnote 5)
PAPER_HOURS = {"base": 12.0, "big": 84.0}  # §5.2, on eight P100s
_PAPER_STEPS = {"base": 100_000, "big": 300_000}


def paper_cost(hours: float, gpus: int = 8, speed: float = P100) -> float:
    """Training cost in operations, as in Table 2: time × GPUs × speed."""
    return hours * 3600 * gpus * speed


# 22-costs.md: What a step needs
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
    # causal self-attention sees half of the keys on average
    mixing = (encoder + 1.5 * decoder) * both * length
    return 2 * (source + target + mixing)


def step_flops(
    config: TransformerConfig, batch_tokens: int = 25_000, length: int = 28
) -> float:
    """Operations of a training step: forward, plus twice that backward."""
    return 3 * batch_tokens * forward_flops(config, length)


# 22-costs.md: How well was the machine used?
def useful_share(size: str) -> float:
    """The operations that the model needs, as a share of those that the
    paper's machine could have done; size is base or big.
    """
    preset = getattr(TransformerConfig, size)
    config = preset(src_vocab=37_000, tgt_vocab=37_000)
    needed = step_flops(config) * _PAPER_STEPS[size]
    return needed / paper_cost(PAPER_HOURS[size])


# 22-costs.md: What a batch keeps in memory
def kept_bytes(
    config: TransformerConfig,
    length: int = 28,
    precision: str = "float32",
    device: str = "cpu",
) -> float:
    """Bytes that the forward pass keeps for the backward pass, for one
    source and one target token, in sentences of length tokens.
    """
    d, h = config.d_model, config.num_heads
    k, v = config.key_size, config.value_size
    gpu = torch.device(device).type == "cuda"
    size = 2 if precision in HALF else 4
    mask = (1 if gpu else size) * (config.dropout > 0)
    fused = gpu or k == v  # a kernel that keeps no attention weights
    around = d * (8 + mask)
    if not gpu and precision == "bfloat16" and length <= SHORT:
        attention = size * h * (2 * k + v + length + v)  # page E2's own
    else:
        inside = h * (size if gpu else 4)  # float32 on a CPU
        attention = inside * (2 * k + v + (v if fused else length))
        attention += size * h * v + 4 * h
    # the slope of a ReLU can be read off its output
    hidden = config.d_ff * (1 if config.activation == "relu" else 2)
    encoder = 2 * around + attention + size * hidden
    decoder = 3 * around + 2 * attention + size * hidden
    total = config.num_encoder_layers * encoder
    total += config.num_decoder_layers * decoder
    return total + 2 * d * (4 + mask)


def state_bytes(
    config: TransformerConfig, precision: str = "float32"
) -> int:
    """Bytes of the weights, their gradients, Adam's two moments and, in
    16-bit precision, the copies of the weights.
    """
    copies = 2 if precision in HALF else 0
    return (16 + copies) * count_parameters(config)


# 22-costs.md: Before you pay: how long training takes
# of the speed of products, as measured in training: by width of the model
_SHARES = {
    ("cpu", "float32"): {256: 0.68, 512: 0.81},  # two cores
    ("cpu", "bfloat16"): {256: 0.39, 512: 0.62},
    ("cuda", "bfloat16"): {512: 0.15},  # an H100, batches counted as full
}
_TRIED = 0.15  # seconds of a step that is timed, if it were at full speed


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _two(x: float) -> str:
    """Two digits, as many as a forecast has."""
    digits = 0 if x >= 9.95 else 1 if x >= 0.995 else 2
    return f"{float(f'{x:.2g}'):,.{digits}f}"


def _span(seconds: float) -> str:
    """A time with its unit, in two digits."""
    units = {"h": 3600.0, "min": 60.0, "s": 1.0}
    unit = next((u for u in units if seconds >= 0.995 * units[u]), "ms")
    return f"{_two(seconds / units.get(unit, 0.001))} {unit}"


def dry_run(
    config: TransformerConfig, training: RunConfig, device: str
) -> str:
    """A report of what a run would cost here and on the paper's machine.
    Takes some steps on a device that is there; reads no data.
    """
    batch, precision = training.batch_tokens, training.precision
    micro = min(batch / world_size(), training.micro_tokens or math.inf)
    step = step_flops(config, batch)
    state = state_bytes(config, precision)
    each = kept_bytes(config, precision=precision, device=device)
    memory = memory_bytes(device)
    rows = {
        "model": f"{count_parameters(config):,} parameters",
        "step": f"{batch:,} source and target tokens",
        "memory": f"{_gib(state)} for weights, gradients and moments, "
        f"{_gib(micro * each)} for {micro:,.0f} tokens at once, of "
        f"{_gib(memory)}",
        "operations": f"{step:.2e} per step, "
        f"{step * training.max_steps:.2e} in {training.max_steps:,} steps",
    }
    speed = matmul_speed(device, precision)
    tokens = _TRIED * speed * batch / step  # and as they fit the memory
    tokens = min(tokens, (memory * 2 / 3 - state) / each)
    timed = None
    if tokens > 0 and _at_hand(device):
        timed = step_seconds(config, training, device, tokens)
    rows |= _times(config, training, device, speed, timed)
    return "\n".join(f"{name:16}{value}" for name, value in rows.items())


def _at_hand(device: str) -> bool:
    """Whether steps can be taken on a device."""
    cuda = torch.device(device).type == "cuda"
    return torch.cuda.is_available() if cuda else True


def _times(
    config: TransformerConfig, training: RunConfig, device: str,
    speed: float, timed: tuple[float, list[int]] | None,
) -> dict[str, str]:  # fmt: skip
    """The rows of a dry run that say how long it takes: by a step that
    was timed, else by the speed of products and a share of it.
    """
    precision, steps = training.precision, training.max_steps
    total = step_flops(config, training.batch_tokens) * steps
    least = total / (speed * world_size())
    here = f"{_two(speed / 1e12)} TFLOP/s in matrix products on "
    rows, span = {"here": f"{here}{world_size()} × {device}"}, ""
    if timed:
        seconds, sizes = timed
        least = min(least, seconds * steps)  # others were busy meanwhile
        kernels = choose(
            machine_at(device), precision, head=config.key_size,
            dropout=config.attention_dropout > 0,
        )  # fmt: skip
        rows["a step here"] = (
            f"{_span(seconds)}, measured: the fastest of some with "
            f"{' and '.join(f'{size:,}' for size in sizes)} tokens, made "
            f"up, in {precision}; {kernels}"
        )
        span = f"{_span(seconds * steps)} at this pace; "
    elif known := _SHARES.get((torch.device(device).type, precision)):
        width = min(known, key=lambda d: abs(d - config.d_model))
        span = (
            f"{_span(least / known[width])}, an estimate: at "
            f"{known[width]:.0%} of that speed, as measured at width "
            f"{width}; "
        )
    size = "big" if config.d_model >= 1024 else "base"
    theirs = total / (useful_share(size) * paper_cost(1.0))
    return rows | {
        "time here": f"{span}{_span(least)} at full speed",
        "hours, 8 × P100": f"{_two(theirs)}, if used as efficiently as "
        f"for the paper's {size} model",
        "cost by Table 2": f"{paper_cost(theirs):.1e} operations",
    }
