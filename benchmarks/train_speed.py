"""The time of a training step: this book's model and three others'.

    python benchmarks/train_speed.py
    python benchmarks/train_speed.py --json book/results/train-speed.json

Transformers of one shape learn from the same batches, in one process, in
turn: `annotated`, `torch.nn.Transformer` and, where their packages are
installed, Hugging Face's Marian and JoeyNMT. A step is forward, loss, backward and update, in float32, and where this machine
multiplies it faster in bfloat16 as well. benchmarks/README.md says what is
equal, what is not, and how to read the table.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from ledger import typed, write
from models import Shape, marian_config, told
from torch import Tensor, nn

from annotated.batches import Batch, Corpus, Sentences
from annotated.book.results import entry, versions
from annotated.embeddings import sinusoids
from annotated.engine.machine import keep_freed_memory, pick_precision
from annotated.engine.packing import PackedTransformer, compile_layers
from annotated.engine.trainer import RunConfig, packed_loss
from annotated.schedule import make_optimizer, set_learning_rate
from annotated.tokens import BOS, EOS, PAD, SPECIALS, UNK

PACKAGES = ("numpy", "transformers", "joeynmt")
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Settings(Shape):
    """The shape, the batches and the measurement."""

    free = {"dropout", "smoothing", "rate", "seed", "json", "warmup"} | {
        "precision",
        "compiled",
    }

    dropout: float = 0.1
    """on every sub-layer's output and on the embeddings, as in §5.4"""
    smoothing: float = 0.1
    sentences: int = 64
    """sentence pairs in a batch"""
    length: int = 24
    """the most tokens in a sentence, its end sign included"""
    batches: int = 4
    """different batches; a round trains on each of them once"""
    rounds: int = 15
    warmup: int = 2
    """rounds that run before and do not count"""
    rate: float = 3e-4
    """learning rate"""
    precision: tuple[Precision, ...] = ()
    """what everyone computes in, in turn; unless given, float32, and
    bfloat16 where this machine multiplies it faster"""
    compiled: bool = False
    """also annotated with its layers compiled, as train --compile does"""
    threads: int = os.cpu_count() or 1
    seed: int = 0
    json: Path | None = None
    """also write the result here, as the results ledger has it"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < SHORTEST:
            raise ValueError(f"length must be at least {SHORTEST}")

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Those that are asked for, or that suit the machine."""
        if self.precision:
            return self.precision
        fast = pick_precision("cpu")[0] == "bfloat16"
        return ("float32", "bfloat16") if fast else ("float32",)


# --- sentences ------------------------------------------------------------

# The lengths of the 29,000 training pairs of Multi30k, English-German, with
# one BPE vocabulary of 4,000 and the end sign counted: the logarithm of the
# source's is normal with this mean and deviation, and so is the logarithm
# of the target's divided by the source's.
SOURCE = (2.76, 0.31)
RATIO = (0.05, 0.17)
SHORTEST = 4


def draw_lengths(
    count: int, longest: int, draw: np.random.Generator
) -> np.ndarray:
    """Lengths of sentence pairs as they come in a text: (count, 2).

    A pair with a side below SHORTEST or above longest is drawn again.
    """
    kept = np.empty((0, 2), dtype=np.int64)
    while len(kept) < count:
        source = np.exp(draw.normal(*SOURCE, size=count))
        target = source * np.exp(draw.normal(*RATIO, size=count))
        pairs = np.stack([source, target], axis=1).round().astype(np.int64)
        fit = ((pairs >= SHORTEST) & (pairs <= longest)).all(axis=1)
        kept = np.concatenate([kept, pairs[fit]])
    return kept[:count]


