"""What the rows of the ledger of deviations amount to, on a small scale.

    python benchmarks/deviations.py              # ten minutes of one core
    python benchmarks/deviations.py --work RUNS --json deviations.json
    python benchmarks/deviations.py --only searches --seeds 1
    python benchmarks/deviations.py --model chapter --pairs 100000 \
        --seeds 5 --sentences 300 --work RUNS   # six hours of one core
    python benchmarks/deviations.py --folders RUN --sentences 1000

Small models learn pocket German for a few hundred steps: ours, and others
that differ by one thing, from the same seeds and on the same batches. Then
ours translates by rules of search that differ by one thing; so does a model
that `annotated train` has made, with --folders. (benchmarks/since.py has
three more: pre-norm, no biases, learned positions.) A run that --work has is
not made again; all seeds of a run come before the next.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import numpy as np
import torch
import tyro
from ledger import append, entry_of_runs, make_runs, read
from numpy.typing import NDArray
from torch import Tensor, nn

from annotated.attention import MultiHeadAttention
from annotated.batches import Batch, Corpus, Sentences, cut
from annotated.book.results import commit
from annotated.embeddings import Embeddings, SinusoidalPositions
from annotated.engine.data import open_data
from annotated.engine.hooks import replace
from annotated.engine.packing import FastDropout
from annotated.engine.runs import Run
from annotated.evaluation import compare, score
from annotated.model import Transformer, TransformerConfig
from annotated.pocket import Pair, pocket_pairs
from annotated.schedule import make_optimizer
from annotated.search import After, length_penalty, log_p_after
from annotated.tokens import BOS, EOS, PAD, Tokenizer
from annotated.training import (
    Trainer,
    TrainingConfig,
    greedy_accuracy,
    validate,
)

# --- other models ----------------------------------------------------------


class HarvardNorm(nn.Module):
    """Layer norm as in the Annotated Transformer: the deviation with
    n - 1, and eps outside of it.
    """

    def __init__(self, d_model: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_model) -> (…, d_model)"""
        spread = x.std(dim=-1, keepdim=True) + self.eps
        rest = x - x.mean(dim=-1, keepdim=True)
        return self.weight * rest / spread + self.bias


class ZeroStart(Embeddings):
    """The decoder first reads a vector of zeros (tensor2tensor)."""

    def read_target(self, ids: Tensor) -> Tensor:
        """(…) -> (…, d_model)"""
        return super().read_target(ids) * (ids != BOS)[..., None]


def harvard_norms(model: Transformer) -> None:
    width = model.config.d_model
    replace(model, nn.LayerNorm, lambda _: HarvardNorm(width))


def last_norms(model: Transformer) -> None:
    """On top of each stack, where post-norm needs none (torch.nn)."""
    for stack in (model.encoder, model.decoder):
        stack.norm = nn.LayerNorm(model.config.d_model)


@torch.no_grad()
def stacked_xavier(model: Transformer) -> None:
    """As if q, k and v were one matrix of three times the rows."""
    for block in model.modules():
        if isinstance(block, MultiHeadAttention):
            for part in (block.w_q, block.w_k, block.w_v):
                part.weight.mul_(0.5**0.5)


def xavier_embeddings(model: Transformer) -> None:
    for parameter in model.embeddings.parameters():
        nn.init.xavier_uniform_(parameter)


def zero_start(model: Transformer) -> None:
    c, tables = model.config, model.embeddings
    with torch.device("meta"):  # its own tables are dropped
        shape = c.src_vocab, c.tgt_vocab, c.d_model, c.tie, c.output_bias
        model.embeddings = ZeroStart(*shape)
    for name, table in tables._parameters.items():
        setattr(model.embeddings, name, table)


def sines_then_cosines(model: Transformer) -> None:
    """tensor2tensor's table, whose last wave is 10,000 · 2π long."""
    half = model.config.d_model // 2
    scale = 10_000 ** (torch.arange(half).double() / (half - 1))
    for part in model.modules():
        if isinstance(part, SinusoidalPositions):
            angle = torch.arange(len(part.table))[:, None] / scale
            table = torch.cat([angle.sin(), angle.cos()], dim=1)
            part.table = table.to(part.table)


def sixteen_bits(model: Transformer) -> None:
    replace(model, nn.Dropout, lambda old: FastDropout(old.p))


# --- other trainings -------------------------------------------------------


