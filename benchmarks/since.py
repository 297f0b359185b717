"""What the parts of later years change, each alone and all together.

    python benchmarks/since.py                   # half an hour of one core
    python benchmarks/since.py --json book/results/since-2017.json
    python benchmarks/since.py --only lengths --seeds 3

Three studies, each of small models with several seeds; benchmarks/README.md
says what is the same for all and what is not. A run that --work has is not
made again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
import tyro
from ledger import append, entry_of_runs, make_runs, read
from torch import nn

from annotated.batches import Corpus, Sentences
from annotated.book.example import (
    reversal_batch,
    reversal_model,
    train_reversal,
)
from annotated.book.results import commit
from annotated.model import Transformer, TransformerConfig
from annotated.pocket import pocket_pairs
from annotated.since import DecoderOnly, swap
from annotated.tokens import Tokenizer
from annotated.training import (
    Trainer,
    TrainingConfig,
    greedy_accuracy,
    validate,
)

# a model: the configuration's changes, the parts put in, one stack or two
Variant = tuple[dict[str, Any], list[str], bool]
ALL = ["RMSNorm", "SwiGLU", "rotary grouped"]
TODAY = {"norm": "pre", "bias": False}
PARTS: dict[str, Variant] = {
    "2017": ({}, [], False),
    "pre-norm": ({"norm": "pre"}, [], False),
    "RMSNorm": ({}, ["RMSNorm"], False),
    "GELU": ({"activation": "gelu"}, [], False),
    "SwiGLU": ({}, ["SwiGLU"], False),
    "no biases": ({"bias": False}, [], False),
    "learned positions": ({"positions": "learned"}, [], False),
    "rotary": ({}, ["rotary"], False),
    "no positions": ({}, ["no positions"], False),
    "2 groups": ({}, ["grouped"], False),
    "1 group": ({}, ["grouped"], False),
    "decoder only": ({}, [], True),
    "all of today's": (TODAY, ALL, False),
    "all, decoder only": (TODAY, ALL, True),
}
POSITIONS = ["sinusoidal", "learned", "rotary", "none"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure."""

    only: Literal["parts", "depth", "lengths"] | None = None
    """one of the studies, unless all"""
    seeds: int = 3
    first: int = 0
    """the first seed, where several processes share the work"""
    steps: int = 400
    """of training on pocket German"""
    pairs: int = 20_000
    """of pocket German"""
    depth_steps: int = 150
    copy_steps: int = 600
    """of learning to copy; one stack, which learns it later, takes twice
    as many"""
    work: Path | None = None
    """a file of finished runs, to go on from; unless given, a new one"""
    json: Path | None = None
    """write the result here"""


# --- pocket German: every part alone --------------------------------------


def pocket(pairs: int) -> tuple[Corpus, Corpus, dict[str, Any]]:
    """Training and validation, and the vocabularies, as in chapter 19."""
    train, valid = pocket_pairs(pairs, "train"), pocket_pairs(500, "valid")
    source = Tokenizer.train([p.source for p in train], 2000, "word")
    target = Tokenizer.train([p.target for p in train], 2000, "word")
    corpora = [
        Corpus(
            Sentences.of(source.encode([p.source for p in some])),
            Sentences.of(target.encode([p.target for p in some])),
        )
        for some in (train, valid)
    ]
    vocabulary = {"src_vocab": len(source), "tgt_vocab": len(target)}
    return corpora[0], corpora[1], vocabulary


def make(name: str, seed: int, **shape: Any) -> Any:
    """A model of PARTS."""
    changes, parts, one_stack = PARTS[name]
    torch.manual_seed(seed)
    if one_stack:  # as many parameters as two and two layers
        changes = changes | {"num_encoder_layers": 5}
    config = TransformerConfig(**shape | changes)
    model = DecoderOnly(config) if one_stack else Transformer(config)
    return swap(model, *parts, groups=1 if name == "1 group" else 2)


def learn_pocket(settings: Settings) -> Iterator[Callable[..., Any]]:
    """A run of the study `parts`, once the data is there."""
    train, valid, vocabulary = pocket(settings.pairs)

    def run(name: str, seed: int) -> dict[str, Any]:
        model = make(
            name,
            seed,
            num_encoder_layers=2,
            num_decoder_layers=2,
            d_model=64,
            d_ff=128,
            num_heads=4,
            dropout=0.0,
            tie="decoder",
            max_len=64,
            **vocabulary,
        )
        config = TrainingConfig(
            batch_tokens=600,
            warmup=150,
            rate=0.5,
            cooldown=settings.steps // 2,
            label_smoothing=0.0,
            max_steps=settings.steps,
            seed=seed,
        )
        curve = [p.nll for p in Trainer(model, train, config).steps()]
        tokens, whole = greedy_accuracy(model, valid)
        return {
            "nll": validate(model, valid, config)["nll"],
            "tokens_right": tokens,
            "sentences_right": whole,
            "parameters": sum(p.numel() for p in model.parameters()),
            "curve": [
                sum(curve[i : i + 20]) / 20
                for i in range(0, len(curve), 20)
            ],
        }

    yield run


