"""annotated.tokens.

Exported from the book; edit the chapter, then run `make export`.

- 10-tokens.md: Tokens
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import tokenizers
from tokenizers import (
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

__all__ = ["PAD", "BOS", "EOS", "UNK", "SPECIALS", "Tokenizer"]


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


def _byte_pairs(lines: list[str], vocab: int) -> tokenizers.Tokenizer:
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
        """Learn at most vocab tokens. ValueError where that is too few."""
        if kind not in _KINDS:
            raise ValueError(
                f"tokenizer must be one of {', '.join(_KINDS)}, "
                f"not {kind!r}"
            )
        lines = [_valid(line) for line in lines]
        inner = _KINDS[kind](lines, max(vocab, 0))
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


def _word_pieces(lines: list[str], vocab: int) -> tokenizers.Tokenizer:
    split = pre_tokenizers.WhitespaceSplit()
    words = {word for s in lines for word, _ in split.pre_tokenize_str(s)}
    letters = {c for word in words for c in word}
    letters |= {f"##{c}" for word in words for c in word[1:]}
    learner = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    learner.pre_tokenizer = split
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab,
        # the trainer numbers ##letters at random and lets their numbers
        # decide between equals: number them first
        special_tokens=SPECIALS + sorted(letters),
        show_progress=False,
    )
    learner.train_from_iterator(lines, trainer)
    pieces = learner.get_vocab(with_added_tokens=False)
    model = models.WordPiece(pieces, unk_token="<unk>")
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = split
    inner.decoder = decoders.WordPiece(cleanup=False)
    inner.add_special_tokens(SPECIALS)
    return inner


def _words(lines: list[str], vocab: int) -> tokenizers.Tokenizer:
    counts = Counter(word for line in lines for word in line.split())
    for name in SPECIALS:
        del counts[name]
    common = sorted(counts, key=lambda word: (-counts[word], word))
    known = common[: max(vocab - len(SPECIALS), 0)]
    return Tokenizer.of_words(known).inner


_KINDS = {"bpe": _byte_pairs, "wordpiece": _word_pieces, "word": _words}