class LaterBeta(Trainer):
    """β₂ of tensor2tensor's version 3."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.optimizer = make_optimizer(
            self.model.parameters(), betas=(0.9, 0.997)
        )


class Bfloat16(Trainer):
    """Products in 16 bits."""

    def gradient(self, batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().gradient(batch)


class SharedByOthers(Trainer):
    """The words that share ε are all but the label (tensor2tensor)."""

    left_out: tuple[int, ...] = ()

    def gradient(self, batch: Batch) -> Tensor:
        logits = self.model(batch.src, batch.tgt)
        log_p = logits.log_softmax(dim=-1)
        nll = -log_p.gather(-1, batch.labels[..., None])[..., 0]
        others = -log_p.sum(dim=-1) - nll
        for word in self.left_out:
            others = others + log_p[..., word]
        words = logits.size(-1) - 1 - len(self.left_out)
        eps = self.config.label_smoothing
        loss = (1 - eps) * nll + eps * others / words
        real = batch.labels != PAD
        loss, nll = loss[real].mean(), nll[real].mean()
        loss.backward()
        return torch.stack([loss.detach(), nll.detach()])


class NorPadding(SharedByOthers):
    """Nor does padding (the Annotated Transformer)."""

    left_out = (PAD,)


class AtRandom(Trainer):
    """Pairs of any length stand in one batch."""

    def plan(self, epoch: int) -> list[NDArray]:
        draw = np.random.default_rng([self.config.seed, epoch])
        sides = self.corpus.src.lengths + 1, self.corpus.tgt.lengths + 1
        order = draw.permutation(len(self.corpus))
        size = self.config.batch_tokens
        return cut(order, [side[order] for side in sides], size)


class ByPlaces(Trainer):
    """A batch is counted in places of its longer side (fairseq)."""

    def plan(self, epoch: int) -> list[NDArray]:
        draw = np.random.default_rng([self.config.seed, epoch])
        longer = 1 + np.maximum(
            self.corpus.src.lengths, self.corpus.tgt.lengths
        )
        order = draw.permutation(len(longer))
        order = order[np.argsort(longer[order], kind="stable")]
        batches: list[list[int]] = [[]]
        for pair in order.tolist():  # the last is the longest
            places = (len(batches[-1]) + 1) * longer[pair]
            if batches[-1] and places > self.config.batch_tokens:
                batches.append([])
            batches[-1].append(pair)
        rows = [np.array(batch) for batch in batches]
        return [rows[i] for i in draw.permutation(len(rows))]


# --- what differs ----------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """One difference from ours, or from the change it stands beside."""

    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    warmup: int = 1  # times as long
    rate: int = 1  # times as high
    alter: Callable[[Transformer], None] | None = None
    trainer: type[Trainer] = Trainer
    beside: str = "ours"


SMOOTH = {"label_smoothing": 0.1}
CHANGES = {
    "ours": Change(),
    "last norms": Change(alter=last_norms),
    "n - 1": Change(alter=harvard_norms),
    "q, k, v stacked": Change(alter=stacked_xavier),
    "Xavier embeddings": Change(alter=xavier_embeddings),
    "two matrices": Change({"tie": "decoder"}),
    "three matrices": Change({"tie": "none"}),
    "sines first": Change(alter=sines_then_cosines),
    "later β₂": Change(trainer=LaterBeta),
    "v2's schedule": Change(warmup=2, rate=2),
    "no cool-down": Change(training={"cooldown": 0}),
    "attention dropout": Change({"attention_dropout": 0.1}),
    "activation dropout": Change({"activation_dropout": 0.1}),
    "dropout": Change({"dropout": 0.1}),
    "smoothing": Change(training=SMOOTH),
    "at random": Change(trainer=AtRandom),
    "places": Change(trainer=ByPlaces),
    "zeros first": Change(alter=zero_start),
    "window 5": Change({"window": 5}),
    "clipped": Change(training={"clip": 1.0}),
    "ε/(V - 1)": Change(
        training=SMOOTH, trainer=SharedByOthers, beside="smoothing"
    ),
    "ε/(V - 2)": Change(
        training=SMOOTH, trainer=NorPadding, beside="smoothing"
    ),
    "dropout of 16 bits": Change(
        {"dropout": 0.1}, alter=sixteen_bits, beside="dropout"
    ),
    "16 bits": Change(trainer=Bfloat16),
}


@dataclass(frozen=True)
class Rules:
    """How to search; unless changed, as we do."""

    alpha: float = 0.6
    penalty: Callable[[int, float], float] = length_penalty
    uncounted: int = 0  # 1: the penalty does not count the end
    ends: int = 2  # ends compete for so many times k places
    k_ended: bool = False  # stop when k have ended


def fairseq_penalty(length: int, alpha: float) -> float:
    return length**alpha


RULES = {
    "ours": Rules(),
    "α = 0": Rules(alpha=0.0),
    "fairseq's penalty": Rules(penalty=fairseq_penalty),
    "end not counted": Rules(uncounted=1),
    "k places": Rules(ends=1),
    "k ended": Rules(k_ended=True),
}
BEAM, EXTRA = 4, 50


def search(after: After, limit: int, rules: Rules) -> list[int]:
    """The best sentence by these rules, as annotated.search.beam."""

    def divided(total: float, length: int) -> float:
        counted = max(1, length - rules.uncounted)
        return total / rules.penalty(counted, rules.alpha)

    alive: list[tuple[list[int], float]] = [([BOS], 0.0)]
    ended: list[tuple[float, list[int]]] = []
    for length in range(1, limit + 1):
        grown = []
        for ids, so_far in alive:
            log_p = after(ids)
            tokens = log_p.topk(2 * BEAM).indices.tolist()
            for token in tokens if length < limit else [EOS]:
                total = so_far + log_p[token].item()
                if total > -math.inf:
                    grown.append(([*ids, token], total))
        grown = sorted(grown, key=lambda h: -h[1])[: 2 * BEAM]
        for ids, total in grown[: rules.ends * BEAM]:
            if ids[-1] == EOS:
                ended.append((divided(total, length), ids[1:-1]))
        alive = [h for h in grown if h[0][-1] != EOS][:BEAM]
        if not alive or (rules.k_ended and len(ended) >= BEAM):
            break
        hope = divided(alive[0][1], limit)
        best = max((found for found, _ in ended), default=-math.inf)
        if not rules.k_ended and best >= hope:
            break
    return max(ended, key=lambda one: one[0])[1]


# --- the runs --------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure."""

    only: Literal["trainings", "searches"] | None = None
    """unless both"""
    rows: tuple[str, ...] = ()
    """these trainings, where time does not allow all"""
    seeds: int = 3
    first: int = 0
    """the first seed, where several processes share the work"""
    model: Literal["small", "chapter"] = "small"
    """chapter: the model, batches and 3,000 steps of chapter 19, for which
    --pairs 100000 --seeds 5 are meant; steps are then left alone"""
    steps: int = 400
    pairs: int = 20_000
    """of pocket German, to train on"""
    valid: int = 300
    sentences: int = 60
    """to translate"""
    folders: tuple[Path, ...] = ()
    """runs: only search, with their models, on their test sets; --work is
    then a file of its own"""
    work: Path | None = None
    """a file of finished runs, to go on from; unless given, a new one"""
    json: Path | None = None
    """write the result here"""