# --- reversal: depth without warm-up --------------------------------------


def learn_deep(settings: Settings) -> Iterator[Callable[..., Any]]:
    """A run of the study `depth`: 6 + 6 layers on the running example,
    whose rate rises over 100 steps or is there at once.
    """

    def run(norm: str, warmup: int, seed: int) -> dict[str, Any]:
        stacks = {"num_encoder_layers": 6, "num_decoder_layers": 6}
        model = reversal_model(seed, norm=norm, **stacks)
        draw = torch.Generator().manual_seed(seed)
        adam = torch.optim.Adam(
            model.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9
        )
        losses = []
        for step in range(1, settings.depth_steps + 1):
            for group in adam.param_groups:
                group["lr"] = 2e-3 * min(1.0, step / warmup)
            src, tgt, labels = reversal_batch(9, 32, draw)
            loss = F.cross_entropy(
                model(src, tgt).flatten(0, 1), labels.flatten()
            )
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(loss.item())
        return {
            "loss": sum(losses[-10:]) / 10,
            "curve": [
                sum(losses[i : i + 10]) / 10
                for i in range(0, len(losses), 10)
            ],
        }

    yield run


# --- copying: beyond the longest word -------------------------------------


def copy_batch(
    length: int, words: int = 64, generator: torch.Generator | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As reversal_batch, but nothing is reversed (chapter 7)."""
    src, tgt, labels = reversal_batch(length, words, generator)
    tgt[:, 1:], labels[:, :-1] = src[:, :-1], src[:, :-1]
    return src, tgt, labels


@torch.no_grad()
def right_letters(model: nn.Module, length: int) -> float:
    """The share of right tokens where all before them were right."""
    draw = torch.Generator().manual_seed(length)
    src, tgt, labels = copy_batch(length, 200, draw)
    return (model(src, tgt).argmax(-1) == labels).float().mean().item()


def learn_to_copy(settings: Settings) -> Iterator[Callable[..., Any]]:
    """A run of the study `lengths`: words of one to nine letters."""

    def run(kind: str, stacks: int, seed: int) -> dict[str, Any]:
        learned = kind == "learned"
        changes = {
            "positions": "learned" if learned else "sinusoidal",
            "max_len": 128,
        }
        model: Any = reversal_model(seed, **changes)
        if stacks == 1:
            torch.manual_seed(seed)
            config = asdict(model.config) | {"num_encoder_layers": 2}
            model = DecoderOnly(TransformerConfig(**config))
        if kind in ("rotary", "none"):
            swap(model, "rotary" if kind == "rotary" else "no positions")
        steps = settings.copy_steps * (2 if stacks == 1 else 1)
        train_reversal(model, steps, seed, range(1, 10), batch=copy_batch)
        return {"right": [right_letters(model, n) for n in range(1, 19)]}

    yield run


# --- all of them ----------------------------------------------------------

STUDIES: dict[str, tuple[Callable[..., Any], list[dict[str, Any]]]] = {
    "parts": (learn_pocket, [{"name": name} for name in PARTS]),
    "lengths": (
        learn_to_copy,
        [
            {"kind": kind, "stacks": stacks}
            for stacks in (2, 1)
            for kind in POSITIONS
        ],
    ),
    "depth": (
        learn_deep,
        [
            {"norm": norm, "warmup": warmup}
            for norm in ("post", "pre")
            for warmup in (100, 1)
        ],
    ),
}


def run(settings: Settings, work: Path) -> None:
    """Make every run that work lacks; a seed of all before the next."""
    here = commit()  # of the code that was loaded
    seeds = range(settings.first, settings.first + settings.seeds)
    for study, (prepare, cells) in STUDIES.items():
        if settings.only not in (None, study):
            continue
        names = [
            {"study": study, **cell, "seed": seed}
            for seed, cell in itertools.product(seeds, cells)
        ]
        there = [
            {key: one[key] for key in names[0] if key in one}
            for one in read(work)
        ]
        missing = [name for name in names if name not in there]
        learn = next(prepare(settings)) if missing else None
        for name in missing:
            begin = time.process_time()
            arguments = {k: v for k, v in name.items() if k != "study"}
            found = learn(**arguments) if learn else {}
            seconds = time.process_time() - begin
            line = {
                **name,
                **found,
                "seconds": round(seconds, 1),
                "commit": here,
            }
            append(work, line)


def result(
    settings: Settings, runs: list[dict[str, Any]]
) -> dict[str, Any]:
    """What the ledger wants to know."""
    metrics: dict[str, Any] = {study: [] for study in STUDIES}
    for one in runs:
        kept = {
            k: v for k, v in one.items() if k not in ("study", "commit")
        }
        metrics[one["study"]].append(kept)
    return entry_of_runs("since.py", settings, metrics, runs)


def main() -> None:
    make_runs(tyro.cli(Settings), run, result)


if __name__ == "__main__":
    main()
