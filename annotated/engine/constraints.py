"""Exported from the book; edit the chapter, then run `make export`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from annotated.corpora.reading import Text
from annotated.engine.errors import DataError, UsageError
from annotated.tokens import EOS, PAD, UNK, Tokenizer

__all__ = [
    "Allowed", "Guide", "Limits", "Spellings", "phrase_progress",
    "continuations", "as_phrases", "as_prefixes", "Glossary",
]  # fmt: skip


# E39-constraints.md: What may follow: guides
# (batch, width, length) and (batch,) -> (batch, width, vocab) of bool
Allowed = Callable[[Tensor, Tensor], Tensor]
Guide = Callable[[Sequence[Sequence[int]], torch.device], Allowed]


@dataclass(frozen=True)
class Limits:
    """A guide: an output has at least min_length tokens, its end not
    counted, and no no_repeat tokens twice in the same order (0: it may).
    An object, so that it can be sent to another process.
    """

    vocab: int
    min_length: int = 0
    no_repeat: int = 0

    def __call__(
        self, sentences: Sequence[Sequence[int]], device: torch.device
    ) -> Allowed:
        def allowed(ids: Tensor, number: Tensor) -> Tensor:
            batch, width, length = ids.shape  # with BOS
            may = ids.new_ones(batch, width, self.vocab).bool()
            if length <= self.min_length:
                may[:, :, EOS] = False
            if 0 < self.no_repeat <= length:
                grams = ids.unfold(2, self.no_repeat, 1)
                begun = grams[:, :, -1:, 1:]  # what the next one ends
                again = (grams[:, :, :, :-1] == begun).all(dim=-1)
                # PAD is never allowed, so it can stand for "no token"
                barred = grams[:, :, :, -1].where(again, PAD)
                may.scatter_(2, barred, False)
            return may

        return allowed


# E39-constraints.md: What must appear: a beam that is divided
Spellings = Sequence[Sequence[int]]  # of a phrase, each in tokens


def _stands_in(part: Sequence[int], ids: Sequence[int]) -> bool:
    """Whether part is a contiguous part of ids."""
    size, part = len(part), list(part)
    return any(ids[i : i + size] == part for i in range(len(ids)))


def phrase_progress(
    ids: list[int], phrases: Sequence[Spellings]
) -> tuple[int, set[int]]:
    """How many tokens of the phrases ids have, and the tokens with which
    a missing phrase would begin or go on: none if all are there.
    """
    written, begun, wanted = 0, 0, set[int]()
    for phrase in phrases:
        shortest = min(map(len, phrase))
        if any(_stands_in(spelling, ids) for spelling in phrase):
            written += shortest
            continue
        for spelling in phrase:
            wanted.add(spelling[0])
            for so_far in range(1, min(len(spelling), len(ids) + 1)):
                if ids[-so_far:] == list(spelling[:so_far]):
                    wanted.add(spelling[so_far])
                    begun = max(begun, min(so_far, shortest - 1))
    return written + begun, wanted


_Kept = tuple[float, int, int]  # total, parent, token
_NEVER = float("-inf")


def _banks(
    total: Tensor,
    written: list[list[int]],
    phrases: Sequence[Spellings],
    beam: int,
) -> list[_Kept]:
    """total (width, vocab) of a sentence's continuations -> the best beam
    that go on, divided by progress, and all that may end.
    """
    flat, vocab = total.flatten(), total.size(1)
    places = set(flat.topk(min(2 * beam, len(flat))).indices.tolist())
    ends = []
    for row, ids in enumerate(written):
        _, wanted = phrase_progress(ids, phrases)
        own = {int(total[row].argmax())} | wanted
        places |= {row * vocab + token for token in own}
        if not wanted:
            ends.append((float(total[row, EOS]), row, EOS))
    banks: dict[int, list[_Kept]] = {}
    order = sorted(places)
    for place, value in zip(order, flat[order].tolist()):
        row, token = divmod(place, vocab)
        if token != EOS and value != _NEVER:
            far, _ = phrase_progress([*written[row], token], phrases)
            banks.setdefault(far, []).append((value, row, token))
    ranked = [
        (rank, -far, one)
        for far, bank in banks.items()
        for rank, one in enumerate(sorted(bank, reverse=True))
    ]
    return [one for _, _, one in sorted(ranked)[:beam]] + ends


def continuations(
    total: Tensor,
    ids: Tensor,
    required: Sequence[Sequence[Spellings]],
    beam: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """total (batch, width, vocab) of what follows ids (batch, width,
    length), and each sentence's phrases -> totals, parents and tokens of
    those that are kept, each (batch, ranks).
    """
    rows = [
        _banks(each, written, phrases, beam)
        for each, written, phrases in zip(
            total.cpu(), ids[:, :, 1:].tolist(), required, strict=True
        )
    ]
    ranks = max(1, *map(len, rows))
    for row in rows:
        row += [(_NEVER, 0, EOS)] * (ranks - len(row))
    best, parent, token = (
        torch.tensor([[one[i] for one in row] for row in rows])
        for i in range(3)
    )
    device = total.device
    return best.to(total), parent.to(device), token.to(device)


# E39-constraints.md: From words to phrases, and a glossary
def as_phrases(
    texts: Sequence[str], tokenizer: Tokenizer
) -> list[Spellings]:
    """Required texts, spellings separated by |, in tokens; equal ones
    once. UsageError where nothing is left of a spelling, or where the
    tokenizer does not know it.
    """
    found: list[Spellings] = []
    for text in dict.fromkeys(texts):
        spellings = [part.strip() for part in text.split("|")]
        phrase = tokenizer.encode(spellings)
        for spelling, ids in zip(spellings, phrase):
            if not spelling:
                raise UsageError(f"required words {text!r}: one is empty")
            _check_known(spelling, ids)
        found.append(phrase)
    return found


def as_prefixes(
    texts: Sequence[str], tokenizer: Tokenizer
) -> list[list[int]]:
    """Beginnings in tokens, without spaces at their end, which belong to
    the word after them. UsageError where one is not known.
    """
    found = tokenizer.encode([text.rstrip() for text in texts])
    for text, ids in zip(texts, found):
        _check_known(text, ids)
    return found


def _check_known(text: str, ids: Sequence[int]) -> None:
    if UNK in ids:
        raise UsageError(
            f"{text[:60]!r} cannot be written: the run's vocabulary does "
            "not have it"
        )


class Glossary:
    """The terms of a file, one a line: source, tab, target (or several
    targets, separated by |). DataError names a line without a term and
    its translation.
    """

    _WORD = re.compile(r"\w+|[^\w\s]")

    def __init__(self, path: Path):
        self.terms: dict[str, str] = {}
        for number, line in enumerate(Text(path).lines(), start=1):
            if not line.strip():
                continue
            sides = [side.strip() for side in line.split("\t")]
            if len(sides) != 2 or not all(sides):
                raise DataError(
                    f"{path}, line {number}: a term, a tab and its "
                    f"translation are wanted, not {line[:60]!r}"
                )
            term, known = sides[0], self.terms.get(sides[0])
            self.terms[term] = f"{known}|{sides[1]}" if known else sides[1]
        if not self.terms:
            raise DataError(f"{path} has no terms")
        # by the first word, the longest first, and one that minds its case
        # before one that does not
        self._terms: dict[str, list[tuple[re.Pattern[str], str]]] = {}
        for term in sorted(
            self.terms, key=lambda term: (-len(term), term == term.lower())
        ):
            begins = self._key(self._WORD.findall(term)[0])
            pattern = re.compile(rf"(?<!\w){self._pattern(term)}(?!\w)")
            self._terms.setdefault(begins, []).append((pattern, term))

    @staticmethod
    def _key(word: str) -> str:
        """What words have in common that differ in case."""
        return word.translate({ord("İ"): "i", ord("ı"): "i"}).casefold()

    @staticmethod
    def _pattern(term: str) -> str:
        here = re.escape(term)
        return f"(?i:{here})" if term == term.lower() else here

    def required(self, line: str) -> list[str]:
        """What the translation of a line has to have."""
        needed, end = [], 0
        for word in self._WORD.finditer(line):
            if word.start() < end:
                continue
            for pattern, term in self._terms.get(self._key(word[0]), ()):
                if one := pattern.match(line, word.start()):
                    needed.append(self.terms[term])
                    end = one.end()
                    break
        return needed
