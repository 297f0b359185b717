"""What a translator has to beat, scored for the results ledger.

    python benchmarks/baselines.py --json book/results/multi30k-baselines.json

Four ways of translating a test set without a model: copying the source,
looking up each word, taking the reference of the most similar training
sentence, and, beside them, one that knows nothing but the target language's
commonest sentence. The functions are chapter 20's.

    python benchmarks/baselines.py --data news-commentary-es-en \
        --json book/results/news-commentary-words.json

For a folder that `annotated data prepare` made: the entropy of its target
tokens, one by one, which is what a model reaches that has not looked at the
source, nor at what it wrote before.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from ledger import write
from run_recipe import told_of

from annotated.book.baselines import (
    dictionary,
    nearest_captions,
    word_by_word,
)
from annotated.book.results import entry
from annotated.corpora.prepare import Prepared
from annotated.engine.data import open_data
from annotated.engine.recipes import RECIPES
from annotated.evaluation import score


def translations(name: str) -> dict[str, Any]:
    """The scores of each baseline on the test set of a recipe's data."""
    data = open_data(RECIPES[name])
    pairs, (src, ref) = data.text("train"), data.text("test")
    known = dictionary(*pairs)
    made = {
        "the source, copied": src,
        "the commonest target": [Counter(pairs[1]).most_common(1)[0][0]]
        * len(src),
        "word by word": [word_by_word(line, known) for line in src],
        "the nearest training caption": nearest_captions(src, *pairs),
    }
    return {
        "scores": {name: score(lines, ref) for name, lines in made.items()},
        "examples": {
            name: [lines[i] for i in range(0, len(src), len(src) // 10)]
            for name, lines in made.items()
        },
        "sources": [src[i] for i in range(0, len(src), len(src) // 10)],
    }


def words(folder: Path) -> dict[str, Any]:
    """The entropy of the target tokens of a prepared corpus, in nats; the
    end of a sentence is one.
    """
    tgt = Prepared.open(folder).corpus("train").tgt
    counts = np.append(np.bincount(tgt.ids), len(tgt)).astype(float)
    shares = counts[counts > 0] / counts.sum()
    return {"entropy": float(-(shares * np.log(shares)).sum())}


def main(json: Path, recipe: str = "multi30k", data: Path | None = None):
    """Score the baselines of a recipe's data; or count words.

    Args:
        json: the ledger file to write
        recipe: whose data
        data: a prepared corpus, to count its words instead
    """
    started = time.perf_counter()
    metrics = words(data) if data else translations(recipe)
    what = f"--data {data.name} " if data else ""
    command = f"python benchmarks/baselines.py {what}--json book/results/"
    write(
        json,
        entry(
            "baselines",
            command + json.name,
            metrics,
            wall_seconds=time.perf_counter() - started,
            packages=("numpy", "sacrebleu"),
            **(told_of(Prepared.open(data)) if data else {}),
        ),
    )


if __name__ == "__main__":
    tyro.cli(main, description=(__doc__ or "").splitlines()[0])