@dataclass(frozen=True)
class Data:
    """What all runs share. One vocabulary, as the paper's."""

    words: Tokenizer  # of the target
    train: Corpus
    valid: Corpus  # what is judged
    wanted: list[str]  # the translations of valid


def prepare(settings: Settings) -> Data:
    train = pocket_pairs(settings.pairs, "train")
    valid = pocket_pairs(settings.valid, "valid")
    lines = [line for p in train for line in (p.source, p.target)]
    words = Tokenizer.train(lines, 4000, "word")

    def encode(pairs: list[Pair]) -> Corpus:
        return Corpus(
            Sentences.of(words.encode([p.source for p in pairs])),
            Sentences.of(words.encode([p.target for p in pairs])),
        )

    wanted = [pair.target for pair in valid]
    return Data(words, encode(train), encode(valid), wanted)


CHAPTER: dict[str, Any] = {
    "batch_tokens": 600,
    "warmup": 400,
    "rate": 0.8,
    "cooldown": 1500,
    "max_steps": 3000,
}
SHAPES = {  # layers on each side, d_model, d_ff
    "small": (1, 64, 128),
    "chapter": (2, 128, 256),
}


def make(
    change: Change, seed: int, vocab: int, kind: str = "small"
) -> Transformer:
    """The model of a change; where it has other parts, the others begin
    with the same values.
    """
    torch.manual_seed(seed)
    layers, d_model, d_ff = SHAPES[kind]
    shape: dict[str, Any] = {
        "src_vocab": vocab,
        "tgt_vocab": vocab,
        "num_encoder_layers": layers,
        "num_decoder_layers": layers,
        "d_model": d_model,
        "d_ff": d_ff,
        "num_heads": 4,
        "dropout": 0.0,
        "max_len": 64,
    }
    model = Transformer(TransformerConfig(**shape | change.model))
    if change.alter:
        change.alter(model)
    return model


