"""Exported from the book; edit the chapter, then run `make export`."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

__all__ = ["score", "compare"]


# 18-evaluation.md: A number needs a signature
def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    split_compounds: bool = False,
) -> dict[str, Any]:
    """sacreBLEU (cased, 13a) with its signature, chrF, and the share of
    hypotheses that equal their reference, all in percent.

    split_compounds adds BLEU on words split at hyphens, as in the paper,
    under separate names, since it cannot be compared with any other.
    Where no hypothesis has four tokens, BLEU is 0, however right they are.
    Raises ValueError if the two sides differ in length or are empty, or
    if one is a string instead of a list.
    """
    _check_sides(hypotheses, references)
    bleu, chrf = BLEU(force=True), CHRF()  # force: no warnings
    equal = sum(h == r for h, r in zip(hypotheses, references))
    total = bleu.corpus_score(hypotheses, [references])
    scores: dict[str, Any] = {
        "bleu": round(total.score, 2),
        "signature": str(bleu.get_signature()),
        "chrf": round(chrf.corpus_score(hypotheses, [references]).score, 2),
        "exact_match": round(100 * equal / len(references), 2),
        "sentences": len(references),
    }
    if split_compounds:
        scores |= _split_bleu(hypotheses, references)
    return scores


def _check_sides(*sides: Sequence[str]) -> None:
    if any(isinstance(side, str) for side in sides):
        raise ValueError("a string is given: score takes lists of lines")
    counts = " and ".join(str(len(side)) for side in sides)
    if len({len(side) for side in sides}) > 1:
        raise ValueError(f"{counts} lines: all sides need the same number")
    if not sides[0]:
        raise ValueError("there is nothing to score")


def _split_hyphens(line: str) -> str:
    """Tokenise line with 13a, then split at inner hyphens: a-b becomes
    a ##AT##-##AT## b, the form on which the paper's BLEU was computed.
    """
    # on bytes and without overlap, as the published perl script: of
    # a-t-il only the first hyphen is split
    tokens = Tokenizer13a()(line).encode("utf-8", "surrogatepass")
    split = re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", tokens)
    return split.decode("utf-8", "surrogatepass")


def _split_bleu(
    hypotheses: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    bleu = BLEU(tokenize="none", force=True)  # force: it *is* tokenised
    sides = [
        [_split_hyphens(x) for x in y] for y in (hypotheses, references)
    ]
    total = bleu.corpus_score(sides[0], [sides[1]])
    signature = str(bleu.get_signature())
    return {
        "split_bleu": round(total.score, 2),
        "split_signature": signature.replace("tok:none", "tok:13a+hyphens"),
    }


# 18-evaluation.md: Is the difference chance?
def compare(
    hypotheses: Sequence[str],
    others: Sequence[str],
    references: Sequence[str],
    draws: int = 1000,
) -> dict[str, dict[str, float]]:
    """Whether hypotheses and others differ by more than chance.

    For bleu and chrf: the difference (hypotheses minus others), the
    interval [low, high] that holds 95 % of the bootstrap's draws, and p,
    how often chance alone gives a difference at least as large in either
    direction (approximate randomisation). Raises ValueError as score does.
    """
    _check_sides(hypotheses, others, references)
    bleu, chrf = BLEU(force=True), CHRF()
    metrics: dict[str, BLEU | CHRF] = {"bleu": bleu, "chrf": chrf}
    verdicts = {}
    for name, metric in metrics.items():
        one, other = (
            # what sacreBLEU's own paired tests begin with
            np.array(metric._extract_corpus_statistics(side, [references]))
            for side in (hypotheses, others)
        )
        verdicts[name] = _verdict(metric, one, other, draws)
    return verdicts


def _verdict(
    metric: BLEU | CHRF, one: NDArray, other: NDArray, draws: int
) -> dict[str, float]:
    """Compare two systems by their counts, one row per sentence."""

    def score(sums: NDArray) -> NDArray:
        total = metric._compute_score_from_stats
        return np.array([total(row).score for row in sums.tolist()])

    n, draw = len(one), np.random.default_rng(0)
    # bootstrap: how often a draw contains each sentence
    times = (draw.multinomial(n, np.full(n, 1 / n)) for _ in range(draws))
    sums = np.array([(row @ one, row @ other) for row in times])
    drawn = score(sums[:, 0]) - score(sums[:, 1])
    low, high = np.quantile(drawn, [0.025, 0.975])
    # randomisation: 0 where a sentence's two systems are swapped
    keep = (draw.integers(2, size=n) for _ in range(draws))
    gained = np.array([row @ (one - other) for row in keep])
    mixed = other.sum(0) + gained
    chance = score(mixed) - score(one.sum(0) + other.sum(0) - mixed)
    [difference] = score(one.sum(0)[None]) - score(other.sum(0)[None])
    larger = (abs(chance) >= abs(difference) - 1e-9).sum()
    return {
        "difference": round(difference.item(), 2),
        "low": round(low.item(), 2),
        "high": round(high.item(), 2),
        "p": round((1 + larger.item()) / (1 + draws), 4),
    }
