"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from annotated.corpora.marks import MarkedTokenizer
from annotated.corpora.sentencepieces import in_parts
from annotated.engine.errors import RunError
from annotated.engine.packing import NoCacheError
from annotated.engine.search import Guide, search_in_order
from annotated.model import Transformer, TransformerConfig
from annotated.search import Hypothesis, SearchConfig, plain_beam_search
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
) -> list[list[Translation]]:
    """The nbest translations of each line by models that vote, best first
    (see search_in_order), or by an engine that searches in their place. A
    blank line stays blank. A line of more than _MAX_SOURCE tokens is
    translated in pieces, and only their best translations are joined.
    RunError if a worker dies.
    """
    if engine is not None and guide is not None:
        raise RunError("an engine of its own takes no guide")
    source, target = tokenizers
    marked = _marked(tokenizers)
    # whatever has all placeholders comes first
    wide = search
    if marked is not None:
        wide = dataclasses.replace(search, nbest=search.beam)
    most = min(_most_source(m.config, search) for m in models)
    pieces, line_of = [], []
    for i, ids in enumerate(source.encode(lines)):
        parts = in_parts(source, ids, most) if lines[i].strip() else []
        pieces += parts
        line_of += [i] * len(parts)
    hypotheses: list[list[list[Hypothesis]]] = [[] for _ in lines]
    try:
        results = engine(pieces, wide) if engine else search_in_order(
            models, pieces, wide, batch_tokens, workers=workers,
            guide=guide,
        )  # fmt: skip
    except NoCacheError as error:
        if guide is not None or len(models) > 1:
            raise RunError(f"no guide and no vote: {error}") from None
        print(f"slowly, without a cache: {error}", file=sys.stderr)
        results = [plain_beam_search(models[0], p, wide) for p in pieces]
    for i, piece, nbest in zip(line_of, pieces, results, strict=True):
        if marked is not None:
            nbest = _complete_first(piece, nbest, *marked)
        hypotheses[i].append(nbest[: search.nbest])
    found = [_joined(parts, target) for parts in hypotheses]
    return _restored(marked[1], lines, found) if marked else found


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
