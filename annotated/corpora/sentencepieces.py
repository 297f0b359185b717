"""Exported from the book; edit the chapter, then run `make export`."""

import base64
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from annotated.corpora.marks import PROTECT, MarkedTokenizer, added_tags
from annotated.corpora.tokenizers import read_tokenizer, valid_line
from annotated.engine.errors import RunError, UsageError
from annotated.engine.files import write_text
from annotated.tokens import SPECIALS, UNK, Tokenizer

__all__ = [
    "optional_import", "SentencePieces", "codes_of", "load_tokenizer",
    "vocabulary", "kind_of", "unknown_words", "same_tokens", "tags_of",
    "tagged", "tag_before", "in_parts",
]  # fmt: skip


# E16-tokenizers.md: Tokens of a published model
def optional_import(
    package: str, install: str = "sentencepiece huggingface_hub"
) -> Any:
    """Import an optional package. RunError, with what to install, if it
    is missing.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise RunError(
            f"{error}: python -m pip install {install}"
        ) from None


class SentencePieces(Tokenizer):
    """The tokens of a published model: a sentencepiece model cuts a line
    into pieces, whose index in a list is their id.

    pieces begins with SPECIALS. If code, such as ">>deu<<", is given, it
    is put before each line that does not begin with another code of the
    model. ValueError if model, pieces or code are invalid.
    """

    def __init__(self, model: bytes, pieces: Sequence[str], code: str = ""):
        make = optional_import("sentencepiece").SentencePieceProcessor
        try:
            self.processor = make(model_proto=model)
            self.processor.encode("a")  # an empty model fails only here
        except Exception as error:  # whatever the library makes of it
            raise ValueError(f"no sentencepiece model ({error})") from None
        self.model, self.pieces, self.code = model, list(pieces), code
        if self.pieces[: len(SPECIALS)] != SPECIALS:
            raise ValueError(f"the first pieces must be {SPECIALS}")
        words = enumerate(self.pieces[UNK:], start=UNK)
        self.ids = {piece: i for i, piece in words}
        if len(self.ids) != len(self.pieces) - UNK:
            raise ValueError("a piece has two ids")
        if code and code not in self.codes:
            raise ValueError(
                f"there is no language {code}; it has "
                f"{', '.join(self.codes) or 'no codes'}"
            )

    @property
    def codes(self) -> list[str]:
        """The codes of the languages that it can be asked for."""
        return codes_of(self.pieces)

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line, behind its language's code if it has one.
        Names of specials in a text are text.
        """
        rows = []
        for line in map(valid_line, lines):
            code, text = self._divided(line)
            pieces = self.processor.encode(text, out_type=str)
            rows.append([self.ids.get(p, UNK) for p in [*code, *pieces]])
        return rows

    def _divided(self, line: str) -> tuple[list[str], str]:
        """The code that stands before a line, and the rest of the line."""
        if not self.code:
            return [], line
        code, end, rest = line.partition("<<")
        if code + end in self.ids and code.startswith(">>"):
            return [code + end], rest
        return [self.code], line

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The line of each list of ids, specials dropped."""
        texts = []
        for row in ids:
            pieces = [self.pieces[i] for i in row if i > UNK]
            text = self.processor.decode_pieces(pieces)
            texts.append(text.replace("▁", " ").strip())
        return texts

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The pieces, as a figure shows them."""
        names = [self.pieces[i] for i in ids]
        return [name.replace("▁", " ").strip() or name for name in names]

    def save(self, path: Path) -> None:
        """Write it to one JSON file, whole or not at all."""
        write_text(path, self.text())

    def text(self) -> str:
        """All that it is, as JSON."""
        model = base64.b64encode(self.model).decode("ascii")
        values = {_MARK: model, "pieces": self.pieces, "code": self.code}
        return json.dumps(values, ensure_ascii=False, indent=0)


def codes_of(pieces: Sequence[str]) -> list[str]:
    """The pieces that are the code of a target language."""
    return [p for p in pieces if p.startswith(">>") and p.endswith("<<")]


