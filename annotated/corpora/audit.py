"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from annotated.batches import Sentences
from annotated.corpora.neighbours import nearest
from annotated.corpora.pairs import TextPair

__all__ = ["length_ratio", "Finding", "audit", "near_duplicates"]


# E34-dirty-text.md: What is usual
_MOST = 2_000_000  # pairs of a split that are looked at
_SAMPLE = 50_000  # pairs that tell what is usual
_SCRIPTS = {
    "Latin": "A-Za-zªºÀ-ÖØ-öø-ʯḀ-ỿ",
    "Greek": "Ͱ-Ͽἀ-῾",
    "Cyrillic": "Ѐ-ԯ",
    "Armenian": "Ա-և",
    "Hebrew": "א-ת",
    "Arabic": "ؠ-ۓݐ-ݿ",
    "Devanagari": "ऄ-ह",
    "Thai": "ก-ๆ",
    "Georgian": "ა-ჿ",
    "Hangul": "가-힣",
    "Chinese or Japanese": "ぁ-ヿ㐀-䶿一-鿿",
}


def _foreign(lines: Sequence[str]) -> re.Pattern[str] | None:
    """Letters that are not of the lines' own script; None if they have no
    script that most of their letters have.
    """
    text = "".join(lines[:5000])
    letters = sum(map(str.isalpha, text))
    for name, some in _SCRIPTS.items():
        if 2 * len(re.findall(f"[{some}]", text)) > letters:
            others = (x for n, x in _SCRIPTS.items() if n != name)
            return re.compile(f"[{''.join(others)}]")
    return None


def _weights(sides: Sequence[Sequence[str]]) -> dict[str, float]:
    """Words that tell the sides apart: positive for the first."""
    counts = [
        Counter(word for line in side for word in line.lower().split())
        for side in sides
    ]
    one, other = counts
    shift = math.log((other.total() + 1) / (one.total() + 1))
    weights = {
        word: math.log((one[word] + 0.5) / (other[word] + 0.5)) + shift
        for word in one.keys() | other.keys()
        if one[word] + other[word] >= 10
    }
    return {w: x for w, x in weights.items() if abs(x) > 1}


@dataclass(frozen=True)
class _Usual:
    """What is usual in a text."""

    foreign: tuple[re.Pattern[str] | None, ...]  # letters, by side
    weights: dict[str, float]
    ratio: float  # of the source's length to the target's, a logarithm
    protected: re.Pattern[str] | None = None  # what users know better

    @classmethod
    def of(
        cls,
        pairs: Iterable[tuple[str, str]],
        protected: re.Pattern[str] | None = None,
    ) -> _Usual:
        """Learned from pairs."""
        sides = [*zip(*pairs)]
        ratios = [length_ratio(*pair) for pair in zip(*sides)]
        foreign = tuple(map(_foreign, sides))
        return cls(foreign, _weights(sides), median(ratios), protected)

    def script(self, *sides: str) -> bool:
        """Whether half of a side's letters are of another script."""
        for line, foreign in zip(sides, self.foreign):
            if foreign is None or not foreign.search(line):
                continue
            letters = sum(map(str.isalpha, line))
            if 2 * len(foreign.findall(line)) > letters:
                return True
        return False

    def language(self, *sides: str) -> bool:
        """Whether a side has words of the other side's language."""
        for line, sign in zip(sides, (1, -1)):
            words = line.lower().split()
            told = [x for x in map(self.weights.get, words) if x]
            sure = len(told) >= 3 and 2 * len(told) >= len(words)
            if sure and sign * sum(told) < -1.5 * len(told):
                return True
        return False

    def lengths(self, src: str, tgt: str) -> bool:
        """Whether a side is three times as long as it usually is."""
        return abs(length_ratio(src, tgt) - self.ratio) > math.log(3)


def length_ratio(src: str, tgt: str) -> float:
    """The logarithm of how many times as long src is."""
    # with 10 more, short lines may differ by a word
    return math.log((len(src) + 10) / (len(tgt) + 10))


