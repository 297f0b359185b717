"""The fast search against the thirty lines of chapter 16.

    python benchmarks/oracle.py                # 2,000 sentences, minutes
    python benchmarks/oracle.py --count 100

Random models, sentences, beams, prefixes and ensembles. Every hypothesis
of every sentence has to be the same, with the same score.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import tyro

from annotated.engine.search import beam_search
from annotated.model import Transformer, TransformerConfig
from annotated.search import (
    Hypothesis,
    SearchConfig,
    beam,
    greedy,
    log_p_after,
    output_limit,
)
from annotated.tokens import EOS, SPECIALS


@dataclass(frozen=True)
class Settings:
    """How much to try."""

    count: int = 2000
    """sentences"""
    batch: int = 20
    """sentences that are searched together; each batch has new models"""
    seed: int = 0
    tolerance: float = 1e-4
    """between scores; hypotheses this close may change places"""


KINDS = (
    {},
    {"norm": "pre"},
    {"tie": "none"},
    {"window": 3},
    {"positions": "learned", "max_len": 30},
    {"d_k": 5, "d_v": 3},
)


def random_model(draw: np.random.Generator, vocab: int) -> Transformer:
    """Small, with random tastes, some of them strong."""
    torch.manual_seed(int(draw.integers(2**31)))
    kind = KINDS[draw.integers(len(KINDS))]
    shape = {
        "src_vocab": vocab, "tgt_vocab": vocab, "num_encoder_layers": 1,
        "num_decoder_layers": int(draw.integers(1, 3)), "d_model": 16,
        "d_ff": 32, "num_heads": 2,
    }  # fmt: skip
    model = Transformer(TransformerConfig(**(shape | kind)))
    with torch.no_grad():
        model.embeddings.output *= draw.uniform(1, 4)
    return model.eval()


def words(draw: np.random.Generator, vocab: int, longest: int) -> list[int]:
    """A sentence of at most longest random words."""
    size = draw.integers(0, longest + 1)
    return draw.integers(len(SPECIALS), vocab, size).tolist()


@torch.no_grad()
def by_the_book(
    models: Sequence[Transformer],
    src: Sequence[int],
    config: SearchConfig,
    prefix: Sequence[int],
) -> list[Hypothesis]:
    """Chapter 16's search, asking several models, with a beginning given."""
    source = torch.tensor([[*src, EOS]])

    def after(ids: list[int]) -> torch.Tensor:
        each = [log_p_after(model, source, ids) for model in models]
        log_p = torch.stack(each).logsumexp(dim=0) - math.log(len(each))
        if len(ids) > len(prefix):
            return log_p
        only = torch.full_like(log_p, -math.inf)
        token = prefix[len(ids) - 1]
        only[token] = log_p[token]
        return only

    limit = min(output_limit(model, len(src), config) for model in models)
    if config.beam == 1:
        return [greedy(after, limit, config)]
    return beam(after, limit, config)


def trials(settings: Settings) -> Iterator[tuple[bool, bool, int]]:
    """For each sentence: the same, the same but for ties, its length."""
    draw = np.random.default_rng(settings.seed)
    for _ in range(0, settings.count, settings.batch):
        vocab = int(draw.integers(6, 120))
        models = [
            random_model(draw, vocab) for _ in range(draw.integers(1, 3))
        ]
        width = int(draw.integers(1, 6))
        config = SearchConfig(
            beam=width,
            alpha=float(draw.choice([0.0, 0.6, 1.0])),
            extra=int(draw.integers(4, 12)),
            nbest=int(draw.integers(1, width + 1)),
        )

        sentences = [words(draw, vocab, 9) for _ in range(settings.batch)]
        prefixes = [
            words(draw, vocab, 3) if draw.random() < 0.3 else []
            for _ in range(settings.batch)
        ]
        found = beam_search(models, sentences, config, prefixes)
        for src, prefix, fast in zip(sentences, prefixes, found):
            plain = by_the_book(models, src, config, prefix)
            yield (*compare(fast, plain, settings.tolerance), len(src))


def compare(
    fast: Sequence[Hypothesis],
    plain: Sequence[Hypothesis],
    tolerance: float,
) -> tuple[bool, bool]:
    """Whether all is the same; whether the scores, at least, are."""
    scores = len(fast) == len(plain) and all(
        abs(a.score - b.score) <= tolerance for a, b in zip(fast, plain)
    )
    return scores and [h.ids for h in fast] == [
        h.ids for h in plain
    ], scores


def main(argv: Sequence[str] | None = None) -> int:
    settings = tyro.cli(
        Settings, args=argv, description=(__doc__ or "").splitlines()[0]
    )
    start = time.perf_counter()
    results = list(trials(settings))
    same = sum(one[0] for one in results)
    ties = sum(one[1] for one in results) - same
    wrong = len(results) - same - ties
    print(
        f"{len(results)} sentences: {same} the same, {ties} that differ in "
        f"a tie, {wrong} wrong; {time.perf_counter() - start:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
