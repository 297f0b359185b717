"""annotated.engine.data.

Exported from the book; edit the chapter, then run `make export`.

- 18-multi30k.md: Multi30k and IWSLT: real sentences
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from annotated.batches import Corpus, Sentences
from annotated.engine.errors import DataError
from annotated.engine.prepare import Prepared, usual_folder
from annotated.engine.recipes import Recipe
from annotated.engine.registry import registry
from annotated.engine.text import SYNTHETIC, load_pairs, synthetic_pairs
from annotated.tokens import Tokenizer

__all__ = [
    "prepared_data",
    "settled",
    "load_text",
    "load_usable",
    "encode_pairs",
    "train_tokenizers",
]


# 18-multi30k.md: From a recipe to numbers
def prepared_data(recipe: Recipe) -> Prepared | None:
    """The prepared corpus that the recipe's data are, or that lies where
    data prepare puts it; None where there is none.
    """
    ways = (recipe.source, recipe.target), (recipe.target, recipe.source)
    places = [Path(recipe.data)]
    if recipe.data in registry():
        places = [usual_folder(recipe.data, *way) for way in ways]
    for place in places:
        if (place / "corpus.json").is_file():
            return Prepared.open(place)
    return None


def settled(recipe: Recipe) -> Recipe:
    """The recipe with what its prepared data decide: the languages, the
    vocabulary. DataError where the two cannot agree. (A language called
    "source" or "target" stands for whatever there is.)
    """
    if recipe.data == "pair":
        raise DataError(
            "pair: which data? Make them with annotated data prepare pair "
            "--src FILE --tgt FILE --vocab 8000 --out DIR, then --data DIR"
        )
    found = prepared_data(recipe)
    if found is None:
        return recipe
    made = found.settings
    if recipe.tie == "all" and not made["shared"]:
        raise DataError(
            f"{found.folder} has two vocabularies: tie must be decoder or "
            "none"
        )
    names = ["vocab", "tokenizer"]
    if {recipe.source, recipe.target} != {made["source"], made["target"]}:
        names += ["source", "target"]
    for name in names:
        if getattr(recipe, name) not in (made[name], name):
            print(
                f"{found.folder} was prepared with {name} {made[name]}: "
                f"the recipe's {getattr(recipe, name)} is not used",
                file=sys.stderr,
            )
    return dataclasses.replace(recipe, **{n: made[n] for n in names})


def load_text(recipe: Recipe, split: str) -> tuple[list[str], list[str]]:
    """The pairs of a split of the recipe's data, and in its direction.

    Of synthetic data there are train_pairs to train on (20,000 unless
    given) and 1,000 in each other split. Raises DataError.
    """
    own = SYNTHETIC.get(recipe.data)
    wanted = (recipe.source, recipe.target)
    count = recipe.train_pairs if split == "train" else None
    if own is None:
        found = prepared_data(recipe) if split != "train" else None
        data = str(found.folder) if found else recipe.data
        src, tgt = load_pairs(data, split, *wanted)
        return src[:count], tgt[:count]
    if wanted not in (own, own[::-1]):
        raise DataError(
            f"{recipe.data} has the languages {' and '.join(own)}, not "
            f"{' and '.join(wanted)}"
        )
    count = count or (20_000 if split == "train" else 1000)
    pairs = synthetic_pairs(recipe.data, split, count, recipe.seed)
    return pairs if wanted == own else pairs[::-1]


def load_usable(
    recipe: Recipe, split: str
) -> tuple[list[str], list[str]] | Corpus:
    """load_text without the pairs that have a blank side; or the ids, of
    data that are prepared.
    """
    if found := prepared_data(recipe):
        corpus = found.corpus(split, recipe.source)
        count = recipe.train_pairs if split == "train" else None
        return corpus.first(count) if count else corpus
    pairs = zip(*load_text(recipe, split), strict=True)
    both = [(s, t) for s, t in pairs if s.strip() and t.strip()]
    if not both:
        raise DataError(
            f"{recipe.data}, {split}: no pair has words on both sides"
        )
    return [s for s, _ in both], [t for _, t in both]


def encode_pairs(
    pairs: tuple[Sequence[str], Sequence[str]] | Corpus,
    source: Tokenizer,
    target: Tokenizer,
) -> Corpus:
    """Lines to ids; pairs with an empty side are left out."""
    if isinstance(pairs, Corpus):
        return pairs
    src, tgt = source.encode(pairs[0]), target.encode(pairs[1])
    both = [(s, t) for s, t in zip(src, tgt, strict=True) if s and t]
    return Corpus(
        Sentences.of([s for s, _ in both]),
        Sentences.of([t for _, t in both]),
    )


def train_tokenizers(
    recipe: Recipe, pairs: tuple[Sequence[str], Sequence[str]] | Corpus
) -> tuple[Tokenizer, Tokenizer]:
    """One tokenizer for both sides where the recipe ties all (§3.4, §5.1),
    else one a side; those of data that are prepared.
    """
    if isinstance(pairs, Corpus):
        found = prepared_data(recipe)
        if found is None:
            raise DataError(f"{recipe.data} is no prepared corpus any more")
        return found.tokenizers(recipe.source)
    if recipe.tie == "all":
        lines = [*pairs[0], *pairs[1]]
        shared = Tokenizer.train(lines, recipe.vocab, recipe.tokenizer)
        return shared, shared
    src, tgt = (
        Tokenizer.train(side, recipe.vocab, recipe.tokenizer)
        for side in pairs
    )
    return src, tgt