def trainer_of(
    change: Change, data: Data, settings: Settings, seed: int
) -> Trainer:
    how: dict[str, Any] = {
        "batch_tokens": 300,
        "warmup": 3 * settings.steps // 8,
        "rate": 0.5,
        "cooldown": settings.steps // 2,
        "label_smoothing": 0.0,
        "max_steps": settings.steps,
        "seed": seed,
    }
    if settings.model == "chapter":
        how |= CHAPTER
    how["warmup"] *= change.warmup
    how["rate"] *= change.rate
    model = make(change, seed, len(data.words), settings.model)
    config = TrainingConfig(**how | change.training)
    return change.trainer(model, data.train, config)


def padding(trainer: Trainer) -> float:
    """The share of the places of an epoch's batches that is padding."""
    real = places = 0
    for pairs in trainer.plan(0):
        for side in (trainer.corpus.src, trainer.corpus.tgt):
            lengths = side.lengths[pairs] + 1
            real += int(lengths.sum())
            places += len(pairs) * int(lengths.max())
    return 1 - real / places


def learn(trainer: Trainer, data: Data) -> dict[str, Any]:
    """Train; what the model is worth on unseen sentences."""
    tokens = 0
    for progress in trainer.steps():
        tokens = progress.tokens
    model = trainer.model
    found = validate(model, data.valid, trainer.config)
    right, whole = greedy_accuracy(model, data.valid)
    return {
        "nll": found["nll"],
        "loss": found["loss"],
        "tokens_right": right,
        "sentences_right": whole,
        "trained_on": tokens,
        "padding": padding(trainer),
    }


@torch.no_grad()
def translate(
    model: Transformer, data: Data, sentences: int
) -> dict[str, list[list[int]]]:
    """The ids that each of RULES finds. What the model says after some
    tokens is asked once.
    """
    model.eval()
    found: dict[str, list[list[int]]] = {name: [] for name in RULES}
    for number in range(sentences):
        ids = data.valid.src[number].tolist()
        source = torch.tensor([[*ids, EOS]])
        known: dict[tuple[int, ...], Tensor] = {}

        def after(so_far: list[int], source: Tensor = source) -> Tensor:
            key = tuple(so_far)
            if key not in known:  # noqa: B023
                known[key] = log_p_after(model, source, so_far)  # noqa: B023
            return known[key]  # noqa: B023

        for name, rules in RULES.items():
            found[name].append(search(after, len(ids) + EXTRA, rules))
    return found


def scored(
    found: dict[str, list[list[int]]], data: Data
) -> list[dict[str, Any]]:
    """BLEU by rule, and how many translations differ from ours."""
    rows = []
    for name, ids in found.items():
        said = data.words.decode(ids)
        scores = score(said, data.wanted[: len(said)])
        pairs = zip(ids, found["ours"], strict=True)
        rows.append(
            {
                "name": name,
                "bleu": scores["bleu"],
                "signature": scores["signature"],
                "tokens": mean(map(len, ids)),
                "longer": max(
                    len(mine) - len(theirs)
                    for mine, theirs in zip(ids, data.valid.src)
                ),  # than the source, the longest of them
                "changed": mean(a != b for a, b in pairs),
            }
        )
    return rows


def run(settings: Settings, work: Path) -> None:
    """Make every run that work lacks."""
    rows = settings.rows or tuple(CHANGES)
    if wrong := set(rows) - CHANGES.keys():
        sys.exit(f"no row {wrong.pop()!r}; there are {', '.join(CHANGES)}")
    data, here = prepare(settings), commit()  # of the code that was loaded
    seeds = range(settings.first, settings.first + settings.seeds)
    there = {(one["study"], one["name"], one["seed"]) for one in read(work)}
    for seed in seeds if settings.only != "trainings" else ():
        if ("searches", "ours", seed) in there:
            continue
        add = partial(add_run, work, seed, here)
        trainer = trainer_of(CHANGES["ours"], data, settings, seed)
        begin = time.process_time()
        ours = learn(trainer, data)
        if ("trainings", "ours", seed) not in there:
            there.add(("trainings", "ours", seed))
            add("trainings", begin, {"name": "ours", **ours})
        begin = time.process_time()
        found = translate(trainer.model, data, settings.sentences)
        for row in scored(found, data):
            add("searches", begin, row)
            begin = time.process_time()
    for name in rows if settings.only != "searches" else ():
        for seed in seeds:
            if ("trainings", name, seed) in there:
                continue
            begin = time.process_time()
            trainer = trainer_of(CHANGES[name], data, settings, seed)
            row = {"name": name, **learn(trainer, data)}
            add_run(work, seed, here, "trainings", begin, row)