_MARK = "sentencepiece"  # the first key of its file


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer that save wrote to path. ValueError if it is damaged;
    RunError if sentencepiece is needed and missing.
    """
    try:
        with path.open("rb") as file:
            begins = file.read(64).decode("utf-8", "replace")
    except OSError:
        begins = ""
    if not any(f'"{key}"' in begins for key in (_MARK, PROTECT)):
        return Tokenizer.load(path)
    try:
        values = json.loads(path.read_text("utf-8"))
        if PROTECT in values:
            inner = read_tokenizer(json.dumps(values["tokenizer"]))
            return MarkedTokenizer(inner, protect=values[PROTECT])
        model = base64.b64decode(values[_MARK], validate=True)
        return SentencePieces(model, values["pieces"], values["code"])
    except RunError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no tokenizer: {error!r}") from None


def vocabulary(tokenizer: Tokenizer) -> list[str]:
    """The tokens as strings, in the order of their ids."""
    if isinstance(tokenizer, SentencePieces):
        return tokenizer.pieces
    tokens = (tokenizer.inner.id_to_token(i) for i in range(len(tokenizer)))
    return [str(token) for token in tokens]


def kind_of(tokenizer: Tokenizer) -> Any:
    """The kind of tokens, by its name in a recipe."""
    if isinstance(tokenizer, SentencePieces):
        return "sentencepiece"
    kinds = {"BPE": "bpe", "WordPiece": "wordpiece", "WordLevel": "word"}
    return kinds[type(tokenizer.inner.model).__name__]


def unknown_words(tokenizer: Tokenizer, lines: Sequence[str]) -> list[str]:
    """The words of these lines of which the tokenizer knows nothing, or
    not all, each once; none with byte pairs, which spell any word.
    """
    if kind_of(tokenizer) == "bpe":
        return []
    words = list(dict.fromkeys(w for line in lines for w in line.split()))
    ids = tokenizer.encode(words)
    return [w for w, row in zip(words, ids, strict=True) if UNK in row]


def same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether two tokenizers give each text the same ids."""
    kinds = SentencePieces, MarkedTokenizer
    texts = [
        t.text() if isinstance(t, kinds) else t.inner.to_str()
        for t in (one, other)
    ]
    return texts[0] == texts[1]


def tags_of(tokenizer: Tokenizer) -> list[str]:
    """The tags that a line may begin with: its own, or the codes of
    languages.
    """
    if isinstance(tokenizer, SentencePieces):
        return tokenizer.codes
    return added_tags(tokenizer)


def tagged(tokenizer: Tokenizer, tag: str) -> Tokenizer:
    """A tokenizer that puts a tag before each line that begins with none.
    UsageError if it has no such tag.
    """
    known = tags_of(tokenizer)
    if tag not in known:
        listed = ", ".join(known) or "it has none"
        raise UsageError(f"there is no tag {tag!r}: {listed}")
    if isinstance(tokenizer, SentencePieces):
        return SentencePieces(tokenizer.model, tokenizer.pieces, tag)
    protect = getattr(tokenizer, "protect", ())
    return MarkedTokenizer(tokenizer.inner, tag=tag, protect=protect)


def tag_before(tokenizer: Tokenizer, line: str) -> str:
    """The tag with which a line begins, or nothing."""
    found = [tag for tag in tags_of(tokenizer) if line.startswith(tag)]
    return max(found, key=len, default="")


def in_parts(
    tokenizer: Tokenizer, ids: Sequence[int], most: int
) -> list[list[int]]:
    """ids in parts of at most that many; each begins with the code of the
    language, or the tags, that ids begins with.
    """
    first = 0
    if isinstance(tokenizer, SentencePieces):
        first = 1 if tokenizer.code else 0
    elif len(ids) > most:
        tags = {tokenizer.inner.token_to_id(t) for t in tags_of(tokenizer)}
        while first < most - 1 and ids[first] in tags:
            first += 1
    head, rest = ids[:first], ids[first:]
    room = most - len(head)
    starts = range(0, len(rest), room)
    return [[*head, *rest[i : i + room]] for i in starts]
