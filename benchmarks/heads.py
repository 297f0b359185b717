"""What the heads of the pocket translator do, and what they are worth.

The translator of chapter 19 is trained with several seeds. At some of its
steps, and at the end, every head is scored on every job that the grammar
knows (annotated.heads); at the end each is knocked out as well, alone and
in teams. Chapter 25 is made from the result.

    python benchmarks/heads.py
    python benchmarks/heads.py --json book/results/heads.json
    python benchmarks/heads.py --only bleu --json book/results/heads-bleu.json

Some minutes per seed on one core. The second line trains the same models
and lets them translate without each head, for BLEU.
"""

from __future__ import annotations

import logging
import multiprocessing
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
import tyro
from ledger import typed, write
from torch import Tensor

from annotated.batches import Batch, Corpus, Sentences
from annotated.book.results import commit, entry, rounded
from annotated.engine.hooks import attention_blocks
from annotated.engine.packing import packed
from annotated.engine.search import beam_search
from annotated.evaluation import score
from annotated.heads import (
    Head,
    Job,
    gold_jobs,
    head_maps,
    judge,
    knocked_out,
)
from annotated.model import Transformer, TransformerConfig
from annotated.pocket import Pair, pocket_pairs
from annotated.search import SearchConfig
from annotated.tokens import Tokenizer
from annotated.training import Trainer, TrainingConfig

STOPS = (1, 2, 3, 4, 6, 8, 10, 15, 20, 25, 30)  # thirtieths
SAMPLES = (
    "Die Frau macht heute die kleinen Türen zu .",
    "Die Frau ruft heute den kleinen Jungen an .",
    "Die Frau ist müde , weil sie die kleinen Türen zugemacht hat .",
    "Die Männer sagen , dass sie heute das Haus sehen .",
)


@dataclass(frozen=True)
class Settings:
    """Train the pocket translator, score its heads, knock them out."""

    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 3000
    pairs: int = 100_000
    """sentence pairs to train on"""

    test: int = 400
    """sentence pairs to score on; none of them is trained on"""

    d_model: int = 128
    only: Literal["bleu"] | None = None
    """BLEU without each head, and nothing else"""

    workers: int = 1
    """processes, each with a seed at a time"""

    json: Path | None = None
    """a ledger file to write"""


@dataclass(frozen=True)
class Data:
    """What all seeds share."""

    german: Tokenizer
    english: Tokenizer
    train: Corpus
    pairs: list[Pair]  # of the test
    test: Batch
    jobs: list[Job]


def prepare(settings: Settings) -> Data:
    """Draw the pairs, and find out what a head may have to do in them."""
    train = pocket_pairs(settings.pairs, "train")
    test = pocket_pairs(settings.test, "test")
    german = Tokenizer.train([p.source for p in train], 2000, "word")
    english = Tokenizer.train([p.target for p in train], 2000, "word")

    def encode(pairs: list[Pair]) -> Corpus:
        return Corpus(
            Sentences.of(german.encode([p.source for p in pairs])),
            Sentences.of(english.encode([p.target for p in pairs])),
        )

    batch = encode(test).batch(range(len(test)))
    jobs = gold_jobs(test)
    return Data(german, english, encode(train), test, batch, jobs)


