"""Exported from the book; edit the chapter, then run `make export`."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from annotated.book.figures import half_weights
from annotated.engine.errors import RunError
from annotated.engine.parts import PartsShape
from annotated.engine.runs import Run
from annotated.search import alignment
from annotated.tokens import _BYTES, Tokenizer

__all__ = ["WORDS", "portable", "words_of"]


# E27-look.md: A run in a page
WORDS = "words.txt"  # of a run's folder: a line for each word
_NEVER = (  # what the figure's JavaScript has as in the paper alone
    "window", "activation", "output_bias", "norm_kind", "num_kv_heads",
    "qk_norm", "gated", "windows", "parts",
)  # fmt: skip


def portable(folder: Path, line: str) -> tuple[dict[str, Any], bytes]:
    """A run of byte pairs that both languages share, for the figure `say`:
    its data, with a line as an example, and what is loaded when somebody
    asks for it: the weights in half precision, then merges and words as
    JSON. RunError for a part that the figure does not compute.
    """
    run = Run.open(folder)
    shape, plain = asdict(run.recipe.model), asdict(PartsShape())
    odd = [name for name in _NEVER if shape[name] != plain[name]]
    if shape["positions"] not in ("sinusoidal", "rotary"):
        odd.append("positions")
    if odd:
        said = ", ".join(f"{name} {shape[name]}" for name in odd)
        raise RunError(f"{folder}: the page cannot compute {said}")
    layout, halves = half_weights(run.model)
    pieces = json.loads(run.source.inner.to_str())["model"]
    number = pieces["vocab"]
    merges = [(number[a], number[b]) for a, b in pieces["merges"]]
    more = {"merges": merges, "words": (folder / WORDS).read_text("utf-8")}
    text = json.dumps(more, ensure_ascii=False, separators=(",", ":"))
    large = halves + text.encode()
    return {
        "config": asdict(run.model.config),
        "layout": layout,
        "order": _BYTES,
        "search": asdict(run.recipe.search),
        "size": len(large),
        "sample": _example(run, line),
    }, large


def _example(run: Run, line: str) -> dict[str, Any]:
    """A line and its translation in pieces, and what each piece of this
    looked at in the decoder's last layer, the mean of the heads.
    """
    [src], [[best]] = run.source.encode([line]), run.translate([line])
    [tgt] = run.target.encode([best.text])
    weights = alignment(run.model, src, tgt)[-1].mean(dim=0)
    return {
        "text": line,
        "source": _spelt(run.source, src),
        "target": _spelt(run.target, tgt),
        "weights": weights[: len(tgt), : len(src)],
        "said": best.text,
    }


def _spelt(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What each piece adds to the line, with a space where it has one."""
    texts = tokenizer.decode([ids[:end] for end in range(len(ids) + 1)])
    return [text[len(before) :] for before, text in pairwise(texts)]


_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def words_of(lines: Iterable[str]) -> list[str]:
    """The words of a text, sorted. One that has a capital nearly always
    where it does not begin a line ("Tom", "TV") has it here; all others
    are in small letters.
    """
    inside: Counter[str] = Counter()
    forms: dict[str, str] = {}
    for line in lines:
        for place, word in enumerate(_WORD.findall(line)):
            forms.setdefault(word.lower(), word.lower())
            inside[word] += place > 0
    for word in sorted(inside, key=lambda word: (inside[word], word)):
        small = word.lower()
        if word != small and inside[word] > 20 * inside[small]:
            forms[small] = word
    return sorted(forms.values())