# E34-dirty-text.md: What disagrees
_DIGITS = re.compile(r"\d\d")
_GROUPS = re.compile(r"(?<=\d)[.,'’\u00a0\u202f ](?=\d{3}(?!\d))")
_NUMBERS = re.compile(r"\d{2,}")
_PLACES = re.compile(
    r"%(?:\d{1,3}\$)?(?:\(\w+\))?[-+#0]{0,5}\d{0,9}(?:\.\d{1,9})?"
    r"(?:hh?|ll?|z)?"
    r"[diouxXeEfgGcs@](?![^\W\d_])"
    r"|%\(\w+\)[sd]|\$?\{\w*\}"
)
# looked ahead, so that a < that nothing closes costs no more than its line
_TAGS = re.compile(r"<(?=[^<>]*>)(/?)([A-Za-z][\w:-]*)[^<>]*?(/?)>")
_ALONE = {"br", "hr", "img", "input", "wbr"}  # tags that nothing closes


def _numbers(line: str) -> list[str]:
    if not _DIGITS.search(line):
        return []
    return sorted(_NUMBERS.findall(_GROUPS.sub("", line)))


def _places(line: str) -> list[str]:
    if "%" not in line and "{" not in line:
        return []
    # %1$s is %s in an order of its own
    found = _PLACES.findall(line)
    return sorted(re.sub(r"%\d+\$", "%", place) for place in found)


def _matches(pattern: re.Pattern[str], line: str) -> Iterator[str]:
    return (match[0] for match in pattern.finditer(line))


def _markup(src: str, tgt: str) -> bool:
    """Whether tags are not closed, or are others on the other side."""
    if "<" not in src and "<" not in tgt:
        return False
    tags = [_TAGS.findall(line) for line in (src, tgt)]
    for side in tags:
        open_ = Counter[str]()
        for end, name, empty in side:
            if not empty and name.lower() not in _ALONE:
                open_[name] += -1 if end else 1
        if any(open_.values()):
            return True
    return sorted(tags[0]) != sorted(tags[1])


def _flags(src: str, tgt: str, usual: _Usual) -> Iterator[str]:
    """The kinds of dirt in a pair."""
    if src == tgt:
        if any(map(str.isalpha, src)):
            yield "copies"
        return
    if usual.script(src, tgt):
        yield "script"
    elif usual.language(src, tgt):
        yield "language"
    if _numbers(src) != _numbers(tgt):
        yield "numbers"
    if _places(src) != _places(tgt):
        yield "placeholders"
    if usual.protected is not None:
        both = (sorted(_matches(usual.protected, x)) for x in (src, tgt))
        if next(both) != next(both):
            yield "protected"
    if _markup(src, tgt):
        yield "markup"
    if usual.lengths(src, tgt):
        yield "lengths"


# E34-dirty-text.md: What comes twice
_WORDS = re.compile(r"[^\W\d_]+")


def _words(line: str) -> str:
    """A line without case, numbers, punctuation, markup, access keys."""
    if "<" in line:
        line = _TAGS.sub(" ", line)
    line = line.replace("_", "").replace("&", "").casefold()
    return " ".join(_WORDS.findall(line)) or line


class _Keys:
    """Hashes of the pairs of a split."""

    def __init__(self) -> None:
        self.columns = [array("q") for _ in range(4)]

    def add(self, src: str, tgt: str) -> None:
        for column, text in zip(
            self.columns, (src, tgt, _words(src), _words(tgt))
        ):
            column.append(hash(text))

    def __len__(self) -> int:
        return len(self.columns[0])

    def side(self, target: bool, words: bool) -> NDArray:
        """The hashes of a side's lines, or of their words."""
        return np.frombuffer(self.columns[2 * words + target], np.int64)

    def pairs(self, words: bool) -> NDArray:
        """Both sides in one number."""
        src, tgt = self.side(False, words), self.side(True, words)
        return src * np.int64(1_000_003) ^ tgt


