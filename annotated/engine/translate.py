"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from annotated.corpora.marks import MarkedTokenizer
from annotated.corpora.sentencepieces import in_parts
from annotated.engine.constraints import (
    Guide,
    Limits,
    Spellings,
    as_phrases,
    as_prefixes,
    phrase_progress,
)
from annotated.engine.errors import RunError, UsageError
from annotated.engine.packing import NoCacheError
from annotated.engine.search import Sampling, search_in_order
from annotated.model import Transformer, TransformerConfig
from annotated.search import (
    Hypothesis,
    SearchConfig,
    output_limit,
    plain_beam_search,
)
from annotated.tokens import Tokenizer

__all__ = ["Engine", "Translation", "translated"]


# E9-recipes.md: Translating lines
# a search of somebody else's: sources as ids, each with its nbest
Engine = Callable[[list[list[int]], SearchConfig], list[list[Hypothesis]]]
_MAX_SOURCE = 512  # tokens of a piece


@dataclass(frozen=True)
class Translation:
    """A translated line, its score and its log-probability."""

    text: str
    score: float
    log_probability: float


def translated(
    models: Sequence[Transformer],
    tokenizers: tuple[Tokenizer, Tokenizer],
    lines: Sequence[str],
    search: SearchConfig,
    batch_tokens: int | None = None,
    workers: int = 1,
    guide: Guide | None = None,
    engine: Engine | None = None,
    prefixes: Sequence[str] | None = None,
    required: Sequence[Sequence[str]] | None = None,
) -> list[list[Translation]]:
    """The nbest translations of each line by models that vote, best first
    (see search_in_order), or by an engine that searches in their place. A
    blank line stays blank. A line of more than _MAX_SOURCE tokens is
    translated in pieces, and only their best translations are joined.

    prefixes has for each line the text with which its translation begins,
    required the texts that it contains (page E39). RunError if a worker
    dies, UsageError if a line cannot be translated as asked, TypeError
    for a text in place of a list of lines.
    """
    bound = guide or prefixes or required
    _check_asked(lines, search, engine, bool(bound))
    source, target = tokenizers
    marked = _marked(tokenizers)
    # whatever has all placeholders comes first
    nbest = search.beam if marked else search.nbest
    wide = dataclasses.replace(search, nbest=nbest)
    most = min(_most_source(m.config, search) for m in models)
    pieces, line_of = [], []
    for i, ids in enumerate(source.encode(lines)):
        parts = in_parts(source, ids, most) if lines[i].strip() else []
        pieces += parts
        line_of += [i] * len(parts)
    _check_room(models, search, guide)
    hypotheses: list[list[list[Hypothesis]]] = [[] for _ in lines]

    def search_some(some: Any, **asked: Any) -> list[list[Hypothesis]]:
        return search_in_order(
            models, some, wide, batch_tokens, workers=workers, guide=guide,
            **asked,
        )  # fmt: skip

    try:
        results = engine(pieces, wide) if engine else _bound(
            search_some, pieces,
            _wishes(target, lines, line_of, prefixes, required),
        )  # fmt: skip
    except NoCacheError as error:
        if bound or len(models) > 1:
            raise RunError(
                f"no prefix, guide, demand or vote: {error}"
            ) from None
        print(f"slowly, without a cache: {error}", file=sys.stderr)
        results = [plain_beam_search(models[0], p, wide) for p in pieces]
    for i, piece, best in zip(line_of, pieces, results, strict=True):
        if marked is not None:
            best = _complete_first(piece, best, *marked)
        _check_found(lines[i], best)
        hypotheses[i].append(best[: search.nbest])
    found = [_joined(parts, target) for parts in hypotheses]
    return _restored(marked[1], lines, found) if marked else found


_Wish = tuple[Sequence[int], Sequence[Spellings]]  # of a piece


def _check_asked(
    lines: Sequence[str],
    search: SearchConfig,
    engine: Engine | None,
    bound: bool,
) -> None:
    """TypeError for one text in place of lines; RunError for what another
    engine cannot do.
    """
    if isinstance(lines, str):  # each of whose letters would be a line
        raise TypeError(f"lines is a list: write [{lines[:40]!r}]")
    if engine is not None and bound:
        raise RunError("another engine takes no guide, prefix or demand")
    if engine is not None and isinstance(search, Sampling):
        raise RunError("another engine draws nothing: it only searches")


def _check_room(
    models: Sequence[Transformer], search: SearchConfig, guide: Guide | None
) -> None:
    """UsageError if the shortest line's translation may not have the
    minimum of tokens: whatever lines come, it is said before the first.
    """
    least = guide.min_length if isinstance(guide, Limits) else 0
    if not least:
        return
    most = min(output_limit(m, 1, search) for m in models) - 1
    if most < least:
        raise UsageError(
            f"min_length {least} exceeds the limit of a short line's "
            f"translation, {most}: lower it, or raise extra"
        )


