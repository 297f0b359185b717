"""annotated.tokens.

Exported from the book; edit the chapter, then run `make export`.

- 10-tokens.md: Tokens
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import (
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

__all__ = [
    "PAD",
    "BOS",
    "EOS",
    "UNK",
    "SPECIALS",
    "Tokenizer",
    "MOST_LETTERS",
    "TORCHTEXT",
    "from_torchtext",
    "torchtext_pairs",
]


# 10-tokens.md: Four ids that are no word
PAD = 0
BOS = 1
EOS = 2
UNK = 3
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]


# 10-tokens.md: The tokenizer
def _valid(line: str) -> str:
    try:
        line.encode()
    except UnicodeEncodeError:
        halves = line.encode("utf-16", "surrogatepass")
        return halves.decode("utf-16", "replace")
    return line


class _Valid:
    """Lines, each made valid, to be gone through as often as one likes."""

    def __init__(self, lines: Iterable[str]):
        # an iterator can be gone through once: it has to be kept
        self.lines = list(lines) if isinstance(lines, Iterator) else lines

    def __iter__(self) -> Iterator[str]:
        return map(_valid, self.lines)


def _byte_pairs(lines: Iterable[str], vocab: int) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE())
    # so that a word has the same tokens wherever it stands
    inner.normalizer = normalizers.Prepend(" ")
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(lines, trainer)
    return inner


class Tokenizer:
    """Text to ids and back (§5.1): byte-pair encoding, word pieces, words.

    Ids 0 to 3 are padding, start, end and unknown; encode adds none of
    them, and decode drops them. "bpe" works on bytes: it has no unknown,
    and decode(encode(text)) is text, blanks and all. "wordpiece" and
    "word" split at blanks, which come back as one, and know only what
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

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        vocab: int,
        kind: Literal["bpe", "wordpiece", "word"] = "bpe",
    ) -> Tokenizer:
        """Learn at most vocab tokens. ValueError where that is too few.

        lines may be a file's, or anything else that can be gone through
        twice: they are counted as they come, not kept.
        """
        if kind not in _KINDS:
            raise ValueError(
                f"tokenizer must be one of {', '.join(_KINDS)}, "
                f"not {kind!r}"
            )
        inner = _KINDS[kind](_Valid(lines), max(vocab, 0))
        least = inner.get_vocab_size()
        if least > vocab:
            raise ValueError(
                f"vocab must be at least {least} for {kind} on this text, "
                f"not {vocab}: letters and specials alone are that many"
            )
        return cls(inner)

    @classmethod
    def of_words(cls, words: Iterable[str]) -> Tokenizer:
        """A "word" tokenizer that knows words: ids 4, 5, … in their order.

        A repeated word counts once, and so do the names of the specials.
        """
        known = dict.fromkeys([*SPECIALS, *words])
        ids = {word: i for i, word in enumerate(known)}
        model = models.WordLevel(ids, unk_token="<unk>")
        inner = tokenizers.Tokenizer(model)
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        inner.add_special_tokens(SPECIALS)
        return cls(inner)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line. A lone surrogate, which is half of a
        character and has no UTF-8, is read as U+FFFD.
        """
        batch = self.inner.encode_batch_fast(
            [_valid(line) for line in lines], add_special_tokens=False
        )
        # a word that spells the name of a special is unknown, not special
        return [[max(i, UNK) for i in line.ids] for line in batch]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The line of each list of ids, specials dropped. Bytes that are
        no UTF-8, which a model may well write, become U+FFFD.
        """
        return self.inner.decode_batch(ids, skip_special_tokens=True)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens themselves, as a figure shows them."""
        return [
            self.inner.decode([i], skip_special_tokens=False).strip()
            or self.inner.id_to_token(i)
            or ""
            for i in ids
        ]

    def save(self, path: Path) -> None:
        """Write the tokenizer to one JSON file."""
        self.inner.save(str(path))

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read what save wrote. ValueError where the file is not that."""
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{path} is no tokenizer: {error}") from None