def _repeated(keys: NDArray) -> NDArray:
    """Whether each key occurs earlier."""
    order = np.argsort(keys, kind="stable")
    again = np.zeros(len(keys), bool)
    again[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return again


# E34-dirty-text.md: The report
@dataclass(frozen=True)
class Finding:
    """Something that looks dirty: in how many lines or pairs of how many,
    and up to three examples.
    """

    what: str
    count: int
    of: int
    examples: list[list[str]]

    def __str__(self) -> str:
        lines = [f"{self.what}: {self.count:,} of {self.of:,}"]
        lines += [
            "    " + "  |  ".join(map(_shown, texts))
            for texts in self.examples
        ]
        return "\n".join(lines)


def _shown(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"


_WHAT = {
    "copies": "both sides are the same (--drop-copies)",
    "script": "a side is in another script",
    "language": "a side is in the other side's language",
    "numbers": "numbers disagree",
    "placeholders": "placeholders disagree, such as %s or {name}",
    "protected": "what --protect keeps whole disagrees",
    "markup": "markup is broken or disagrees",
    "lengths": "one side is unusually long (--ratio 3)",
    "twice": "pairs that come again, letter for letter (--dedup)",
    "nearly": "pairs that come again, but for case, numbers, punctuation",
}


def audit(
    texts: Mapping[str, TextPair], protected: re.Pattern[str] | None = None
) -> list[Finding]:
    """What looks dirty in the splits of a text; "train" has to be one.
    What is protected should be the same on both sides.
    """
    first = islice(texts["train"].pairs(strict=False), _SAMPLE)
    usual = _Usual.of(first, protected)
    counts, examples = (
        Counter[str](),
        defaultdict[str, list[list[str]]](list),
    )
    keys: dict[str, _Keys] = {}
    for split, text in texts.items():
        keys[split] = _Keys()
        for src, tgt in islice(text.pairs(strict=False), _MOST):
            keys[split].add(src, tgt)
            for kind in _flags(src, tgt, usual):
                counts[kind] += 1
                if counts[kind] <= 3:
                    examples[kind].append([src, tgt])
    every = sum(map(len, keys.values()))
    found = [
        Finding(_WHAT[kind], counts[kind], every, examples[kind])
        for kind in _WHAT
        if counts[kind]
    ]
    return [*found, *_again(texts, keys), *_across(texts, keys)]


def _again(
    texts: Mapping[str, TextPair], keys: Mapping[str, _Keys]
) -> Iterator[Finding]:
    """Pairs of the training set that come again."""
    train = keys["train"]
    twice = _repeated(train.pairs(words=False))
    nearly = _repeated(train.pairs(words=True)) & ~twice
    for kind, again in (("twice", twice), ("nearly", nearly)):
        if again.any():
            lines = _lines(texts["train"], again)
            count = int(again.sum())
            yield Finding(_WHAT[kind], count, len(train), lines)


def _across(
    texts: Mapping[str, TextPair], keys: Mapping[str, _Keys]
) -> Iterator[Finding]:
    """What is held out and stands in the training set."""
    for split in (split for split in texts if split != "train"):
        held = keys[split]
        for target, name in enumerate(("sources", "targets")):
            exact, nearly = (
                np.isin(
                    held.side(bool(target), words),
                    keys["train"].side(bool(target), words),
                )
                for words in (False, True)
            )
            for kind, again in (
                ("", exact),
                (", but for case, numbers, punctuation", nearly & ~exact),
            ):
                if again.any():
                    lines = _lines(texts[split], again)
                    yield Finding(
                        f"{name} of {split} are in train{kind}",
                        int(again.sum()),
                        len(held),
                        [[pair[target]] for pair in lines],
                    )


def _lines(text: TextPair, marked: NDArray) -> list[list[str]]:
    """The first three pairs that are marked."""
    rows = np.flatnonzero(marked)[:3].tolist()
    last = rows[-1] + 1 if rows else 0
    pairs = islice(text.pairs(strict=False), last)
    return [[*pair] for i, pair in enumerate(pairs) if i in rows]


_COMPARED = 1000  # held-out sentences, evenly spread
_ALIKE = 90  # per cent of the characters


def near_duplicates(
    split: str,
    held: Sentences,
    train: Sentences,
    text: Callable[[Sequence[Any]], list[str]],
) -> Finding | None:
    """Sentences of a split that are nearly one of the training set, and
    not the same words; None if there is none, or no RapidFuzz. text makes
    lines of ids.
    """
    try:
        from rapidfuzz.fuzz import ratio
    except ImportError:
        return None
    count = min(len(held), _COMPARED)
    rows = np.linspace(0, len(held) - 1, count).astype(int)
    queries = [held[int(i)] for i in rows]
    found = [train[int(i)] for i in nearest(queries, train)]
    alike = [
        [line, other]
        for line, other in zip(*(text(s) for s in (queries, found)))
        if ratio(line, other) >= _ALIKE and _words(line) != _words(other)
    ]
    what = f"sources of {split} are nearly a source of train"
    return Finding(what, len(alike), count, alike[:3]) if alike else None
