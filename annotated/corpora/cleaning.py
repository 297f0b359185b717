"""Exported from the book; edit the chapter, then run `make export`."""

import html
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from annotated.corpora.reading import fault
from annotated.engine.errors import check_fields

__all__ = ["Division", "Cleaning", "WORD_OR_MARK", "remarks", "divide"]


# E7-text.md: From a name to files
_BLOCK = 50  # pairs in a block


@dataclass(frozen=True)
class Division:
    """How to split a corpus: by the number of a pair, of its block of 50
    or of its document, counted from 1, 0 and 0, or by a checksum of its
    source, modulo `of`. What is in neither valid nor test is in train.
    """

    by: Literal["line", "source", "block", "document"] = "line"
    of: int = 1
    valid: int | None = None  # the remainder of its pairs; None: no pair
    test: int | None = None

    def split(self, number: int, source: str, document: int = 0) -> str:
        """The split of a pair."""
        if self.by == "source":  # whatever its spaces
            number = zlib.crc32(_plain(source).encode("utf-8", "replace"))
        elif self.by != "line":
            blocks = {"block": (number - 1) // _BLOCK, "document": document}
            number = blocks[self.by]
        held_out = {self.valid: "valid", self.test: "test"}
        return held_out.get(number % self.of, "train")


def _plain(text: str) -> str:
    """The text without spaces around it, and with one in place of several.
    Inside it a no-break space, as before a French "!", counts as a letter.
    """
    return re.sub(r"\s+", " ", text.strip(), flags=re.ASCII)


# E7-text.md: What is left out
@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """Which pairs to keep, and how to write them. A word is a run of
    letters and digits, or one punctuation mark.
    """

    min_words: int = 1  # on either side
    max_words: int | None = None  # on either side
    ratio: float | None = None  # at most, of the longer side to the shorter
    lower: bool = False  # convert to lower case
    unescape: bool = False  # decode &quot; and other entities
    detokenize: bool = False  # rejoin punctuation to words
    drop_copies: bool = False  # leave out pairs whose sides are the same
    dedup: bool = False  # keep the first of equal pairs

    def __post_init__(self) -> None:
        check_fields(self)
        if self.ratio is not None and not self.ratio >= 1:
            raise ValueError(f"ratio must be at least 1, not {self.ratio}")
        if self.max_words is not None and self.max_words < self.min_words:
            raise ValueError(
                f"max_words {self.max_words} is less than min_words "
                f"{self.min_words}"
            )

    def line(self, text: str) -> str:
        """A line after cleaning, which is still one line."""
        if self.unescape:  # &#10; is a line break
            text = " ".join(html.unescape(text).splitlines())
        text = _detokenized(text) if self.detokenize else text
        return text.lower() if self.lower else text

    def objection(self, src: str, tgt: str) -> str | None:
        """Why a pair is dropped; None if it is kept."""
        if not src.strip() or not tgt.strip():
            return "a blank side"
        if bad := fault(src) or fault(tgt):
            return bad[0]
        if self.drop_copies and src.strip() == tgt.strip():
            return "both sides the same"
        # a line has no more words than characters
        most = self.max_words or max(len(src), len(tgt))
        short = max(len(src), len(tgt)) <= most
        if short and self.ratio is None and self.min_words <= 1:
            return None
        counts = sorted(map(_count_words, (src, tgt)))
        if counts[0] < self.min_words:
            return f"fewer than {self.min_words} words"
        if counts[1] > most:
            return f"more than {most} words"
        if self.ratio and counts[1] > self.ratio * counts[0]:
            return f"lengths differ by more than {self.ratio:g} times"
        return None


WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")


def _count_words(line: str) -> int:
    """The number of words and punctuation marks."""
    return len(WORD_OR_MARK.findall(line))


_CLOSING = r"[.,;:!?%)\]}»”]|n't\b|'(?:s|t|re|ve|ll|d|m)\b"
_ELIDED = r"(?:(?<!')[^\W\d_s]|\bs)'"  # l' arte
_REJOINED = [
    (re.compile(r" @-@ "), "-"),
    (re.compile(rf" ({_CLOSING})"), r"\1"),
    (re.compile(rf"([(\[{{«“¿¡]|{_ELIDED}) (?=\S)"), r"\1"),
    (re.compile(r'(?<!\S)" (.*?) "(?!\w)'), r'"\1"'),
]


def _detokenized(line: str) -> str:
    """A line without the spaces that a tokeniser put around punctuation,
    by rules shared by English, French, Italian and Spanish.
    """
    for pattern, new in _REJOINED:
        line = pattern.sub(new, line)
    return line


_ESCAPED = re.compile(r"&(?:apos|quot|amp|lt|gt|#\d+);")


def remarks(lines: Sequence[str]) -> list[str]:
    """Remarks on unusual lines of text, one sentence each."""
    escaped = sum(bool(_ESCAPED.search(line)) for line in lines)
    apart = sum(bool(re.search(r"\w [.,](?: |$)", x)) for x in lines)
    joined = sum(bool(re.search(r"\w[.,](?: |$)", x)) for x in lines)
    notes = []
    if escaped > len(lines) / 100:
        notes.append(
            "the text is escaped (&quot; for a quotation mark): prepare "
            "it with --unescape, or translations will be escaped too"
        )
    if apart > 4 * joined:
        notes.append(
            'the text is tokenised (" ." for a full stop): prepare it with '
            "--detokenize, or translations will be tokenised too, and "
            "the model will do badly on ordinary text"
        )
    return notes


# E7-text.md: One split, pair by pair
def divide(
    split: str,
    pairs: Iterable[tuple[str, str]],
    cleaning: Cleaning,
    division: Division,
    dropped: Counter[str],
    tag: Callable[[], str] = str,
) -> Iterator[tuple[str, str, str]]:
    """Yield (split, source, target) for the pairs read for a split. Clean
    train pairs are divided among the splits; dropped counts the others,
    and what is no text, by reason. Pairs are numbered after cleaning. tag
    tells that of the pair just read: equal pairs have the same.
    """
    number, part, seen = 0, split, set[int]()
    document, between = -1, True
    for src, tgt in pairs:
        # as it will be written: &nbsp; is a blank side, &amp; one word
        src, tgt = cleaning.line(src), cleaning.line(tgt)
        if split == "train":
            blank = not (src.strip() or tgt.strip())
            document += between and not blank
            between = blank
            if blank and division.by == "document":
                continue  # an end, and no pair
            if why := cleaning.objection(src, tgt):
                dropped[why] += 1
                continue
            if cleaning.dedup:
                key = hash((tag(), _plain(src), _plain(tgt)))
                if key in seen:
                    dropped["the same pair again"] += 1
                    continue
                seen.add(key)
            number += 1
            part = division.split(number, src, document)
        elif bad := fault(src) or fault(tgt):
            dropped[bad[0]] += 1
            continue
        yield part, src, tgt