MOST_LETTERS = 1000  # the web has more than a vocabulary has room for


def _letters(lines: Iterable[str]) -> list[str]:
    """The commonest letters, alone and inside a word, in their order."""
    split = pre_tokenizers.WhitespaceSplit()
    counts, inside = Counter[str](), set[str]()
    for line in lines:
        counts.update(line)
        words = split.pre_tokenize_str(line)
        inside.update("".join(word[1:] for word, _ in words))
    seen = [c for c in counts if split.pre_tokenize_str(c)]  # no blanks
    common = sorted(seen, key=lambda c: (-counts[c], c))[:MOST_LETTERS]
    return sorted(common + [f"##{c}" for c in common if c in inside])


def _spelt(lines: Iterable[str], letters: Sequence[str]) -> Iterator[str]:
    """The lines without the words that have other letters than these."""
    split, known = pre_tokenizers.WhitespaceSplit(), set(letters)
    for line in lines:
        words = (word for word, _ in split.pre_tokenize_str(line))
        yield " ".join(word for word in words if known.issuperset(word))


def _word_pieces(lines: Iterable[str], vocab: int) -> tokenizers.Tokenizer:
    split, letters = pre_tokenizers.WhitespaceSplit(), _letters(lines)
    learner = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    learner.pre_tokenizer = split
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab,
        # the trainer numbers ##letters at random and lets their numbers
        # decide between equals: number them first
        special_tokens=SPECIALS + letters,
        show_progress=False,
    )
    learner.train_from_iterator(_spelt(lines, letters), trainer)
    pieces = learner.get_vocab(with_added_tokens=False)
    model = models.WordPiece(pieces, unk_token="<unk>")
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = split
    inner.decoder = decoders.WordPiece(cleanup=False)
    inner.add_special_tokens(SPECIALS)
    return inner


def _words(lines: Iterable[str], vocab: int) -> tokenizers.Tokenizer:
    counts = Counter(word for line in lines for word in line.split())
    for name in SPECIALS:
        del counts[name]
    common = sorted(counts, key=lambda word: (-counts[word], word))
    known = common[: max(vocab - len(SPECIALS), 0)]
    return Tokenizer.of_words(known).inner


_KINDS = {"bpe": _byte_pairs, "wordpiece": _word_pieces, "word": _words}


# 10-tokens.md: torchtext, where it loads
TORCHTEXT = ("<pad>", "<bos>", "<eos>", "<unk>")  # for ours, in our order


def from_torchtext(
    vocab: Any, specials: Sequence[str] = TORCHTEXT
) -> tuple[Tokenizer, list[int]]:
    """A torchtext vocabulary as a tokenizer for words, and for each of its
    ids the id that the word has there: old_embedding[rows] is in our order.

    specials are its names for padding, start, end and unknown. ValueError
    where it has not all of them, or no words.
    """
    theirs = list(vocab.get_itos())
    place = {word: i for i, word in enumerate(theirs)}
    if absent := [name for name in specials if name not in place]:
        raise ValueError(
            f"the vocabulary has no {', '.join(absent)}: say what its "
            "padding, start, end and unknown are called, in this order"
        )
    known = {*specials, *SPECIALS}
    words = [word for word in theirs if word not in known]
    if not words:
        raise ValueError("the vocabulary has no words")
    rows = [place[word] for word in (*specials, *words)]
    return Tokenizer.of_words(words), rows


def torchtext_pairs(
    dataset: Iterable[Any], count: int | None = None
) -> tuple[list[str], list[str]]:
    """A torchtext translation data set as source lines and target lines,
    all or the first count. ValueError where an item is no pair of strings.
    """
    sides: tuple[list[str], list[str]] = [], []
    for number, item in enumerate(islice(dataset, count)):
        pair = tuple(item)
        if len(pair) != 2 or not all(isinstance(x, str) for x in pair):
            raise ValueError(
                f"item {number} is no pair of strings: {item!r}"
            )
        for side, line in zip(sides, pair, strict=True):
            side.append(" ".join(line.split("\n")).strip())
    return sides