def draw_batches(settings: Settings, full: bool) -> list[Batch]:
    """The batches that everyone trains on.

    Sentences stand in the order in which they were drawn: nothing groups
    them by length. If full, all have the greatest length: no padding. The
    word of rank r comes with a probability in proportion to 1/(r + 2.7).
    """
    draw = np.random.default_rng(settings.seed)
    count = settings.batches * settings.sentences
    lengths = draw_lengths(count, settings.length, draw)
    if full:
        lengths = np.full_like(lengths, settings.length)
    words = settings.vocab - len(SPECIALS)
    chance = 1 / (np.arange(words) + 3.7)
    chance /= chance.sum()

    def side(column: int) -> Sentences:
        ids = draw.choice(words, int(lengths[:, column].sum()), p=chance)
        ids = np.split(
            ids + len(SPECIALS), np.cumsum(lengths[:, column])[:-1]
        )
        # a batch puts EOS behind each, or BOS before it
        return Sentences.of([sentence[:-1] for sentence in ids])

    corpus = Corpus(side(0), side(1))
    order = np.arange(count).reshape(settings.batches, settings.sentences)
    return [corpus.batch(pairs) for pairs in order]


def real_share(batches: Sequence[Batch]) -> float:
    """Which part of the places of these batches is no padding."""
    sides = [side for batch in batches for side in (batch.src, batch.tgt)]
    real = sum(int((side != PAD).sum()) for side in sides)
    return real / sum(side.numel() for side in sides)


# --- who takes part -------------------------------------------------------


@dataclass
class Contender:
    """A model in training, and the mean loss of a batch by it."""

    library: str
    model: nn.Module
    loss: Callable[[Batch], Tensor]
    rate: float
    precision: Precision = "float32"

    @property
    def name(self) -> str:
        """float32 goes without saying."""
        more = "" if self.precision == "float32" else f", {self.precision}"
        return self.library + more

    def __post_init__(self) -> None:
        # Marian has its table of sinusoids among its parameters
        learned = [p for p in self.model.parameters() if p.requires_grad]
        self.parameters = sum(p.numel() for p in learned)
        self.optimizer = make_optimizer(learned)
        set_learning_rate(self.optimizer, self.rate)

    def step(self, batch: Batch) -> float:
        """Learn from one batch; the mean loss per target token."""
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def mixed(precision: Precision) -> torch.autocast:
    """Matrix products in bfloat16, where that is the precision."""
    half = precision == "bfloat16"
    return torch.autocast("cpu", torch.bfloat16, enabled=half)


def ours(settings: Settings, precision: Precision = "float32") -> Contender:
    """annotated, as its trainer calls it."""
    config = settings.config(dropout=settings.dropout)
    model = PackedTransformer(config).train()
    training = RunConfig(
        label_smoothing=settings.smoothing, precision=precision
    )

    def loss(batch: Batch) -> Tensor:
        total, _ = packed_loss(model, batch, training)
        return total / batch.tokens

    return Contender("annotated", model, loss, settings.rate, precision)


def compiled(
    settings: Settings, precision: Precision = "float32"
) -> Contender:
    """The same with its layers compiled."""
    contender = ours(settings, precision)
    assert isinstance(contender.model, PackedTransformer)
    compile_layers(contender.model)
    return replace(contender, library="annotated, compiled")


def padded_loss(logits: Tensor, batch: Batch, smoothing: float) -> Tensor:
    """The loss as everyone writes it: torch's, on all places."""
    return F.cross_entropy(
        logits.flatten(0, 1),
        batch.labels.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
    )