def _check_found(line: str, nbest: Sequence[Hypothesis]) -> None:
    if not nbest:
        raise UsageError(
            f"{line[:60]!r} has no translation that is as asked"
        )


def _wishes(
    target: Tokenizer,
    lines: Sequence[str],
    line_of: Sequence[int],
    prefixes: Sequence[str] | None,
    required: Sequence[Sequence[str]] | None,
) -> list[_Wish] | None:
    """For each piece of a line its prefix and what is required of it."""
    if not prefixes and not required:
        return None
    begun = as_prefixes(prefixes, target) if prefixes else []
    wishes: list[_Wish] = []
    pieces, before = Counter(line_of), -1
    for line in line_of:
        first, before = line != before, line
        phrases: list[Spellings] = []
        if required and required[line]:
            if pieces[line] > 1:
                raise UsageError(
                    f"{lines[line][:60]!r} is searched in several pieces, "
                    "which take no required words: divide it"
                )
            phrases = as_phrases(required[line], target)
        wishes.append((begun[line] if begun and first else (), phrases))
    return wishes


def _bound(
    search: Callable[..., list[list[Hypothesis]]],
    pieces: list[list[int]],
    wishes: list[_Wish] | None,
) -> list[list[Hypothesis]]:
    """search, and once more with what is required for the pieces whose
    translations do not have it.
    """
    if wishes is None:
        return search(pieces)
    begun = [prefix for prefix, _ in wishes]
    try:
        results = search(pieces, prefixes=begun)
        some = [
            i for i, (_, phrases) in enumerate(wishes)
            if not all(_has(one, phrases) for one in results[i])
        ]  # fmt: skip
        found = search(
            [pieces[i] for i in some],
            prefixes=[begun[i] for i in some],
            required=[wishes[i][1] for i in some],
        )
    except ValueError as error:  # no room for what is asked
        raise UsageError(str(error)) from None
    for i, nbest in zip(some, found, strict=True):
        free = [one for one in results[i] if _has(one, wishes[i][1])]
        each = {tuple(one.ids): one for one in [*free, *nbest]}.values()
        best = sorted(each, key=lambda one: one.score, reverse=True)
        results[i] = best[: len(results[i])]
    return results


def _has(one: Hypothesis, phrases: Sequence[Spellings]) -> bool:
    """Whether nothing is missing of what is required."""
    return not phrase_progress(one.ids, phrases)[1]


def _marked(
    tokenizers: tuple[Tokenizer, Tokenizer],
) -> tuple[MarkedTokenizer, MarkedTokenizer] | None:
    """Both tokenizers, if they protect placeholders."""
    source, target = tokenizers
    if not isinstance(source, MarkedTokenizer) or not source.protect:
        return None
    return (source, target) if isinstance(target, MarkedTokenizer) else None


def _complete_first(
    piece: list[int],
    nbest: list[Hypothesis],
    source: MarkedTokenizer,
    target: MarkedTokenizer,
) -> list[Hypothesis]:
    """Hypotheses with all slots of their source before the others."""
    wanted = source.slots(piece)
    return sorted(nbest, key=lambda one: target.slots(one.ids) != wanted)


def _restored(
    target: MarkedTokenizer,
    lines: Sequence[str],
    found: list[list[Translation]],
) -> list[list[Translation]]:
    """Translations with the placeholders of their lines."""
    return [
        [
            dataclasses.replace(one, text=target.restored(one.text, line))
            for one in nbest
        ]
        for line, nbest in zip(lines, found, strict=True)
    ]


def _joined(
    parts: list[list[Hypothesis]], target: Tokenizer
) -> list[Translation]:
    """The translations of a line, joined from those of its parts."""
    if not parts:
        return [Translation("", 0.0, 0.0)]
    ranks = list(zip(*parts))
    joined = []
    for pieces in ranks if len(parts) == 1 else ranks[:1]:
        texts = target.decode([piece.ids for piece in pieces])
        score = sum(piece.score for piece in pieces) / len(pieces)
        total = sum(piece.log_probability for piece in pieces)
        text = " ".join(map(_one_line, texts))
        joined.append(Translation(text, score, total))
    return joined


def _one_line(text: str) -> str:
    """text without line breaks of any kind: one line in, one line out."""
    return " ".join(text.splitlines()).strip()


def _most_source(config: TransformerConfig, search: SearchConfig) -> int:
    """The longest piece, in tokens, that the model can translate."""
    if config.positions != "learned":
        return _MAX_SOURCE
    most = min(_MAX_SOURCE, config.max_len - search.extra)
    if most < 1:
        raise RunError(
            f"extra {search.extra} is too big for max_len {config.max_len}"
        )
    return most
