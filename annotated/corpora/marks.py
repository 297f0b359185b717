"""Exported from the book; edit the chapter, then run `make export`."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models

from annotated.engine.files import write_text
from annotated.tokens import SPECIALS, Tokenizer

__all__ = [
    "check_tags", "protecting", "add_tokens", "without_marks", "untagged",
    "shown", "added_tags", "MarkedTokenizer", "PROTECT", "missing",
]  # fmt: skip


# E16-tokenizers.md: Tokens of your own
_SLOTS = "".join(chr(0xE000 + i) for i in range(20))
_MARKS = r"[!-/:-@\[-`{-~]"
_TAG = re.compile(rf"{_MARKS}[!-~]{{0,38}}{_MARKS}")
_WIDE = 500  # characters of a regular expression


def check_tags(tags: Sequence[str]) -> None:
    """ValueError if one of them cannot be a tag, or comes twice."""
    for tag, count in Counter(tags).items():
        if not _TAG.fullmatch(tag) or tag in SPECIALS:
            raise ValueError(
                "a tag is a word between two marks, such as <2de> or "
                f"__formal__, not {tag!r}"
            )
        if count > 1:
            raise ValueError(f"the tag {tag} is given twice")


def protecting(
    protect: Sequence[str], first: Sequence[str] = ()
) -> re.Pattern[str]:
    """What matches one of first, a character that is a slot, or a
    placeholder. ValueError for what is no regular expression, is too long,
    or matches the empty text.
    """
    for one in protect:
        try:
            places = re.finditer(one, f" {one} ")
            empty = re.search(one, "") or not all(m[0] for m in places)
        except re.error as error:
            raise ValueError(f"protect {one!r}: {error}") from None
        if empty or len(one) > _WIDE:
            raise ValueError(
                f"protect {one[:40]!r} must match a piece of text, not the "
                f"empty one, and have at most {_WIDE} characters"
            )
    every = [*first, f"[{_SLOTS}]", *(f"(?:{one})" for one in protect)]
    try:
        return re.compile("|".join(every))
    except re.error as error:  # together: the name of a group comes twice
        raise ValueError(f"protect: {error}") from None


def add_tokens(
    tokenizer: Tokenizer, tags: Sequence[str], protect: Sequence[str]
) -> Tokenizer:
    """The tokenizer with tags and, where something is protected, slots,
    which come behind all that it has. It is changed itself.
    """
    added = [
        AddedToken(tag, rstrip=True, normalized=False, special=False)
        for tag in tags
    ]
    if protect:
        added += [
            AddedToken(slot, normalized=False, special=False)
            for slot in _SLOTS
        ]
    if added:
        tokenizer.inner.add_tokens(added)
    if not protect:
        return tokenizer
    return MarkedTokenizer(tokenizer.inner, protect=protect)


def without_marks(
    line: str, tags: Sequence[str], pattern: re.Pattern[str] | None
) -> Iterator[str]:
    """The pieces of a line between its tags and placeholders."""
    pieces = [line]
    for tag in tags:
        pieces = [part for piece in pieces for part in piece.split(tag)]
    for piece in pieces:
        start = 0
        for found in pattern.finditer(piece) if pattern else ():
            yield piece[start : found.start()]
            start = found.end()
        yield piece[start:]


def untagged(line: str, tags: Sequence[str]) -> str:
    """A line without the tags that it begins with."""
    while found := [tag for tag in tags if line.startswith(tag)]:
        line = line[len(max(found, key=len)) :].lstrip()
    return line


def shown(line: str) -> str:
    """A line with the numbers of its slots, for a person."""
    return re.sub(
        f"[{_SLOTS}]", lambda slot: f"[{_SLOTS.index(slot[0]) + 1}]", line
    )


def added_tags(tokenizer: Tokenizer) -> list[str]:
    """The tags that a tokenizer has."""
    added = sorted(tokenizer.inner.get_added_tokens_decoder().items())
    names = [token.content for _, token in added if not token.special]
    return [name for name in names if name not in _SLOTS]


class MarkedTokenizer(Tokenizer):
    """A tokenizer that puts a tag before each line that begins with none,
    and slots in the place of what protect matches.
    """

    def __init__(
        self, inner: Any, *, tag: str = "", protect: Sequence[str] = ()
    ):
        super().__init__(inner)
        self.tag, self.protect = tag, tuple(protect)
        self._tags = tuple(added_tags(self))
        longest = sorted(self._tags, key=len, reverse=True)
        kept = [re.escape(name) for name in longest]  # though it be markup
        self._pattern = protecting(self.protect, kept) if protect else None
        ids = map(inner.token_to_id, _SLOTS)
        self._slots = {i: slot for slot, i in zip(_SLOTS, ids)}
        self._spaced = isinstance(inner.model, models.BPE)

    def placeholders(self, line: str) -> list[str]:
        """What is protected in a line."""
        if self._pattern is None:
            return []
        found = (match[0] for match in self._pattern.finditer(line))
        return [text for text in found if text not in self._tags]

    def masked(self, line: str, source: str | None = None) -> str:
        """A line with slots; a target gets those of its source, and keeps
        as text what is not there.
        """
        if self._pattern is None:
            return line
        lines = line if source is None else source
        free = [*zip(self.placeholders(lines), _SLOTS)]

        def slot(found: re.Match[str]) -> str:
            for i, (text, one) in enumerate(free):
                if text == found[0]:
                    del free[i]
                    return one
            return "\ufffd" if found[0] in _SLOTS else found[0]

        return self._pattern.sub(slot, line)

    def restored(self, line: str, source: str) -> str:
        """A line with what its slots stand for in the source; one that
        stands for nothing is left out.
        """
        if self._pattern is None:
            return line
        texts = dict(zip(_SLOTS, self.placeholders(source)))
        return re.sub(
            f"[{_SLOTS}]", lambda slot: texts.get(slot[0], ""), line
        )

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line, with its tag and its slots."""
        return super().encode([self._tagged(self.masked(x)) for x in lines])

    def encode_beside(
        self, lines: Sequence[str], sources: Sequence[str]
    ) -> list[list[int]]:
        """The ids of target lines, with the slots of their sources."""
        both = zip(lines, sources, strict=True)
        return super().encode([self.masked(*pair) for pair in both])

    def _tagged(self, line: str) -> str:
        if not self.tag or not line.strip() or line.startswith(self._tags):
            return line
        return f"{self.tag} {line}"

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The line of each list of ids, slots as they are."""
        lines = super().decode(ids)
        if not self._spaced:
            return lines
        # byte pairs put a space before whatever comes behind a slot
        return [re.sub(f"([{_SLOTS}]) ", r"\1", line) for line in lines]

    def slots(self, ids: Sequence[int]) -> list[str]:
        """The slots among ids, sorted."""
        return sorted(self._slots[i] for i in ids if i in self._slots)

    def missing(self, source: str, line: str) -> list[str]:
        """The source's placeholders that a line does not have."""
        both = map(self.placeholders, (source, line))
        wanted, there = map(Counter, both)
        return [*(wanted - there).elements()]

    def text(self) -> str:
        """All that it is, as JSON; the tag belongs to a command."""
        if not self.protect:
            return self.inner.to_str()
        inner = json.loads(self.inner.to_str())
        values = {PROTECT: self.protect, "tokenizer": inner}
        return json.dumps(values, ensure_ascii=False, indent=0)

    def save(self, path: Path) -> None:
        """Write it to one JSON file, whole or not at all."""
        write_text(path, self.text())


PROTECT = "protect"  # the first key of its file


def missing(
    tokenizer: Tokenizer, sources: Sequence[str], lines: Sequence[str]
) -> list[list[str]]:
    """For each source, its placeholders that its translation lacks; an
    empty list if nothing is protected.
    """
    if not isinstance(tokenizer, MarkedTokenizer) or not tokenizer.protect:
        return []
    pairs = zip(sources, lines, strict=True)
    return [tokenizer.missing(*pair) for pair in pairs]
