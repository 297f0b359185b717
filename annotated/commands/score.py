"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import json
import math
import sys
from itertools import islice
from pathlib import Path
from typing import Literal

from annotated.commands.options import Flag, usage_errors
from annotated.commands.translate import RunOptions
from annotated.corpora.pairs import TextPair
from annotated.engine.errors import UsageError, check_whole
from annotated.engine.runs import Run
from annotated.engine.scoring import (
    ForcedScore,
    forced_scores,
    word_alignment,
)

__all__ = ["Score"]


# E35-beside-a-score.md: The command
_CHUNK = 2000  # pairs in memory at a time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """Say how probable a run finds translations that exist: on each line
    a pair's score and log-probability.
    """

    run: Path  # the run folder
    src: Path  # the sources, or a file that has both sides
    tgt: Path | None = None  # their translations, unless src has them
    # where src has its sides: two keys, names or numbers of columns
    columns: tuple[str, str] | None = None
    ensemble: tuple[Path, ...] = ()  # other runs to form an ensemble with
    # exponent of the length penalty (unset: the recipe's)
    alpha: float | None = None
    # one of the run's tags, put before each source that begins with none
    tag: str | None = None
    # cpu, cuda or mps (unset: a GPU; on a Mac the quicker)
    device: str | None = None
    # number format of the model
    precision: Literal["auto", "float32", "bfloat16", "float16", "int8"] = (
        "float32"
    )
    # tokens of a side per batch (unset: 2000; on a GPU 32,000)
    batch_tokens: int | None = None
    align: Flag = False  # say from which source word each target word comes
    json: Flag = False  # write JSON, one object per pair, with the tokens

    def act(self) -> None:
        """Read, score, write; the perplexity on standard error."""
        if self.batch_tokens is not None:
            check_whole("batch_tokens", self.batch_tokens, least=1)
        options = RunOptions(
            run=self.run, ensemble=self.ensemble, alpha=self.alpha,
            tag=self.tag, device=self.device, precision=self.precision,
        )  # fmt: skip
        run = options.open()
        if run.recipe.target == "tree":
            raise UsageError(f"score: {self.run} writes trees, not text")
        alpha = options.search(run).alpha
        ways = run.recipe.source, run.recipe.target
        with usage_errors():
            part = TextPair.of_files(self.src, self.tgt, self.columns, ways)
        models = run.model, *run.others
        tokenizers = run.source, run.target
        pairs, number, told = part.pairs(), 0, _Summary()
        while chunk := list(islice(pairs, _CHUNK)):
            scores = forced_scores(
                models, tokenizers, chunk, alpha, self.batch_tokens,
                number + 1,
            )  # fmt: skip
            for pair, one in zip(chunk, scores, strict=True):
                text = self._line(run, number, pair, one)
                line = f"{text}\n".encode("utf-8", "replace")
                sys.stdout.buffer.write(line)
                told.add(pair, one)
                number += 1
            sys.stdout.buffer.flush()
        print(told, file=sys.stderr)

    def _line(
        self, run: Run, number: int, pair: tuple[str, str], one: ForcedScore
    ) -> str:
        """What is written of a pair."""
        values = {
            "line": number,
            "score": one.score,
            "log_probability": one.log_probability,
            "tokens": run.target.tokens(one.ids),
            "log_probabilities": one.log_p,
        }
        text = f"{one.score:.4f}\t{one.log_probability:.4f}"
        if self.align:
            models, both = (
                (run.model, *run.others),
                (run.source, run.target),
            )
            links = word_alignment(models, both, *pair)
            values["alignment"] = links
            text += "\t" + " ".join(f"{i}-{j}" for i, j in links)
        if not self.json:
            return text
        return json.dumps(values, ensure_ascii=False)


@dataclasses.dataclass
class _Summary:
    """What is said of all pairs."""

    pairs: int = 0
    tokens: int = 0
    blank: int = 0  # pairs with a blank side
    total: float = 0.0  # log-probability

    def add(self, pair: tuple[str, str], one: ForcedScore) -> None:
        """Count a pair."""
        if all(side.strip() for side in pair):
            self.pairs += 1
            self.tokens += len(one.ids)
            self.total += one.log_probability
        else:
            self.blank += 1

    def __str__(self) -> str:
        apart = ""
        if self.blank:
            apart = f"; apart from {self.blank:,} with a blank side"
        if not self.tokens:
            return f"no pair has two sides{apart}"
        nll = -self.total / self.tokens
        perplexity = math.exp(min(nll, 700))  # beyond 709 it overflows
        return (
            f"{self.pairs:,} pairs, {self.tokens:,} tokens with their "
            f"ends: perplexity {perplexity:.4g} per token{apart}"
        )