class TorchModel(nn.Module):
    """torch.nn.Transformer with what it leaves to its user: embeddings,
    one matrix for all of them and the output, and positions.
    """

    def __init__(self, settings: Settings):
        super().__init__()
        d_model = settings.d_model
        self.core = nn.Transformer(
            d_model,
            settings.num_heads,
            settings.layers,
            settings.layers,
            settings.d_ff,
            settings.dropout,
            batch_first=True,
        )
        for module in self.core.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # on the weights
            if hasattr(module, "linear1"):
                module.dropout.p = 0.0  # between the two linear maps
        self.embedding = nn.Embedding(settings.vocab, d_model)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        self.register_buffer(
            "positions", sinusoids(settings.length, d_model)
        )
        self.dropout = nn.Dropout(settings.dropout)
        self.scale = math.sqrt(d_model)

    def read(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) * self.scale
        return self.dropout(x + self.positions[: ids.size(1)])

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        padding = src == PAD
        future = self.core.generate_square_subsequent_mask(tgt.size(1))
        x = self.core(
            self.read(src),
            self.read(tgt),
            tgt_mask=future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return F.linear(x, self.embedding.weight)


def torch_model(
    settings: Settings, precision: Precision = "float32"
) -> Contender:
    """torch.nn.Transformer."""
    model = TorchModel(settings).train()

    def loss(batch: Batch) -> Tensor:
        with mixed(precision):
            logits = model(batch.src, batch.tgt)
        return padded_loss(logits.float(), batch, settings.smoothing)

    return Contender("torch.nn", model, loss, settings.rate, precision)


def marian(
    settings: Settings, precision: Precision = "float32"
) -> Contender:
    """Marian as Hugging Face wrote it, from a configuration, untrained.

    Raises ImportError where `transformers` is not installed.
    """
    from transformers import MarianMTModel

    model = MarianMTModel(
        marian_config(
            settings.config(dropout=settings.dropout),
            max_position_embeddings=settings.length,
            decoder_start_token_id=PAD,
            use_cache=False,
        )
    ).train()

    def loss(batch: Batch) -> Tensor:
        with mixed(precision):
            logits = model(
                input_ids=batch.src,
                attention_mask=(batch.src != PAD).long(),
                decoder_input_ids=batch.tgt,
            ).logits
        return padded_loss(logits.float(), batch, settings.smoothing)

    return Contender("Marian", model, loss, settings.rate, precision)


def joey(settings: Settings, precision: Precision = "float32") -> Contender:
    """JoeyNMT's Transformer with its own loss, untrained.

    Raises ImportError where `joeynmt` is not installed.
    """
    from joeynmt.decoders import TransformerDecoder
    from joeynmt.embeddings import Embeddings
    from joeynmt.encoders import TransformerEncoder
    from joeynmt.model import Model

    words = SimpleNamespace(
        pad_index=PAD, bos_index=BOS, eos_index=EOS, sep_index=None,
        unk_index=UNK, specials=[], lang_tags=[], lookup=None,
    )  # fmt: skip
    shape: dict[str, Any] = {
        "hidden_size": settings.d_model,
        "ff_size": settings.d_ff,
        "num_layers": settings.layers,
        "num_heads": settings.num_heads,
        "dropout": settings.dropout,
        "emb_dropout": settings.dropout,
        "layer_norm": "post",
    }
    read = Embeddings(settings.d_model, True, settings.vocab, PAD)
    encoder = TransformerEncoder(**shape)
    decoder = TransformerDecoder(**shape, vocab_size=settings.vocab)
    model = Model(encoder, decoder, read, read, words, words)
    decoder.output_layer.weight = read.lut.weight
    for name, module in model.named_modules():
        if name.endswith("_att"):
            module.dropout.p = 0.0  # on the weights
        if name.endswith("pwff_layer"):
            module[2].p = 0.0  # between the two linear maps
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    model.loss_function = "crossentropy", settings.smoothing
    model.train()
    # its loss leaves out what the smoothed labels say of themselves
    eps = settings.smoothing
    shares = torch.tensor([1 - eps, eps / (settings.vocab - 2)])
    counts = torch.tensor([1, settings.vocab - 2])
    entropy = -(counts * torch.xlogy(shares, shares)).sum()

    def loss(batch: Batch) -> Tensor:
        lengths = (batch.src != PAD).sum(dim=1)
        with mixed(precision):
            total, *_ = model(
                return_type="loss",
                src=batch.src,
                src_length=lengths,
                src_mask=(batch.src != PAD)[:, None],
                trg_input=batch.tgt,
                trg=batch.labels,
                trg_mask=(batch.labels != PAD)[:, None],
            )
        return total / batch.tokens + entropy

    return Contender("JoeyNMT", model, loss, settings.rate, precision)


MAKERS = (ours, torch_model, marian, joey)
OTHERS = {"transformers": (marian, "Marian"), "joeynmt": (joey, "JoeyNMT")}


# --- the measurement ------------------------------------------------------


def matrix_flops(settings: Settings, batches: Sequence[Batch]) -> float:
    """Floating-point operations of the matrix products that a step needs,
    averaged over batches. Padding needs none.
    """
    d, layers = settings.d_model, settings.layers
    network = 2 * d * settings.d_ff
    total = 0.0
    for batch in batches:
        n = (batch.src != PAD).sum(dim=1).double()
        m = (batch.tgt != PAD).sum(dim=1).double()
        source = layers * (4 * d * d + network + 2 * d * d)  # memory's k, v
        target = layers * (4 * d * d + network + 2 * d * d)
        target += d * settings.vocab
        weights = source * n.sum() + target * m.sum()
        looks = layers * 2 * d * (n * n + m * m + n * m).sum()
        total += float(weights + looks)
    # a product is 2 operations; the backward pass has two for each
    return 2 * 3 * total / len(batches)


def peak_flops(precision: Precision, size: int = 2048) -> float:
    """Floating-point operations a second in one large matrix product."""
    a = torch.ones(size, size, dtype=getattr(torch, precision))
    start = time.perf_counter()
    a @ a
    return 2 * size**3 / (time.perf_counter() - start)


@dataclass(frozen=True)
class Outcome:
    """One contender in one setting."""

    name: str
    parameters: int
    step_ms: float  # median over rounds of the mean over batches
    tokens_per_second: float  # target tokens, padding not counted
    peak_share: float  # needed matrix operations / peak in its precision
    ratio: float  # its time / ours in its precision, median over rounds
    to_best: float  # its time / ours in our fastest precision, the same
    first_loss: float
    last_loss: float


def measure(
    settings: Settings, batches: list[Batch], makers: Sequence[Any]
) -> tuple[list[Outcome], dict[str, float]]:
    """Train everyone in turn; the outcomes, and by precision the machine's
    peak.
    """
    contenders: list[Contender] = []
    for precision in settings.precisions:
        for make in makers:
            torch.manual_seed(settings.seed)
            contenders.append(make(settings, precision))
    seconds = {c.name: list[float]() for c in contenders}
    losses = {c.name: list[float]() for c in contenders}
    peaks = dict.fromkeys(settings.precisions, 0.0)
    for turn in range(settings.warmup + settings.rounds):
        for precision, peak in peaks.items():
            peaks[precision] = max(peak, peak_flops(precision))
        for contender in contenders:
            start = time.perf_counter()
            loss = [contender.step(batch) for batch in batches]
            took = (time.perf_counter() - start) / len(batches)
            losses[contender.name] += loss
            if turn >= settings.warmup:
                seconds[contender.name].append(took)
    flops = matrix_flops(settings, batches)
    tokens = sum(batch.tokens for batch in batches) / len(batches)
    own = {
        c.precision: seconds[c.name]
        for c in contenders[:: len(makers)]  # ours is the first of each
    }
    best = min(own.values(), key=median)

    def against(times: list[float], others: list[float]) -> float:
        return median(t / o for t, o in zip(times, others, strict=True))

    outcomes = []
    for contender in contenders:
        times, loss = seconds[contender.name], losses[contender.name]
        outcomes.append(
            Outcome(
                contender.name,
                contender.parameters,
                1e3 * median(times),
                tokens / median(times),
                flops / median(times) / peaks[contender.precision],
                against(times, own[contender.precision]),
                against(times, best),
                loss[0],
                sum(loss[-len(batches) :]) / len(batches),
            )
        )
    return outcomes, peaks


def doubts(
    settings: Settings, outcomes: Sequence[Outcome]
) -> Iterator[str]:
    """What is wrong with the losses: a fast step that does not learn, or
    learns something else, is no step.
    """
    even = math.log(settings.vocab)
    for one in outcomes:
        if abs(one.first_loss - even) > 1:
            yield (
                f"{one.name} begins with a loss of {one.first_loss:.2f}, "
                f"far from ln {settings.vocab} = {even:.2f}"
            )
        if not one.last_loss < one.first_loss - 0.1:
            yield (
                f"{one.name} does not learn: its loss went from "
                f"{one.first_loss:.2f} to {one.last_loss:.2f}"
            )


# --- the report -----------------------------------------------------------


def available() -> tuple[list[Any], list[str]]:
    """Who can take part, and why the others cannot."""
    makers: list[Any] = [ours, torch_model]
    absent = []
    for package, (make, name) in OTHERS.items():
        try:
            importlib.import_module(package)
        except ImportError as error:
            absent.append(
                f"{name} is left out: {error} (pip install {package})"
            )
        else:
            makers.append(make)
    return makers, absent


def table(outcomes: Sequence[Outcome]) -> list[str]:
    head = (
        f"{'':20}{'ms a step':>10}{'tokens/s':>10}{'of peak':>9}"
        f"{'time / ours':>13}{'loss':>16}"
    )
    lines = [head]
    for one in outcomes:
        loss = f"{one.first_loss:.2f} → {one.last_loss:.2f}"
        lines.append(
            f"{one.name:20}{one.step_ms:10.1f}{one.tokens_per_second:10,.0f}"
            f"{one.peak_share:9.0%}{one.ratio:13.2f}{loss:>16}"
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    settings = tyro.cli(
        Settings, args=argv, description=(__doc__ or "").splitlines()[0]
    )
    torch.set_num_threads(settings.threads)
    keep_freed_memory()  # as our trainer does: for everyone here
    start = time.perf_counter()
    makers, absent = available()
    makers[1:1] = [compiled] if settings.compiled else []
    metrics: dict[str, Any] = {}
    wrong: list[str] = []
    print(
        f"{told(settings.config())}; "
        f"{settings.sentences} pairs of at most {settings.length} tokens; "
        f"{settings.threads} threads; median of {settings.rounds} rounds"
    )
    print(versions(*PACKAGES))
    print(*absent, sep="\n", end="\n" if absent else "")
    for setting in ("as they come", "full"):
        batches = draw_batches(settings, full=setting == "full")
        outcomes, peaks = measure(settings, batches, makers)
        share = real_share(batches)
        print(
            f"\n{setting}: {share:.0%} of the places hold a word, the rest "
            "padding; peak "
            + ", ".join(
                f"{p / 1e9:.0f} GFLOP/s {n}" for n, p in peaks.items()
            )
        )
        print("\n".join(table(outcomes)))
        metrics[setting] = {
            "real_share": share,
            "peak_gflops": {name: p / 1e9 for name, p in peaks.items()},
            "flops_per_step": matrix_flops(settings, batches),
            "contenders": {
                one.name: {
                    k: v for k, v in asdict(one).items() if k != "name"
                }
                for one in outcomes
            },
            # the fastest of the others against the fastest of ours
            "fastest_other_ratio": min(
                one.to_best
                for one in outcomes
                if not one.name.startswith("annotated")
            ),
        }
        wrong += [
            f"{setting}: {what}" for what in doubts(settings, outcomes)
        ]
    if wrong:
        print("\n".join(["", *wrong]), file=sys.stderr)
        return 1
    if settings.json is not None:
        shape = asdict(replace(settings, json=None))
        del shape["json"]
        shape["precision"] = settings.precisions
        result = entry(
            "train_speed",
            typed("train_speed.py", settings),
            metrics,
            seed=settings.seed,
            wall_seconds=time.perf_counter() - start,
            settings=shape,
            packages=PACKAGES,
            threads=settings.threads,
        )
        write(settings.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
