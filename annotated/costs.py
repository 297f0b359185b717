"""Exported from the book; edit the chapter, then run `make export`."""

import math

import torch

from annotated.engine.distributed import world_size
from annotated.engine.kernels import Chosen, Machine, choose
from annotated.engine.machine import HALF, matmul_speed, memory_bytes
from annotated.engine.speed import step_seconds
from annotated.engine.trainer import RunConfig
from annotated.model import TransformerConfig, count_parameters

__all__ = [
    "P100", "PAPER_HOURS", "paper_cost", "forward_flops", "step_flops",
    "useful_share", "kept_bytes", "state_bytes", "dry_run", "bill",
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
    d, h, k, v = _sizes(config)
    groups = getattr(config, "num_kv_heads", None) or h  # of keys, values
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    keys = d * groups * (k + v)
    attention, feed = d * h * (k + v) + keys, 2 * d * config.d_ff
    if getattr(config, "gated", False):
        feed = 3 * d * (2 * config.d_ff // 3)
    source = encoder * (attention + feed) + decoder * keys
    target = decoder * (2 * attention - keys + feed)
    target += d * config.tgt_vocab
    # causal self-attention sees half of the keys on average
    seen = _keys_seen(config, encoder, length) + decoder * length
    seen += _keys_seen(config, decoder, length, 0.5)
    return 2 * (source + target + h * (k + v) * seen)


def step_flops(
    config: TransformerConfig, batch_tokens: int = 25_000, length: int = 28
) -> float:
    """Operations of a training step: forward, plus twice that backward."""
    return 3 * batch_tokens * forward_flops(config, length)


def _sizes(config: TransformerConfig) -> tuple[int, int, int, int]:
    """Width, heads, and the numbers of a head's key and value."""
    c = config
    return c.d_model, c.num_heads, c.key_size, c.value_size


def _keys_seen(
    config: TransformerConfig, layers: int, length: float, part: float = 1.0
) -> float:
    """The keys that a query of self-attention sees on average, summed over
    the layers of a stack; part of them comes before the query.
    """
    windows = getattr(config, "windows", ()) or (config.window,)
    turns = (windows[i % len(windows)] for i in range(layers))
    return sum(
        min(part * length, part * 2 * (w // 2) + 1) if w else part * length
        for w in turns
    )


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
    source and one target token, in sentences of length tokens. For a GPU
    that is not there, with torch's padded attention.
    """
    d, c = config.d_model, config
    gpu = torch.device(device).type == "cuda"
    size = 2 if precision in HALF else 4
    noise = 1 if gpu else size  # bytes of a number's mask
    mask = noise * (c.dropout > 0)
    around = d * (12 if getattr(c, "norm_kind", "") == "rms" else 8)
    around += d * mask
    cross = _attention_bytes(c, length, precision, device)
    biased = c.positions not in ("sinusoidal", "learned", "rotary", "none")
    own = _attention_bytes(c, length, precision, device, biased)
    # the slope of a ReLU can be read off its output
    width, layers = c.d_ff, 1 if c.activation == "relu" else 2
    if getattr(c, "gated", False):  # both factors of the product, too
        width, layers = 2 * width // 3, layers + 2
    hidden = width * size * layers
    hidden += width * (size + noise) * (c.activation_dropout > 0)
    encoder = 2 * around + own + hidden
    decoder = 3 * around + own + cross + hidden
    stacks = c.num_encoder_layers * encoder + c.num_decoder_layers * decoder
    return stacks + 2 * d * (4 + mask)


def _attention_bytes(
    config: TransformerConfig, length: int, precision: str, device: str,
    biased: bool = False,
) -> float:  # fmt: skip
    """The part of one attention, whose scores may have a bias."""
    _, h, k, v = _sizes(config)
    gpu = torch.device(device).type == "cuda"
    size = 2 if precision in HALF else 4
    drops = config.attention_dropout > 0
    kernel = _chosen(config, precision, device, length).attention
    normed = 0.0
    if getattr(config, "qk_norm", False):  # twice in float32
        normed = 8 * k * (h + (getattr(config, "num_kv_heads", None) or h))
    if kernel in ("sentences", "varlen") and not biased:
        return size * h * 2 * (k + v) + normed
    if kernel == "products" and not getattr(config, "composed", False):
        return size * h * (2 * k + v + length + v)  # page E2's own
    inside = h * (size if gpu and not biased else 4)  # else in float32
    # a kernel that keeps no attention weights; others drop them in copies
    fused = not biased and (gpu or (k == v and not drops))
    weights = length * (3 if drops else 1)
    attention = inside * (2 * k + v + (v if fused else weights))
    return attention + size * h * v + 4 * h + normed


def _chosen(
    config: TransformerConfig, precision: str, device: str, length: int
) -> Chosen:
    """The kernels that a model gets on a device."""
    there = _at_hand(device)
    machine = Machine.at(device) if there else Machine("cuda")
    head = config.key_size, config.value_size
    drops = config.attention_dropout > 0
    return choose(machine, precision, length, head, drops)


def _at_hand(device: str) -> bool:
    """Whether steps can be taken on a device."""
    cuda = torch.device(device).type == "cuda"
    return torch.cuda.is_available() if cuda else True


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
    if size < 0.1 * 2**30:
        return f"{size / 2**20:,.1f} MiB"
    return f"{size / 2**30:,.1f} GiB"


def _two(x: float) -> str:
    """Two digits, as many as a forecast has."""
    many = f"{float(f'{x:.2g}'):,.0f}"
    return many if x >= 9.95 else f"{x:#.2g}"


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
    kind, width = torch.device(device).type, config.d_model
    span, pace = "", 0.0  # in all, and seconds per step
    here = f"{_two(speed / 1e12)} TFLOP/s in matrix products on "
    rows = {"here": f"{here}{world_size()} × {device}"}
    if timed:
        seconds, sizes = timed
        least = min(least, seconds * steps)  # others were busy meanwhile
        rows["a step here"] = f"{_span(seconds)}, measured: the fastest of "
        rows["a step here"] += _what(config, precision, device, sizes)
        pace, span = seconds, f"{_span(seconds * steps)} at this pace; "
    elif known := _SHARES.get((kind, precision)):
        width = min(known, key=lambda d: abs(d - width))
        pace = least / known[width] / steps
        span = f"{_span(least / known[width])}, an estimate: at "
        span += f"{known[width]:.0%} of that speed, as measured at width "
        span += f"{width}; "
    rows["time here"] = f"{span}{_span(least)} at full speed"
    rows |= _limited(training, pace, least / steps)
    return rows | _on_p100s(config, total)


def _limited(
    training: RunConfig, pace: float, least: float
) -> dict[str, str]:
    """The row of a dry run that says how far max_minutes go, at pace, in
    seconds per step, or, where that is not known, at full speed.
    """
    if training.max_minutes is None:
        return {}
    steps = training.max_steps
    some = min(round(60 * training.max_minutes / (pace or least)), steps)
    row = (
        f"{training.max_minutes:g}, enough for {some:,} of {steps:,} steps"
    )
    return {"max_minutes": row + " at full speed" * (not pace)}


def _what(
    config: TransformerConfig, precision: str, device: str, sizes: list[int]
) -> str:
    """What was measured."""
    counts = " and ".join(f"{size:,}" for size in sizes)
    kernels = _chosen(config, precision, device, 28)
    return f"some with {counts} tokens, made up, in {precision}; {kernels}"


def _on_p100s(config: TransformerConfig, total: float) -> dict[str, str]:
    """The rows of a dry run about the paper's machine."""
    size = "big" if config.d_model >= 1024 else "base"
    theirs = total / (useful_share(size) * paper_cost(1.0))
    return {
        "hours, 8 × P100": f"{_two(theirs)}, if used as efficiently as "
        f"for the paper's {size} model",
        "cost by Table 2": f"{paper_cost(theirs):.1e} operations",
    }


# 22-costs.md: Energy and money
def bill(
    operations: float, speed: float, share: float, devices: int = 1,
    watts: float = 0.0, hourly: float = 0.0, per_kwh: float = 0.0,
    overhead: float = 1.58,
) -> tuple[float, float, float, float]:  # fmt: skip
    """Hours, kilowatt-hours, rent, and what the electricity alone costs,
    on devices that use a share of their speed. Watts and the price of an
    hour are for one device; overhead is the data centre's factor.
    """
    hours = operations / (share * paper_cost(1.0, devices, speed))
    energy = hours * devices * watts * overhead / 1000
    return hours, energy, hours * devices * hourly, energy * per_kwh
