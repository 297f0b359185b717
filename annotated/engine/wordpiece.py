"""Exported from the book; edit the chapter, then run `make export`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

__all__ = ["MOST_CHARACTERS", "word_pieces"]


# E16-tokenizers.md: Word pieces
MOST_CHARACTERS = 1000  # web text has more than fit into a vocabulary


def _characters(lines: Iterable[str]) -> list[str]:
    """The most frequent characters and their ## forms, sorted."""
    split = pre_tokenizers.WhitespaceSplit()
    counts, inside = Counter[str](), set[str]()
    for line in lines:
        counts.update(line)
        words = split.pre_tokenize_str(line)
        inside.update("".join(word[1:] for word, _ in words))
    seen = [c for c in counts if split.pre_tokenize_str(c)]  # no spaces
    common = sorted(seen, key=lambda c: (-counts[c], c))[:MOST_CHARACTERS]
    return sorted(common + [f"##{c}" for c in common if c in inside])


def _spelt(
    lines: Iterable[str], characters: Sequence[str]
) -> Iterator[str]:
    """The lines, without the words that contain any other character."""
    split, known = pre_tokenizers.WhitespaceSplit(), set(characters)
    for line in lines:
        words = (word for word, _ in split.pre_tokenize_str(line))
        yield " ".join(word for word in words if known.issuperset(word))


def word_pieces(
    lines: Iterable[str], vocab: int, specials: Sequence[str]
) -> tokenizers.Tokenizer:
    """Learn word pieces (§5.1): vocab tokens, or fewer if pairs run out."""
    split, characters = pre_tokenizers.WhitespaceSplit(), _characters(lines)
    learner = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    learner.pre_tokenizer = split
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab,
        # the trainer numbers ##characters at random and breaks ties by
        # these numbers: number them first
        special_tokens=[*specials, *characters],
        show_progress=False,
    )
    learner.train_from_iterator(_spelt(lines, characters), trainer)
    pieces = learner.get_vocab(with_added_tokens=False)
    model = models.WordPiece(pieces, unk_token="<unk>")
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = split
    inner.decoder = decoders.WordPiece(cleanup=False)
    inner.add_special_tokens(list(specials))
    return inner
