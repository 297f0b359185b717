"""annotated.evaluation.

Exported from the book; edit the chapter, then run `make export`.

- 16-bleu-and-averaging.md: BLEU
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

__all__ = ["score", "split_hyphens", "compare"]


# 16-bleu-and-averaging.md: A number needs a signature
def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    split_compounds: bool = False,
) -> dict[str, Any]:
    """sacreBLEU (cased, 13a) and its signature, chrF, and the share of
    hypotheses that equal their reference, all in percent.

    split_compounds adds a BLEU counted on words split at hyphens, as the
    paper's was, under names of its own: it compares with no other.
    Raises ValueError where the sides differ in number or are empty.
    """
    _check_sides(hypotheses, references)
    bleu, chrf = BLEU(), CHRF()
    pairs = zip(hypotheses, references, strict=True)
    equal = sum(one == other for one, other in pairs)
    found = bleu.corpus_score(hypotheses, [references])
    scores: dict[str, Any] = {
        "bleu": round(found.score, 2),
        "signature": str(bleu.get_signature()),
        "chrf": round(chrf.corpus_score(hypotheses, [references]).score, 2),
        "exact_match": round(100 * equal / len(references), 2),
        "sentences": len(references),
    }
    if split_compounds:
        scores |= _split_bleu(hypotheses, references)
    return scores


def _check_sides(*sides: Sequence[str]) -> None:
    counts = " and ".join(str(len(side)) for side in sides)
    if len({len(side) for side in sides}) > 1:
        raise ValueError(f"{counts} lines: not as many on every side")
    if not sides[0]:
        raise ValueError("there is nothing to score")


def split_hyphens(line: str) -> str:
    """line in 13a's tokens, and those split at inner hyphens: a-b becomes
    a ##AT##-##AT## b, the form in which the paper's BLEU was counted.
    """
    tokens = Tokenizer13a()(line)
    return re.sub(r"(?<=\S)-(?=\S)", " ##AT##-##AT## ", tokens)


def _split_bleu(
    hypotheses: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    bleu = BLEU(tokenize="none", force=True)  # force: it *is* tokenised
    sides = [
        [split_hyphens(x) for x in y] for y in (hypotheses, references)
    ]
    found = bleu.corpus_score(sides[0], [sides[1]])
    signature = str(bleu.get_signature())
    return {
        "split_bleu": round(found.score, 2),
        "split_signature": signature.replace("tok:none", "tok:13a+hyphens"),
    }


# 16-bleu-and-averaging.md: Is the difference chance?
def _bleu_counts(hypothesis: str, reference: str) -> list[int]:
    """What a sentence adds to BLEU: found, all, and the two lengths."""
    bleu = BLEU(effective_order=True)  # else it warns; the counts are equal
    one = bleu.sentence_score(hypothesis, [reference])
    return [*one.counts, *one.totals, one.sys_len, one.ref_len]


def _bleu_of(counts: NDArray) -> float:
    found, every, lengths = np.split(counts, [4, 8])
    length, wanted = lengths.tolist()
    return BLEU.compute_bleu(
        found.tolist(),
        every.tolist(),
        length,
        wanted,
        smooth_method="exp",  # as in a corpus
    ).score


def _chrf_counts(hypothesis: str, reference: str) -> list[int]:
    """What a sentence adds to chrF: found, said and wanted for n = 1…6."""
    sides = ["".join(text.split()) for text in (hypothesis, reference)]
    counts = []
    for n in range(1, 7):
        one, other = (
            Counter(x[i : i + n] for i in range(len(x) - n + 1))
            for x in sides
        )
        found = sum((one & other).values())
        # where the reference is too short for n, nothing is counted
        said = sum(one.values()) if other else 0
        counts += [found, said, sum(other.values())]
    return counts


def _chrf_of(counts: NDArray) -> float:
    found, said, wanted = counts.reshape(6, 3).T
    there = (said > 0) & (wanted > 0)
    if not there.any():
        return 0.0
    p = (found[there] / said[there]).mean()
    r = (found[there] / wanted[there]).mean()
    return float(100 * 5 * p * r / (4 * p + r)) if p + r else 0.0


def compare(
    hypotheses: Sequence[str],
    others: Sequence[str],
    references: Sequence[str],
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """Whether hypotheses and others differ by more than chance.

    Paired bootstrap over sentences. For bleu and chrf: the difference
    (hypotheses' less others'), the interval [low, high] that holds 95 %
    of the draws, and p, how often chance alone makes a difference at
    least so large, either way. Raises ValueError as score does.
    """
    _check_sides(hypotheses, others, references)
    draw = np.random.default_rng(seed)
    n = len(references)
    # how often each sentence is in each draw
    times = draw.multinomial(n, np.full(n, 1 / n), size=draws)
    found = {}
    for name, counts_of, of in (
        ("bleu", _bleu_counts, _bleu_of),
        ("chrf", _chrf_counts, _chrf_of),
    ):
        one, other = (
            np.array([counts_of(h, r) for h, r in zip(side, references)])
            for side in (hypotheses, others)
        )
        difference = of(one.sum(axis=0)) - of(other.sum(axis=0))
        drawn = np.array(
            [of(a) - of(b) for a, b in zip(times @ one, times @ other)]
        )
        found[name] = _verdict(difference, drawn)
    return found


def _verdict(difference: float, drawn: NDArray) -> dict[str, float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    # without a difference in truth, the draws would lie around 0
    chance = np.abs(drawn - drawn.mean()) >= abs(difference)
    return {
        "difference": round(difference, 2),
        "low": round(float(low), 2),
        "high": round(float(high), 2),
        "p": round(float((1 + chance.sum()) / (1 + len(drawn))), 4),
    }
