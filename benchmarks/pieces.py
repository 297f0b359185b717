"""How long German and English are, by the size of the vocabulary.

Multi30k says the same in both languages, line by line. For vocabularies of
several sizes, byte pairs are learned from the training captions of each
language by itself, and the test captions are encoded: tokens per sentence,
and what becomes of some compounds.

    python benchmarks/pieces.py --json book/results/pieces.json

It reads Multi30k under ANNOTATED_DATA. A few seconds on one core.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from ledger import typed, write

from annotated.book.results import entry
from annotated.corpora.reading import read_lines
from annotated.corpora.registry import data_folder
from annotated.tokens import Tokenizer

LANGUAGES = {"German": "de", "English": "en"}


@dataclass(frozen=True)
class Settings:
    """Learn tokens of each language, count those of new captions."""

    folder: Path | None = None
    """train.de.gz, …, instead of multi30k under ANNOTATED_DATA"""

    sizes: tuple[int, ...] = (260, 500, 1000, 2000, 4000, 8000)
    words: tuple[str, ...] = (
        "Fußball",
        "Mannschaft",
        "Fußballmannschaft",
        "Frauenfußballmannschaft",
    )
    """German words to be shown in tokens"""

    json: Path | None = None
    """a ledger file to write"""


def main(args: list[str] | None = None) -> int:
    """Learn, count, print, write the ledger file."""
    settings = tyro.cli(Settings, args=args, description=__doc__)
    started = time.perf_counter()
    folder = settings.folder or data_folder() / "multi30k"
    try:
        text = {
            (part, language): read_lines(folder / f"{part}.{end}.gz")
            for language, end in LANGUAGES.items()
            for part in ("train", "test_2016_flickr")
        }
    except (OSError, ValueError) as error:
        print(f"pieces: {error}", file=sys.stderr)
        return 2
    train = [word for s in text["train", "German"] for word in s.split()]
    metrics: dict[str, list] = {"lengths": [], "words": []}
    for word in settings.words:
        metrics["words"].append(
            {"word": word, "in_training": train.count(word), "tokens": {}}
        )
    for size in settings.sizes:
        row: dict[str, float] = {"vocab": size}
        for language in LANGUAGES:
            tokenizer = Tokenizer.train(text["train", language], size)
            new = text["test_2016_flickr", language]
            ids = tokenizer.encode(new)
            row[language] = sum(map(len, ids)) / len(new)
            if language == "German":
                for found in metrics["words"]:
                    (one,) = tokenizer.encode([found["word"]])
                    found["tokens"][str(size)] = tokenizer.tokens(one)
        metrics["lengths"].append(row)
        print(row)
    print(*metrics["words"], sep="\n")
    if settings.json is not None:
        content = entry(
            "pieces",
            typed("pieces.py", settings),
            metrics,
            wall_seconds=time.perf_counter() - started,
            settings={"sizes": list(settings.sizes)},
            packages=("tokenizers",),
        )
        write(settings.json, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
