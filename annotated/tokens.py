from __future__ import annotations
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers


PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]


class Tokenizer:
    """Text to ids and back (§5.1): byte-pair encoding, word pieces, words.

    Ids 0 to 3 are padding, start, end and unknown; encode adds none of
    them and decode drops them. "bpe" works on bytes: it has no unknown,
    and decode(encode(text)) is text, whatever the text. "wordpiece" and
    "word" split at blanks first and know only what they were trained on.
    """

    def __init__(self, inner: tokenizers.Tokenizer):
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
        """Learn at most vocab tokens from lines. ValueError if it cannot."""
        if kind not in _KINDS:
            raise ValueError(
                f"tokenizer must be one of {', '.join(_KINDS)}, not {kind!r}"
            )
        least = len(SPECIALS) + (256 if kind == "bpe" else 1)
        if vocab < least:
            raise ValueError(
                f"vocab must be at least {least} for {kind}, not {vocab}"
            )
        inner, trainer = _KINDS[kind](vocab)
        inner.train_from_iterator(lines, trainer)
        return cls(inner)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line."""
        batch = self.inner.encode_batch_fast(
            [line.replace("\0", " ") for line in lines],
            add_special_tokens=False,
        )
        return [encoding.ids for encoding in batch]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The line of each list of ids, specials dropped."""
        lines = self.inner.decode_batch(ids, skip_special_tokens=True)
        return [line.strip() for line in lines]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens themselves, as a figure shows them."""
        return [
            self.inner.decode([i], skip_special_tokens=False).strip()
            or self.inner.id_to_token(i)
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


def _byte_pairs(vocab: int):
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    inner.decoder = decoders.ByteLevel()
    return inner, trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


def _word_pieces(vocab: int):
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.decoder = decoders.WordPiece(cleanup=False)
    return inner, trainers.WordPieceTrainer(
        vocab_size=vocab, special_tokens=SPECIALS, show_progress=False
    )


def _words(vocab: int):
    inner = tokenizers.Tokenizer(models.WordLevel(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return inner, trainers.WordLevelTrainer(
        vocab_size=vocab, special_tokens=SPECIALS, show_progress=False
    )


_KINDS = {"bpe": _byte_pairs, "wordpiece": _word_pieces, "word": _words}