def search_with_runs(settings: Settings, work: Path) -> None:
    """The rules of search with models that have been trained."""
    here = commit()
    there = {one["seed"] for one in read(work)}
    for folder in settings.folders:
        found = Run.open(folder)
        recipe, seed = found.recipe, found.recipe.training.seed
        if seed in there:
            continue
        text = open_data(recipe).text("test")
        test = Corpus(
            *(
                Sentences.of(words.encode(lines[: settings.sentences]))
                for words, lines in zip((found.source, found.target), text)
            )
        )
        data = Data(found.target, test, test, text[1])
        begin = time.process_time()
        by_rule = translate(found.model, data, settings.sentences)
        for row, said in zip(scored(by_rule, data), by_rule.values()):
            row["data"] = recipe.data
            row |= beside_ours(said, by_rule["ours"], data)
            add_run(work, seed, here, "searches", begin, row)
            begin = time.process_time()


def beside_ours(
    said: list[list[int]], ours: list[list[int]], data: Data
) -> dict[str, float]:
    """The difference of BLEU, and whether it may be chance (chapter 18)."""
    one, other = (data.words.decode(ids) for ids in (said, ours))
    return compare(one, other, data.wanted[: len(said)])["bleu"]


def add_run(
    work: Path,
    seed: int,
    here: str | None,
    study: str,
    begin: float,
    row: dict[str, Any],
) -> None:
    """Add a run to the file, with the seconds since it began."""
    seconds = round(time.process_time() - begin, 1)
    named = {"study": study, "seed": seed, **row}
    append(work, {**named, "seconds": seconds, "commit": here})


# --- what they amount to ---------------------------------------------------


def effect(
    runs: Sequence[dict[str, Any]], name: str, beside: str, key: str
) -> dict[str, Any]:
    """Mean and spread of the difference, seed by seed; {} without two."""
    value = {(one["name"], one["seed"]): one[key] for one in runs}
    seeds = [seed for other, seed in value if other == name]
    seeds = [seed for seed in seeds if (beside, seed) in value]
    found = [value[name, seed] - value[beside, seed] for seed in seeds]
    if len(found) < 2:
        return {}
    return {
        "beside": beside,
        "mean": mean(found),
        "spread": stdev(found),
        "seeds": len(found),
    }


def result(
    settings: Settings, runs: list[dict[str, Any]]
) -> dict[str, Any]:
    """What the ledger wants to know. Seconds are of the processor."""
    metrics: dict[str, Any] = {}
    for study, key in (("trainings", "nll"), ("searches", "bleu")):
        some = [
            {k: v for k, v in one.items() if k not in ("study", "commit")}
            for one in runs
            if one["study"] == study
        ]
        effects = {}
        for name in dict.fromkeys(one["name"] for one in some):
            beside = "ours"
            if study == "trainings":
                beside = CHANGES[name].beside
            found = effect(some, name, beside, key)
            if found and name != "ours":
                effects[name] = found
        metrics[study] = {"effect_on": key, "effects": effects}
        metrics[study]["runs"] = some
    if settings.folders:
        del metrics["trainings"]
    folders = tuple(Path("RUN") for _ in settings.folders)
    settings = dataclasses.replace(settings, folders=folders)
    packages = ("numpy", "sacrebleu")
    made = entry_of_runs(
        "deviations.py", settings, metrics, runs, packages=packages
    )
    told = made["settings"]
    told.pop("folders")
    if settings.folders:
        made["settings"] = {"sentences": told["sentences"]}
    elif settings.model == "chapter":
        told["steps"] = CHAPTER["max_steps"]
    return made


def main() -> None:
    settings = tyro.cli(Settings, description=__doc__)
    how = search_with_runs if settings.folders else run
    make_runs(settings, how, result)


if __name__ == "__main__":
    main()
