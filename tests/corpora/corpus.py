"""A small corpus of two files, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from annotated.corpora.prepare import Preparation, Prepared


def put(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), "utf-8")
    return path


def sentences(count: int) -> tuple[list[str], list[str]]:
    """Pairs that can be told from each other."""
    draw = np.random.default_rng(0)
    rows = [draw.integers(0, 99, draw.integers(1, 9)) for _ in range(count)]
    src = [
        f"{i} " + " ".join(f"wort{n}" for n in row)
        for i, row in enumerate(rows)
    ]
    return src, [line.replace("wort", "word") for line in src]


def of(files: tuple[Path, Path], **changes) -> Preparation:
    return Preparation.of_files(
        *files, **{"vocab": 400, "hold_out": 10} | changes
    )


def texts(ready: Prepared, split: str) -> list[tuple[str, str]]:
    corpus, tokenizers = ready.corpus(split), ready.tokenizers()
    sides = [
        t.decode([side[i].tolist() for i in range(len(side))])
        for t, side in zip(
            tokenizers, (corpus.src, corpus.tgt), strict=True
        )
    ]
    return list(zip(*sides, strict=True))
