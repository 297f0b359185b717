"""Exported from the book; edit the chapter, then run `make export`."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import tokenizers
from tokenizers import (
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from annotated.engine.errors import UsageError

__all__ = [
    "valid_line", "word_level", "word_pieces", "encoded", "learn_pieces",
    "read_tokenizer",
]  # fmt: skip


# E16-tokenizers.md: Lines that are text
def valid_line(line: str) -> str:
    """The line, each lone surrogate in it replaced by U+FFFD."""
    try:
        line.encode()
    except UnicodeEncodeError:
        halves = line.encode("utf-16", "surrogatepass")
        return halves.decode("utf-16", "replace")
    return line


class _ValidLines:
    """Lines, each made valid; they can be iterated more than once."""

    def __init__(self, lines: Iterable[str]):
        # an iterator can be read once: it has to be kept
        self.lines = list(lines) if isinstance(lines, Iterator) else lines

    def __iter__(self) -> Iterator[str]:
        return map(valid_line, self.lines)


# E16-tokenizers.md: Byte pairs
def _byte_pairs(
    lines: Iterable[str], vocab: int, specials: Sequence[str]
) -> tokenizers.Tokenizer:
    """Learn byte pairs, until there are vocab tokens or no more pairs."""
    inner = tokenizers.Tokenizer(models.BPE())
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


# E16-tokenizers.md: Whole words
def word_level(
    words: Iterable[str], specials: Sequence[str]
) -> tokenizers.Tokenizer:
    """A tokenizer of these words, numbered in their order after the
    specials; a word that comes twice counts once.
    """
    known = dict.fromkeys([*specials, *words])
    ids = {word: i for i, word in enumerate(known)}
    inner = tokenizers.Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(list(specials))
    return inner


def _whole_words(
    lines: Iterable[str], vocab: int, specials: Sequence[str]
) -> tokenizers.Tokenizer:
    """The most frequent words; vocab counts the specials too."""
    counts = Counter(word for line in lines for word in line.split())
    for name in specials:
        del counts[name]
    common = sorted(counts, key=lambda word: (-counts[word], word))
    return word_level(common[: max(vocab - len(specials), 0)], specials)


# E16-tokenizers.md: Word pieces
_MOST_CHARACTERS = 1000  # web text has more than fit into a vocabulary


def _characters(lines: Iterable[str]) -> list[str]:
    """The most frequent characters and their ## forms, sorted."""
    split = pre_tokenizers.WhitespaceSplit()
    counts, inside = Counter[str](), set[str]()
    for line in lines:
        counts.update(line)
        words = split.pre_tokenize_str(line)
        inside.update("".join(word[1:] for word, _ in words))
    seen = [c for c in counts if split.pre_tokenize_str(c)]  # no spaces
    common = sorted(seen, key=lambda c: (-counts[c], c))[:_MOST_CHARACTERS]
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
    model = models.WordPiece(
        pieces, unk_token="<unk>", max_input_chars_per_word=2**31
    )
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = split
    inner.decoder = decoders.WordPiece(cleanup=False)
    inner.add_special_tokens(list(specials))
    return inner


_LONG = 100  # characters: from here on we spell a word ourselves


def encoded(
    inner: tokenizers.Tokenizer, lines: Sequence[str]
) -> list[list[int]]:
    """The ids of each line, whatever the length of its words."""
    texts = [valid_line(line) for line in lines]
    long: list[int] = []
    if isinstance(inner.model, models.WordPiece):
        long = [i for i, text in enumerate(texts) if _long(text)]
    given = texts.copy()
    for i in long:
        given[i] = ""
    batch = inner.encode_batch_fast(given, add_special_tokens=False)
    rows = [list(line.ids) for line in batch]
    pieces = inner.get_vocab() if long else {}
    most = max(map(len, pieces), default=0)
    for i in long:
        rows[i] = []
        for text, number in _between(inner, texts[i]):
            words = inner.pre_tokenizer.pre_tokenize_str(text)
            each = [_longest(word, pieces, most) for word, _ in words]
            rows[i] += [*chain.from_iterable(each), *number]
    return rows


def _between(
    inner: tokenizers.Tokenizer, line: str
) -> Iterator[tuple[str, list[int]]]:
    """What stands between the tokens that were added to a tokenizer, and
    the id of the one behind it, if any.
    """
    added = {
        token.content: i
        for i, token in inner.get_added_tokens_decoder().items()
        if not token.special
    }
    longest = sorted(added, key=len, reverse=True)
    cuts = "|".join(map(re.escape, longest)) or "(?!)"
    *some, last = re.split(f"({cuts})", line)
    for text, name in zip(some[::2], some[1::2]):
        yield text, [added[name]]
    yield last, []


def _long(line: str) -> bool:
    return (
        len(line) > _LONG and max(map(len, line.split()), default=0) > _LONG
    )


def _longest(word: str, pieces: dict[str, int], most: int) -> list[int]:
    """A word as the longest pieces, from left to right, or <unk>."""
    ids, start = list[int](), 0
    while start < len(word):
        head = "##" if start else ""
        for end in range(min(len(word), start + most), start, -1):
            number = pieces.get(head + word[start:end])
            if number is not None:
                ids.append(number)
                start = end
                break
        else:
            return [pieces["<unk>"]]
    return ids


# E16-tokenizers.md: One of the three
_KINDS: dict[str, Callable[..., tokenizers.Tokenizer]] = {
    "bpe": _byte_pairs,
    "wordpiece": word_pieces,
    "word": _whole_words,
}


def learn_pieces(
    lines: Iterable[str], vocab: int, kind: str, specials: Sequence[str]
) -> tokenizers.Tokenizer:
    """Learn at most vocab tokens of a kind, from lines that are read as
    they come. UsageError if there is no such kind or vocab is too small.
    """
    if kind not in _KINDS:
        raise UsageError(
            f"tokenizer must be one of {', '.join(_KINDS)}, not {kind!r}"
        )
    inner = _KINDS[kind](_ValidLines(lines), max(vocab, 0), specials)
    least = inner.get_vocab_size()
    if least > vocab:
        raise UsageError(
            f"vocab must be at least {least} for {kind} on this text, "
            f"not {vocab}: characters and specials alone are that many"
        )
    return inner


def read_tokenizer(source: Path | str) -> tokenizers.Tokenizer:
    """The tokenizer of a JSON file, or of its text. ValueError where that
    has none.
    """
    try:
        if isinstance(source, str):
            return tokenizers.Tokenizer.from_str(source)
        return tokenizers.Tokenizer.from_file(str(source))
    except Exception as error:  # the library raises bare Exception
        name = "the text" if isinstance(source, str) else source
        raise ValueError(f"{name} is no tokenizer: {error}") from None