def training(
    data: Data, settings: Settings, seed: int
) -> Iterator[tuple[int, Transformer]]:
    """Chapter 19's model at some steps, early ones closer together."""
    config = TransformerConfig(
        src_vocab=len(data.german),
        tgt_vocab=len(data.english),
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_model=settings.d_model,
        d_ff=2 * settings.d_model,
        num_heads=4,
        dropout=0.0,
        tie="decoder",
    )
    torch.manual_seed(seed)
    model = Transformer(config)
    how = TrainingConfig(
        batch_tokens=600,
        warmup=400,
        rate=0.8,
        cooldown=settings.steps // 2,
        label_smoothing=0.0,
        max_steps=settings.steps,
        seed=seed,
    )
    stops = {settings.steps * part // 30 for part in STOPS}
    yield 0, model
    for progress in Trainer(packed(model), data.train, how).steps():
        if progress.step in stops:
            yield progress.step, model


class Judge:
    """Scores a model, and what it loses when heads are taken away."""

    def __init__(self, model: Transformer, data: Data):
        self.model, self.data = model, data
        self.fast = packed(model)
        self.exact, self.nats = judge(self.fast, data.test)
        self.real = data.test.labels != 0
        blocks = attention_blocks(model)
        self.heads: list[Head] = [
            (name, i)
            for name in blocks
            for i in range(blocks[name].num_heads)
        ]

    def result(self) -> dict[str, float]:
        """Exact match, and nats per token."""
        return {
            "exact": self.exact.float().mean().item(),
            "nats": self.nats[self.real].mean().item(),
        }

    def scores(self) -> dict[Head, list[float]]:
        """By head, how well it does each job of its place; 0 elsewhere."""
        model, test = self.model.eval(), self.data.test
        maps = model.attention_maps(test.src, test.tgt)
        found: dict[Head, list[float]] = {head: [] for head in self.heads}
        for job in self.data.jobs:
            for name, weights in maps.items():
                row = torch.zeros(weights.size(1))
                if name.startswith(job.place):
                    row = job.score(weights)
                for number, mean in enumerate(row.tolist()):
                    found[name, number].append(mean)
        return found

    def translated(self, heads: Collection[Head]) -> dict[str, Any]:
        """Without these heads: BLEU of what greedy search writes, and the
        share of sentences without a mistake.
        """
        data = self.data
        src = data.german.encode([p.source for p in data.pairs])
        with knocked_out(self.fast, heads):
            best = beam_search(self.fast, src, SearchConfig(beam=1))
            exact, _ = judge(self.fast, data.test)
        said = data.english.decode([one.ids for one, *_ in best])
        found = score(said, [p.target for p in data.pairs])
        return {
            "bleu": found["bleu"],
            "signature": found["signature"],
            "exact": exact.float().mean().item(),
        }

    def loss(
        self, heads: Collection[Head], evenly: bool = False
    ) -> dict[str, Any]:
        """What goes when heads go: exact match, nats per token, and nats
        per word that needs a job, for each job.
        """
        with knocked_out(self.fast, heads, evenly):
            exact, nats = judge(self.fast, self.data.test)
        more = nats - self.nats
        return {
            "exact": self.exact.float().mean().item()
            - exact.float().mean().item(),
            "nats": more[self.real].mean().item(),
            "words": [at(more, job.words) for job in self.data.jobs],
        }


def at(nats: Tensor, words: Tensor) -> float:
    """The mean over some words."""
    return nats[words[:, 0], words[:, 1]].mean().item()


def teams(
    judged: Judge, scores: dict[Head, list[float]]
) -> list[dict[str, Any]]:
    """For each job, what its words cost without its best two and three
    heads; and, as controls, without the three of lowest score and without
    any three of their kind: the least, the median and the most, and the
    share of them that cost less than the best three.
    """

    @cache  # many jobs ask about the same three
    def words(heads: frozenset[Head]) -> list[float]:
        return judged.loss(heads)["words"]

    found = []
    for number, job in enumerate(judged.data.jobs):
        own = [h for h in judged.heads if h[0].startswith(job.place)]
        own.sort(key=lambda h: -scores[h][number])
        two, three, least = (
            words(frozenset(some))[number]
            for some in (own[:2], own[:3], own[-3:])
        )
        every = sorted(
            words(frozenset(some))[number] for some in combinations(own, 3)
        )
        cheaper = sum(cost < three for cost in every) / len(every)
        found.append(
            {
                "heads": own[:3],
                "loss": [two, three],
                "least": least,
                "any": [every[0], median(every), every[-1]],
                "cheaper": cheaper,
            }
        )
    return found


def removals(judged: Judge, order: list[Head]) -> list[float]:
    """Exact match after two heads more have gone, and two more, …"""
    whole = judged.result()["exact"]
    return [
        whole - judged.loss(order[:count])["exact"]
        for count in range(0, len(order) + 1, 2)
    ]


def run(data: Data, settings: Settings, seed: int) -> dict[str, Any]:
    """One seed: the curve, the heads, the teams, the removals."""
    curve = []
    for step, model in training(data, settings, seed):
        judged = Judge(model, data)
        scores = judged.scores()
        best = [
            max(column) for column in zip(*scores.values(), strict=True)
        ]
        curve.append({"step": step, **judged.result(), "best": best})
        print(seed, step, judged.result(), flush=True)
    heads = []
    for head, row in scores.items():
        skills = [
            job.skill(score) if head[0].startswith(job.place) else -1.0
            for job, score in zip(data.jobs, row, strict=True)
        ]
        best_job = max(range(len(skills)), key=skills.__getitem__)
        blind = judged.loss([head], evenly=True)
        heads.append(
            {
                "block": head[0],
                "head": head[1],
                "job": best_job,
                "skill": skills[best_job],
                "scores": row,
                "loss": judged.loss([head]),
                "blind": {key: blind[key] for key in ("exact", "nats")},
            }
        )
    by_loss = sorted(heads, key=lambda h: h["loss"]["nats"])
    order = [(h["block"], h["head"]) for h in by_loss]
    return {
        "seed": seed,
        "curve": curve,
        "heads": heads,
        "teams": teams(judged, scores),
        "removed": {
            "least first": removals(judged, order),
            "most first": removals(judged, order[::-1]),
        },
        "samples": [sample(model, data, line) for line in SAMPLES],
    }


def run_bleu(data: Data, settings: Settings, seed: int) -> dict[str, Any]:
    """One seed: what is translated with all heads, and without each."""
    *_, (_, model) = training(data, settings, seed)
    judged = Judge(model, data)
    heads = []
    for head in judged.heads:
        without = judged.translated([head])
        without.pop("signature")  # one for all
        heads.append({"block": head[0], "head": head[1], **without})
    whole = judged.translated([])
    print(f"seed {seed}: BLEU {whole['bleu']}", flush=True)
    return {"seed": seed, **whole, "heads": heads}


def sample(model: Transformer, data: Data, line: str) -> dict[str, Any]:
    """The maps of a sentence; a row of a map is a line of percentages."""
    maps = head_maps(model, data.german, data.english, line)
    lines = {
        place: [
            [[" ".join(map(str, row)) for row in head] for head in layer]
            for layer in (100 * weights).round().astype(int).tolist()
        ]
        for place, weights in maps.weights.items()
    }
    return asdict(maps) | {"weights": lines}


def described(jobs: list[Job]) -> list[dict[str, Any]]:
    """What the ledger says of the jobs."""
    return [
        {
            "place": job.place,
            "name": job.name,
            "queries": len(job.links[:, :2].unique(dim=0)),
            "uniform": job.uniform,
            "distance": job.distance,
            "positional": job.positional,
        }
        for job in jobs
    ]


def tell(metrics: dict[str, Any]) -> None:
    """Print what every head does, and what it is worth."""
    for done in metrics["runs"]:
        for head in sorted(done["heads"], key=lambda h: -h["skill"]):
            job = metrics["jobs"][head["job"]]
            print(
                f"{done['seed']} {head['block']} {head['head'] + 1}: "
                f"{job['name']} {head['scores'][head['job']]:.2f} "
                f"(skill {head['skill']:.2f}), without it "
                f"{-100 * head['loss']['exact']:.1f} points"
            )


def main(args: list[str] | None = None) -> int:
    """Measure, print, write the ledger file."""
    settings = tyro.cli(Settings, args=args, description=__doc__)
    torch.set_num_threads(1)
    # spaces stand before full stops, and sacreBLEU would warn of it
    logging.getLogger("sacrebleu").setLevel(logging.ERROR)
    started, here = time.perf_counter(), commit()  # of what was loaded
    data = prepare(settings)
    work = run_bleu if settings.only == "bleu" else run
    fork = multiprocessing.get_context("fork")  # data is shared, not sent
    with fork.Pool(min(settings.workers, len(settings.seeds))) as pool:
        one = partial(work, data, settings)
        runs = pool.map(one, settings.seeds, chunksize=1)
    metrics: dict[str, Any] = {"runs": runs}
    if settings.only is None:
        metrics = {"jobs": described(data.jobs), **metrics}
        tell(metrics)
    if settings.json is not None:
        content = entry(
            "heads",
            typed("heads.py", settings),
            rounded(metrics, 3),
            wall_seconds=time.perf_counter() - started,
            settings={
                name: list(value) if isinstance(value, tuple) else value
                for name, value in asdict(settings).items()
                if name != "json" and value is not None
            },
            packages=("numpy", "sacrebleu"),
            threads=1,
            commit=here,
        )
        write(settings.json, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
