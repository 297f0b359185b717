"""Exported from the book; edit the chapter, then run `make export`."""

from functools import cached_property
from pathlib import Path
from typing import Any

from annotated.batches import Corpus
from annotated.corpora.cleaning import remarks
from annotated.corpora.pairs import TextPair, columns_of, load_pairs
from annotated.corpora.prepare import Prepared, encode_pairs, usual_folder
from annotated.corpora.registry import registry
from annotated.corpora.sentencepieces import same_tokens
from annotated.corpora.synthetic import SYNTHETIC, synthetic_pairs
from annotated.engine.errors import DataError
from annotated.engine.recipes import Recipe
from annotated.tokens import Tokenizer

__all__ = ["TextData", "Data", "open_data", "prepared_data"]


# E9-recipes.md: From a recipe to numbers
class TextData:
    """A recipe's data as text: a data set, or a folder of your own.

    tokenizers are those of an existing run; otherwise they are trained
    on first use. Every method may raise DataError.
    """

    def __init__(
        self,
        recipe: Recipe,
        tokenizers: tuple[Tokenizer, Tokenizer] | None = None,
    ):
        self.recipe, self._tokenizers = recipe, tokenizers

    def text(self, split: str) -> tuple[list[str], list[str]]:
        """The source and target lines of a split. Synthetic data has
        train_pairs pairs to train on (by default 20,000) and 1,000 in
        each other split.
        """
        recipe = self.recipe
        wanted = recipe.source, recipe.target
        count = recipe.train_pairs if split == "train" else None
        own = SYNTHETIC.get(recipe.data)
        if own is None:
            src, tgt = load_pairs(recipe.data, split, *wanted)
            return src[:count], tgt[:count]
        if wanted not in (own, own[::-1]):
            raise DataError(
                f"{recipe.data} has the languages {' and '.join(own)}, not "
                f"{' and '.join(wanted)}"
            )
        count = count or (20_000 if split == "train" else 1000)
        seed = recipe.training.seed
        pairs = synthetic_pairs(recipe.data, split, count, seed)
        return pairs if wanted == own else pairs[::-1]

    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """One tokenizer for both sides if the recipe ties all (§3.4,
        §5.1), else one per side.
        """
        if self._tokenizers is None:
            (src, tgt), tie = self._train, self.recipe.model.tie
            texts = [src + tgt] if tie == "all" else [src, tgt]
            kinds: Any = self.recipe.vocab, self.recipe.tokenizer
            made = [Tokenizer.train(text, *kinds) for text in texts]
            self._tokenizers = made[0], made[-1]
        return self._tokenizers

    def corpus(self, split: str) -> Corpus:
        """The ids of a split, for pairs with tokens on both sides."""
        lines = self._train if split == "train" else self._usable(split)
        return encode_pairs(self.tokenizers(), lines)

    @property
    def notes(self) -> list[str]:
        """Remarks for the user, one sentence each."""
        if not Path(self.recipe.data).is_dir():
            return _attribution(self.recipe.data)
        src, tgt = self._train
        return remarks([*src[:5000], *tgt[:5000]])

    @cached_property
    def _train(self) -> tuple[list[str], list[str]]:
        return self._usable("train")

    def _usable(self, split: str) -> tuple[list[str], list[str]]:
        """Like text, without the pairs that have a blank side."""
        pairs = zip(*self.text(split), strict=True)
        both = [(s, t) for s, t in pairs if s.strip() and t.strip()]
        if not both:
            raise DataError(
                f"{self.recipe.data}, {split}: no pair has words on both "
                "sides"
            )
        return columns_of(both)


class _PreparedData:
    """A recipe's data, prepared by annotated data prepare."""

    def __init__(self, recipe: Recipe, found: Prepared):
        made, self.found = found.settings, found
        if recipe.model.tie == "all" and not made["shared"]:
            raise DataError(
                f"{found.folder} has two vocabularies: tie must be decoder "
                "or none"
            )
        names = ["vocab", "tokenizer"]
        ways = {recipe.source, recipe.target}
        if ways != {made["source"], made["target"]}:
            names += ["source", "target"]
        self.notes = _attribution(recipe.data) + found.manifest["remarks"]
        self.notes += [
            f"{found.folder} was prepared with {name} {made[name]}: the "
            f"recipe's {getattr(recipe, name)} is ignored"
            for name in names
            if getattr(recipe, name) not in (made[name], name)
        ]
        self.recipe = recipe.changed(**{n: made[n] for n in names})

    def text(self, split: str) -> tuple[list[str], list[str]]:
        """The source and target lines of valid or test."""
        languages = self.recipe.source, self.recipe.target
        own = TextPair.in_folder(self.found.folder, split, *languages)
        return columns_of(own.pairs())

    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """The folder's tokenizers of source and target."""
        return self.found.tokenizers(self.recipe.source)

    def corpus(self, split: str) -> Corpus:
        """The ids of a split, memory-mapped; at most train_pairs."""
        corpus = self.found.corpus(split, self.recipe.source)
        count = self.recipe.train_pairs if split == "train" else None
        return corpus.first(count) if count else corpus


Data = TextData | _PreparedData


def _attribution(data: str) -> list[str]:
    """Whom a data set asks to be named, if it does."""
    told = registry().get(data, {}).get("attribution")
    return [f"{data}: {told}"] if told else []


_NO_DATA = {  # what to do about a name that stands for none
    "pair": "pair has no data of its own: give --data and a folder with "
    "your files, or make one with annotated data prepare pair --src FILE "
    "--tgt FILE --out DIR",
    "imported": "an imported run has no data of its own: give --data, a "
    "data set or a folder with your files",
    "trees": "a parser's data is a treebank of yours: make a folder of it "
    "with annotated treebank BANK --out DIR, and give --data DIR",
}


def open_data(
    recipe: Recipe, tokenizers: tuple[Tokenizer, Tokenizer] | None = None
) -> Data:
    """The recipe's data. Its attribute recipe is the recipe with what
    prepared data determine, and the whole path of a folder. tokenizers
    are those of an existing run. DataError if recipe and data are
    incompatible, or if the folder is gone.
    """
    folder = Path(recipe.data)
    if folder.is_dir() and recipe.data not in {*SYNTHETIC, *registry()}:
        recipe = recipe.changed(data=str(folder.resolve()))
    elif folder.is_absolute():
        raise DataError(
            f"there is no folder {folder}: if it has been moved, say where "
            "it is with --data"
        )
    if recipe.data in _NO_DATA:
        raise DataError(_NO_DATA[recipe.data])
    found = prepared_data(recipe)
    if found is None:
        return TextData(recipe, tokenizers)
    made = _PreparedData(recipe, found)
    pairs = zip(tokenizers or (), made.tokenizers())
    if not all(same_tokens(own, there) for own, there in pairs):
        raise DataError(
            f"{found.folder} was prepared with other tokens than the "
            "run's: prepare it anew, with --tokens and the run's folder"
        )
    return made


def prepared_data(recipe: Recipe) -> Prepared | None:
    """The prepared corpus that the recipe's data names, or the one in the
    default folder of data prepare; None if there is none.
    """
    languages = recipe.source, recipe.target
    places = [Path(recipe.data)]
    if recipe.data in registry():
        ways = languages, languages[::-1]
        places = [usual_folder(recipe.data, *way) for way in ways]
    for place in places:
        if (place / "corpus.json").is_file():
            return Prepared.open(place)
    return None
