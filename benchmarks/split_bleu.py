"""What splitting words at hyphens does to BLEU, on newstest2013.

The paper's BLEU was counted on tokenised text, words split at hyphens;
sacreBLEU's is not. How far the two lie apart depends on how a system errs
in such words. Here the German references are damaged, more and more, in
two ways that bracket a real system: a word with hyphens is right or wrong
as a whole, or each of its parts is so by itself. Where sacremoses is
installed, Moses' tokens are compared with 13a's as well.

    python benchmarks/split_bleu.py
    python benchmarks/split_bleu.py --json book/results/split-bleu.json

It reads newstest/newstest2013.en-de.de under ANNOTATED_DATA; the same lines
are had by `sacrebleu -t wmt13 -l en-de --echo ref`. A minute on one core.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from ledger import typed, write
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from annotated.book.results import entry
from annotated.corpora.reading import read_lines
from annotated.corpora.registry import data_folder
from annotated.evaluation import score

HYPHEN = re.compile(r"(?<=\S)-(?=\S)")
JOINT = "\N{WORD JOINER}-"  # a hyphen that stands at a part's end


@dataclass(frozen=True)
class Settings:
    """Damage the references, count BLEU both ways."""

    references: Path | None = None
    """a file of references, instead of newstest2013's German side"""

    hypotheses: Path | None = None
    """translations of a real system, to be counted both ways too"""

    rates: tuple[float, ...] = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
    """shares of the words that are damaged"""

    seed: int = 0
    json: Path | None = None
    """a ledger file to write"""


def damage(
    lines: list[list[str]], rate: float, draw: np.random.Generator
) -> list[list[str]]:
    """Lines of units, of which rate are dropped, exchanged or swapped."""
    stock = [unit for line in lines for unit in line]
    found = []
    for line in lines:
        units: list[str] = []
        swap = False
        for unit in line:
            kind = draw.integers(3) if draw.random() < rate else None
            if kind == 1:
                unit = stock[draw.integers(len(stock))]
            if kind != 0:
                units.insert(len(units) - swap, unit)
            swap = kind == 2 and bool(units)
        found.append(units)
    return found


def as_wholes(line: str) -> list[str]:
    """The words."""
    return line.split()


def as_parts(line: str) -> list[str]:
    """The words, and those with inner hyphens in parts."""
    return HYPHEN.sub(JOINT + " ", line).split()


def join(units: list[str]) -> str:
    """Units as text again."""
    text = " ".join(units).replace(JOINT + " ", "-")
    return text.replace(JOINT, "-")


def moses() -> Callable[[str], str] | None:
    """Moses' tokeniser for German, unless it is not here."""
    try:
        from sacremoses import MosesTokenizer
    except ImportError:
        return None
    tokenizer = MosesTokenizer("de")
    return lambda line: tokenizer.tokenize(
        line, return_str=True, escape=False
    )


def tokenised(
    hypotheses: list[str],
    references: list[str],
    tokens: Callable[[str], str],
    split: bool,
) -> float:
    """BLEU on these tokens, split at hyphens or not."""
    sides = [[tokens(line) for line in x] for x in (hypotheses, references)]
    if split:
        sides = [
            [HYPHEN.sub(" ##AT##-##AT## ", line) for line in side]
            for side in sides
        ]
    bleu = BLEU(tokenize="none", force=True)
    return bleu.corpus_score(sides[0], [sides[1]]).score


def count(hypotheses: list[str], references: list[str]) -> dict[str, float]:
    """BLEU in every way of counting that there is."""
    scores = score(hypotheses, references, split_compounds=True)
    found = {"bleu": scores["bleu"], "split_bleu": scores["split_bleu"]}
    if (tokens := moses()) is not None:
        found |= {
            "moses": tokenised(hypotheses, references, tokens, False),
            "moses_split": tokenised(hypotheses, references, tokens, True),
        }
    return found


def references_of(settings: Settings) -> list[str]:
    """The lines to damage."""
    if settings.references is not None:
        return read_lines(settings.references)
    path = data_folder() / "newstest" / "newstest2013.en-de.de"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: put the output of `sacrebleu -t wmt13 "
            "-l en-de --echo ref` into it"
        )
    return read_lines(path)


def main(args: list[str] | None = None) -> int:
    """Measure, print a table, write the ledger file."""
    settings = tyro.cli(Settings, args=args, description=__doc__)
    started = time.perf_counter()
    try:
        references = references_of(settings)
        real = settings.hypotheses and read_lines(settings.hypotheses)
    except (OSError, ValueError) as error:
        print(f"split_bleu: {error}", file=sys.stderr)
        return 2
    words = [word for line in references for word in line.split()]
    hyphens = sum(bool(HYPHEN.search(Tokenizer13a()(w))) for w in words)
    metrics: dict[str, Any] = {
        "lines": len(references),
        "words": len(words),
        "words_with_hyphens": hyphens,
    }
    print(f"{hyphens:,} of {len(words):,} words have hyphens inside")
    for kind, units_of in (("wholes", as_wholes), ("parts", as_parts)):
        lines = [units_of(line) for line in references]
        metrics[kind] = []
        for rate in settings.rates:
            draw = np.random.default_rng(settings.seed)
            damaged = [join(x) for x in damage(lines, rate, draw)]
            row = {"rate": rate} | count(damaged, references)
            metrics[kind].append(row)
            print(kind, *(f"{k} {v:.2f}" for k, v in row.items()))
    if real:
        metrics["real"] = count(list(real), references)
        print("real", metrics["real"])
    if settings.json is not None:
        content = entry(
            "split_bleu",
            typed("split_bleu.py", settings),
            metrics,
            seed=settings.seed,
            wall_seconds=time.perf_counter() - started,
            settings={"rates": list(settings.rates)},
            packages=("sacrebleu", "sacremoses"),
        )
        write(settings.json, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
