"""How long do a recurrent, a convolutional and an attention translator train
until they are equally good?

    python benchmarks/translators.py --work RUNS.jsonl \
        --json book/results/translators.json   # half an hour of one core

§7 says that the Transformer trains much faster than the other two. Here each
of them learns Pocket German (chapter 19) on the same batches, with Adam, a
warm-up and one of two peaks, until the loss of unseen sentences is at most as
high as wanted. What counts is the processor's time, or with --device cuda the
time of the GPU.

All have about as many parameters. The recurrent one reads with an LSTM in
both directions, writes with one, and attends to its source after it (Luong et
al., 2015); the convolutional one has gated convolutions that attend in every
layer of the decoder (Gehring et al., 2017); the third is chapter 19's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro
from ledger import append, entry_of_runs, make_runs, read
from torch import Tensor, nn

from annotated.attention import attention
from annotated.batches import Batch, Corpus, Sentences
from annotated.book.results import commit
from annotated.complexity import Convolution
from annotated.embeddings import SinusoidalPositions
from annotated.loss import smoothed_loss
from annotated.masks import padding_mask
from annotated.model import Transformer, TransformerConfig
from annotated.pocket import pocket_pairs
from annotated.schedule import make_optimizer, set_learning_rate
from annotated.tokens import PAD, Tokenizer

KINDS = ("recurrent", "convolutional", "attention")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to run."""

    kinds: tuple[str, ...] = KINDS
    peaks: tuple[float, ...] = (1e-3, 3e-3)
    """the highest rate; each kind is given the better one"""
    seeds: int = 3
    nll: tuple[float, ...] = (0.5, 0.2, 0.1)
    """in nats per token of unseen sentences; the time to each is taken"""
    steps: int = 3000
    """when to give up"""
    every: int = 50
    """steps between two looks at unseen sentences"""
    warmup: int = 200
    batch_tokens: int = 600
    pairs: int = 100_000
    width: int = 128
    device: str = "cpu"
    """on a GPU the clock on the wall counts"""
    work: Path | None = None
    """a file of finished runs, to go on from; unless given, a new one"""
    json: Path | None = None
    """write the result here"""


