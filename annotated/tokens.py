"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import tokenizers

from annotated.corpora.tokenizers import (
    encoded,
    learn_pieces,
    read_tokenizer,
    valid_line,
    word_level,
)
from annotated.engine.files import write_text

__all__ = [
    "count_pairs", "merge_pair", "learn_merges", "PAD", "BOS", "EOS", "UNK",
    "SPECIALS", "byte_ids", "split_words", "BytePairs", "Tokenizer",
]  # fmt: skip


# 10-tokens.md: One merge
def count_pairs(
    words: dict[tuple[int, ...], int],
) -> Counter[tuple[int, int]]:
    """How often each pair of ids is adjacent. words: ids -> occurrences."""
    pairs: Counter[tuple[int, int]] = Counter()
    for ids, n in words.items():
        for pair in zip(ids, ids[1:], strict=False):
            pairs[pair] += n
    return pairs


def merge_pair(
    ids: tuple[int, ...], pair: tuple[int, int], new: int
) -> tuple[int, ...]:
    """The ids, each occurrence of pair, from the left, replaced by new."""
    merged: list[int] = []
    for i in ids:
        if merged and (merged[-1], i) == pair:
            merged[-1] = new
        else:
            merged.append(i)
    return tuple(merged)


def learn_merges(
    words: dict[tuple[int, ...], int], start: int, stop: int
) -> dict[tuple[int, int], int]:
    """Byte-pair encoding (§5.1): the pairs that become the ids start, …,
    stop - 1, or fewer where none are left. words: ids -> occurrences.
    """
    merges: dict[tuple[int, int], int] = {}
    for new in range(start, stop):
        pairs = count_pairs(words)
        if not pairs:
            break
        # the most frequent; of several, the one with the lowest ids
        pair = min(pairs, key=lambda p: (-pairs[p], p))
        merges[pair] = new
        words = {merge_pair(w, pair, new): n for w, n in words.items()}
    return merges


# 10-tokens.md: From letters to bytes
PAD = 0
BOS = 1
EOS = 2
UNK = 3
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]

# the bytes of ids 4 to 259: characters that can be seen come first, as in
# GPT-2 (the order decides ties alone)
_BYTES = sorted(
    range(256), key=lambda b: b == 32 or not chr(b).isprintable()
)


def byte_ids(text: str) -> tuple[int, ...]:
    """The ids of the bytes of a text."""
    return tuple(len(SPECIALS) + _BYTES.index(b) for b in text.encode())


# 10-tokens.md: Where words begin
_WORD = re.compile(
    r"'(?:s|t|re|ve|m|ll|d)"  # the ends of it's, don't, we're
    r"| ?[^\W\d_]+"  # letters, and the space before them
    r"| ?\d+"  # digits
    r"| ?(?:[^\w\s]|_)+"  # punctuation
    r"|\s+(?!\S)|\s+"  # spaces, of which the next word gets the last
)


def split_words(line: str) -> list[str]:
    """The line in pieces that no token crosses. It gets a space in front,
    so that its first word has the same tokens as it has elsewhere. Half
    of a character, a lone surrogate, is read as U+FFFD.
    """
    return _WORD.findall(f" {valid_line(line)}") if line else []


# 10-tokens.md: Encode and decode
class BytePairs:
    """Byte-pair encoding in its plain form (§5.1).

    merges: pair of ids -> the id that replaces it, in the order learned.
    """

    def __init__(self, merges: dict[tuple[int, int], int]):
        self.merges = merges

    @classmethod
    def train(cls, lines: Iterable[str], vocab: int) -> BytePairs:
        """Learn from lines until there are vocab tokens, or no pairs."""
        counts = Counter(w for line in lines for w in split_words(line))
        words = {byte_ids(word): n for word, n in counts.items()}
        return cls(learn_merges(words, len(SPECIALS) + 256, vocab))

    def encode(self, line: str) -> list[int]:
        """The ids of a line."""
        line_ids: list[int] = []
        for word in split_words(line):
            ids = byte_ids(word)
            while pairs := self.merges.keys() & zip(ids, ids[1:]):
                pair = min(pairs, key=lambda p: self.merges[p])
                ids = merge_pair(ids, pair, self.merges[pair])
            line_ids += ids
        return line_ids

    def tokens(self) -> list[bytes]:
        """The bytes of each id; a special has none."""
        tokens = [b""] * len(SPECIALS) + [bytes([b]) for b in _BYTES]
        for a, b in self.merges:
            tokens.append(tokens[a] + tokens[b])
        return tokens

    def decode(self, ids: Iterable[int]) -> str:
        """The line of these ids; what is not UTF-8 becomes U+FFFD."""
        tokens = self.tokens()
        text = b"".join(tokens[i] for i in ids)
        return text.decode(errors="replace").removeprefix(" ")


# 10-tokens.md: The tokenizer
class Tokenizer:
    """Text to ids and back (§5.1): byte-pair encoding, word pieces, words.

    Ids 0 to 3 are padding, start, end and unknown; encode adds none of
    them, and decode drops them. "bpe" works on bytes: it has no unknown,
    and decode(encode(text)) is text, spaces and all. "wordpiece" and
    "word" split at spaces, return each gap as one, and know only what
    they were trained on. ValueError where inner has other ids 0 to 3.
    """

    def __init__(self, inner: tokenizers.Tokenizer):
        first = [inner.id_to_token(i) for i in range(len(SPECIALS))]
        if first != SPECIALS:
            raise ValueError(f"ids 0 to 3 are {first}, not {SPECIALS}")
        # "</s>" in a text is four characters, not the end of a sentence
        inner.encode_special_tokens = True
        self.inner = inner

    def __len__(self) -> int:
        return self.inner.get_vocab_size()

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line. A lone surrogate, which is half of a
        character and has no UTF-8, is read as U+FFFD.
        """
        rows = encoded(self.inner, lines)
        # a word that spells the name of a special is unknown, not special
        return [[UNK if i < UNK else i for i in row] for row in rows]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The line of each list of ids, specials dropped. Bytes that are
        not UTF-8, which a model may well write, become U+FFFD.
        """
        return self.inner.decode_batch(ids, skip_special_tokens=True)

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        vocab: int,
        kind: Literal["bpe", "wordpiece", "word"] = "bpe",
    ) -> Tokenizer:
        """Learn at most vocab tokens. ValueError where that is too few.

        lines are read as they come and not kept, unless they are an
        iterator, which can be read only once.
        """
        return cls(learn_pieces(lines, vocab, kind, SPECIALS))

    @classmethod
    def of_words(cls, words: Iterable[str]) -> Tokenizer:
        """A "word" tokenizer that knows words: ids 4, 5, … in their order.

        A repeated word counts once, and so do the names of the specials.
        """
        return cls(word_level(words, SPECIALS))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens themselves, as a figure shows them."""
        return [
            self.inner.decode([i], skip_special_tokens=False).strip()
            or str(self.inner.id_to_token(i))
            for i in ids
        ]

    def save(self, path: Path) -> None:
        """Write the tokenizer to one JSON file, whole or not at all."""
        write_text(path, self.inner.to_str(pretty=True))

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read what save wrote. ValueError where the file is not that."""
        return cls(read_tokenizer(path))
