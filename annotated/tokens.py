"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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

from annotated.engine.errors import UsageError
from annotated.engine.files import write_text
from annotated.engine.wordpiece import word_pieces

__all__ = [
    "PAD", "BOS", "EOS", "UNK", "SPECIALS", "byte_pairs", "whole_words",
    "ValidLines", "Tokenizer",
]  # fmt: skip


# 10-tokens.md: The tokenizer
PAD = 0
BOS = 1
EOS = 2
UNK = 3
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]


def byte_pairs(
    lines: Iterable[str], vocab: int, specials: Sequence[str]
) -> tokenizers.Tokenizer:
    """Learn byte pairs, until there are vocab tokens or no more pairs."""
    inner = tokenizers.Tokenizer(models.BPE())
    # so that a word has the same tokens wherever it occurs
    inner.normalizer = normalizers.Prepend(" ")
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(lines, trainer)
    return inner


def whole_words(
    lines: Iterable[str], vocab: int, specials: Sequence[str]
) -> tokenizers.Tokenizer:
    """The most frequent words; vocab counts the specials too."""
    counts = Counter(word for line in lines for word in line.split())
    for name in specials:
        del counts[name]
    common = sorted(counts, key=lambda word: (-counts[word], word))
    known = common[: max(vocab - len(specials), 0)]
    return Tokenizer.of_words(known).inner


def _valid(line: str) -> str:
    try:
        line.encode()
    except UnicodeEncodeError:
        halves = line.encode("utf-16", "surrogatepass")
        return halves.decode("utf-16", "replace")
    return line


class ValidLines:
    """Lines, each made valid; they can be iterated more than once."""

    def __init__(self, lines: Iterable[str]):
        # an iterator can be read once: it has to be kept
        self.lines = list(lines) if isinstance(lines, Iterator) else lines

    def __iter__(self) -> Iterator[str]:
        return map(_valid, self.lines)


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
        if kind not in _KINDS:
            raise UsageError(
                f"tokenizer must be one of {', '.join(_KINDS)}, "
                f"not {kind!r}"
            )
        inner = _KINDS[kind](ValidLines(lines), max(vocab, 0), SPECIALS)
        least = inner.get_vocab_size()
        if least > vocab:
            raise UsageError(
                f"vocab must be at least {least} for {kind} on this text, "
                f"not {vocab}: characters and specials alone are that many"
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
        return [[UNK if i < UNK else i for i in line.ids] for line in batch]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The line of each list of ids, specials dropped. Bytes that are
        no UTF-8, which a model may well write, become U+FFFD.
        """
        return self.inner.decode_batch(ids, skip_special_tokens=True)

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
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{path} is no tokenizer: {error}") from None


_KINDS = {"bpe": byte_pairs, "wordpiece": word_pieces, "word": whole_words}