class Recurrent(nn.Module):
    """LSTMs, and attention after the decoder's (§1)."""

    def __init__(self, src_vocab: int, tgt_vocab: int, d: int):
        super().__init__()
        self.source = nn.Embedding(src_vocab, d)
        self.target = nn.Embedding(tgt_vocab, d)
        self.encoder = nn.LSTM(
            d, d // 2, batch_first=True, bidirectional=True
        )
        self.decoder = nn.LSTM(d, d, batch_first=True)
        self.mix = nn.Linear(2 * d, d)
        self.output = nn.Linear(d, tgt_vocab, bias=False)
        self.output.weight = self.target.weight

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        lengths = (src != PAD).sum(dim=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(
            self.source(src),
            lengths,
            batch_first=True,
            enforce_sorted=False,
        )
        states, (h, c) = self.encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(
            states, batch_first=True, total_length=src.size(1)
        )
        first = [x.transpose(0, 1).flatten(1)[None] for x in (h, c)]
        x, _ = self.decoder(self.target(tgt), tuple(first))
        context = attention(x, memory, memory, padding_mask(src)[:, 0])
        x = torch.tanh(self.mix(torch.cat([x, context], dim=-1)))
        return self.output(x)


class GatedConvolution(nn.Module):
    """x + a · σ(b), where a and b are convolutions of x."""

    def __init__(self, d: int, k: int, causal: bool):
        super().__init__()
        self.values = Convolution(d, k, causal=causal)
        self.gates = Convolution(d, k, causal=causal)

    def forward(self, x: Tensor) -> Tensor:
        return self.values(x) * self.gates(x).sigmoid()


class Convolutional(nn.Module):
    """Convolutions on both sides; each layer of the decoder attends."""

    def __init__(self, src_vocab: int, tgt_vocab: int, d: int, k: int = 3):
        super().__init__()
        self.source = nn.Embedding(src_vocab, d)
        self.target = nn.Embedding(tgt_vocab, d)
        self.positions = SinusoidalPositions(d)
        for table in (self.source, self.target):
            nn.init.normal_(table.weight)
        self.encoder = nn.ModuleList(
            GatedConvolution(d, k, causal=False) for _ in range(2)
        )
        self.decoder = nn.ModuleList(
            GatedConvolution(d, k, causal=True) for _ in range(2)
        )
        self.queries = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.output = nn.Linear(d, tgt_vocab)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        real = padding_mask(src)[:, 0]  # (batch, 1, src_len)
        read = self.source(src) + self.positions(src.size(1))
        memory = read
        for layer in self.encoder:
            memory = memory * real.transpose(1, 2)  # no padding is heard
            memory = (memory + layer(memory)) * 0.5**0.5
        value = (memory + read) * 0.5**0.5
        x = self.target(tgt) + self.positions(tgt.size(1))
        for layer, query in zip(self.decoder, self.queries, strict=True):
            y = layer(x)
            y = (y + attention(query(y), memory, value, real)) * 0.5**0.5
            x = (x + y) * 0.5**0.5
        return self.output(x)


def build(kind: str, src_vocab: int, tgt_vocab: int, d: int) -> nn.Module:
    """A translator; widths are chosen for about as many parameters."""
    if kind == "recurrent":
        return Recurrent(src_vocab, tgt_vocab, round(d * 1.53 / 2) * 2)
    if kind == "convolutional":
        return Convolutional(src_vocab, tgt_vocab, round(d * 1.17 / 2) * 2)
    return Transformer(
        TransformerConfig(
            src_vocab=src_vocab, tgt_vocab=tgt_vocab, d_model=d, d_ff=2 * d,
            num_encoder_layers=2, num_decoder_layers=2, num_heads=4,
            dropout=0.0, tie="decoder",
        )
    )  # fmt: skip


def corpora(pairs: int) -> tuple[Corpus, Corpus, tuple[int, int]]:
    """To learn from, unseen ones, and the sizes of the vocabularies."""
    train, valid = pocket_pairs(pairs, "train"), pocket_pairs(500, "valid")
    known = [
        Tokenizer.train([getattr(p, side) for p in train], 2000, "word")
        for side in ("source", "target")
    ]

    def corpus(some: Any) -> Corpus:
        sides = zip(known, ("source", "target"), strict=True)
        return Corpus(
            *(
                Sentences.of(one.encode([getattr(p, side) for p in some]))
                for one, side in sides
            )
        )

    return corpus(train), corpus(valid), (len(known[0]), len(known[1]))


def nats(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss of a batch per token, and its tokens."""
    logits = model(batch.src, batch.tgt)
    _, nll = smoothed_loss(logits, batch.labels, 0.0)
    return nll / batch.tokens, torch.tensor(batch.tokens)


def clock(device: str) -> float:
    """Seconds: of the processor, or of a GPU that has done its work."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


@torch.no_grad()
def validate(model: nn.Module, valid: Corpus, device: str = "cpu") -> float:
    """Nats per token of all unseen sentences."""
    model.eval()
    batches = (batch.to(device) for batch in valid.batches(4000))
    found = [nats(model, batch) for batch in batches]
    model.train()
    total = sum(float(loss * tokens) for loss, tokens in found)
    return total / sum(int(tokens) for _, tokens in found)


def train(
    settings: Settings,
    kind: str,
    peak: float,
    seed: int,
    train_on: Corpus,
    valid: Corpus,
    sizes: tuple[int, int],
) -> dict[str, Any]:
    """One run: the seconds and the steps to each loss, None where it was
    not reached.
    """
    device = settings.device
    torch.manual_seed(seed)
    model = build(kind, *sizes, settings.width).to(device).train()
    optimizer = make_optimizer(model.parameters())
    reached: dict[str, list[float] | None] = {
        str(wanted): None for wanted in settings.nll
    }
    spent, step, epoch, curve = 0.0, 0, 0, []
    rate = partial(rate_of, settings, peak)
    while step < settings.steps:
        plan = train_on.plan(settings.batch_tokens, seed, epoch)
        epoch += 1
        for rows in plan[: settings.steps - step]:
            start = clock(device)
            step += 1
            set_learning_rate(optimizer, rate(step))
            optimizer.zero_grad()
            loss, _ = nats(model, train_on.batch(rows).to(device))
            loss.backward()
            optimizer.step()
            spent += clock(device) - start
            if step % settings.every and step < settings.steps:
                continue
            found = validate(model, valid, device)
            curve.append([step, round(spent, 2), round(found, 4)])
            for wanted in settings.nll:
                if found <= wanted and reached[str(wanted)] is None:
                    reached[str(wanted)] = [round(spent, 2), step]
            if all(reached.values()):
                break
        if all(reached.values()):
            break
    return {
        "kind": kind,
        "peak": peak,
        "seed": seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        "reached": reached,
        "steps": step,
        "seconds": round(spent, 2),
        "curve": curve,
    }


def rate_of(settings: Settings, peak: float, step: int) -> float:
    """Equation 3 by its peak: up in a line, down with the root."""
    return peak * min(
        step / settings.warmup, (settings.warmup / step) ** 0.5
    )


def run(settings: Settings, work: Path) -> None:
    """Make the runs that work lacks, seed by seed."""
    done = {(one["kind"], one["peak"], one["seed"]) for one in read(work)}
    data = corpora(settings.pairs)
    for seed in range(settings.seeds):
        for kind in settings.kinds:
            for peak in settings.peaks:
                if (kind, peak, seed) not in done:
                    found = train(settings, kind, peak, seed, *data)
                    append(work, found | {"commit": commit()})


def result(settings: Settings, runs: list[dict[str, Any]]) -> Any:
    return entry_of_runs("translators.py", settings, {"runs": runs}, runs)


def main(words: list[str] | None = None) -> int:
    make_runs(tyro.cli(Settings, args=words), run, result)
    return 0


if __name__ == "__main__":
    main()
