"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from annotated.engine.errors import UsageError, check_fields
from annotated.engine.parts import PartsConfig, PartsShape, sources
from annotated.engine.trainer import RunConfig
from annotated.search import SearchConfig

__all__ = ["Recipe", "RECIPES"]


# E9-recipes.md: The parts of a recipe
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything a run needs: data, tokens, model, training, search.

    The defaults are the paper's base model. ValueError names an invalid
    field.
    """

    about: str  # a one-line description
    data: str  # name of a data set, or a folder of your own
    source: str = "en"  # the language to translate from
    target: str = "de"  # the language to translate into
    train_pairs: int | None = None  # pairs to train on (unset: all)
    valid_pairs: int | None = None  # pairs to validate on (unset: all)
    init: str | None = None  # a run to go on from: its weights and tokens
    # its data: validated on as well, to see what is forgotten
    old_data: str | None = None
    vocab: int = 37_000  # maximum vocabulary size
    # kind of tokens: byte pairs, word pieces or words
    # (sentencepiece: those of an imported run)
    tokenizer: Literal["bpe", "wordpiece", "word", "sentencepiece"] = "bpe"
    fit: tuple[str, ...] = ()  # fields chosen to fit corpus and minutes
    model: PartsShape = PartsShape()  # the model
    training: RunConfig = RunConfig()  # how to train it
    search: SearchConfig = SearchConfig()  # how to translate

    def __post_init__(self) -> None:
        check_fields(self)
        if unknown := set(self.fit) - set(_FITTED):
            raise UsageError(
                f"fit may only name {', '.join(_FITTED)}, not "
                f"{', '.join(sorted(unknown))}"
            )
        if self.training.seed >= 2**63:
            raise UsageError(
                f"seed must be less than 2**63, not {self.training.seed}"
            )
        if self.training.bpe_dropout and self.tokenizer != "bpe":
            raise UsageError(
                f"bpe_dropout needs tokenizer bpe, not {self.tokenizer}"
            )
        if self.training.bpe_dropout and self.model.positions == "learned":
            raise UsageError(
                "bpe_dropout needs sinusoidal positions: a sentence may "
                "become longer than max_len"
            )
        self.config()

    def config(self, *vocabularies: int) -> PartsConfig:
        """The model's configuration for source and target vocabularies of
        these sizes, or of the maximum size.
        """
        src, tgt = vocabularies or (self.vocab, self.vocab)
        shape = dataclasses.asdict(self.model)
        return PartsConfig(src_vocab=src, tgt_vocab=tgt, **shape)

    def imports(self) -> dict[str, str]:
        """The files of your own that it needs, and their SHA-256."""
        return sources(self.model, self.training)

    def flat(self) -> dict[str, Any]:
        """All fields by name, including those of the parts."""
        parts = [vars(getattr(self, name)).items() for name in _PARTS]
        flat = {n: v for n, v in vars(self).items() if n not in _PARTS}
        return flat | {n: v for part in parts for n, v in part}

    def unlike(self, other: Recipe) -> dict[str, Any]:
        """The fields whose values differ from those of other."""
        theirs = other.flat()
        return {n: v for n, v in self.flat().items() if v != theirs[n]}

    def changed(self, **changes: Any) -> Recipe:
        """A copy with some fields changed, in whichever part they are,
        and taken out of fit. ValueError names an invalid value, TypeError
        an unknown field.
        """
        left = tuple(name for name in self.fit if name not in changes)
        parts, fit = {}, changes.pop("fit", left)
        for name in _PARTS:
            part = getattr(self, name)
            its = {n: changes.pop(n) for n in vars(part) if n in changes}
            parts[name] = dataclasses.replace(part, **its)
        return dataclasses.replace(self, fit=fit, **parts | changes)

    @classmethod
    def of(cls, values: Any) -> Recipe:
        """The recipe that dataclasses.asdict made values from. KeyError,
        TypeError or ValueError if they are not a recipe's.
        """
        values = _tuples(values)
        parts = {
            name: part(**_tuples(values[name]))
            for name, part in _PARTS.items()
        }
        return cls(**values | parts)

    def described(self, old: Recipe, what: str) -> str:
        """One line that says, after what, how this differs from old;
        which fields are fitted does not count.
        """
        changes = self.unlike(old.changed(fit=self.fit)).items()
        return f"{what}: {', '.join(f'{n} {v}' for n, v in changes)}"


_PARTS = {
    "model": PartsShape,
    "training": RunConfig,
    "search": SearchConfig,
}
_FITTED = (  # what can be fitted to corpus, minutes and machine
    *("d_model", "d_ff", "num_encoder_layers", "num_decoder_layers"),
    *("dropout", "batch_tokens", "max_steps", "warmup", "rate", "cooldown"),
    *("save_every", "curriculum"),
)


def _tuples(values: Any) -> Any:
    """These values with tuples, where JSON has lists."""
    if not isinstance(values, dict):
        return values  # refused where it is used
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
    }


# E9-recipes.md: The table of recipes
def _synthetic_recipes() -> dict[str, Recipe]:
    """Copy and reverse (chapter 14), pocket (chapter 19)."""
    copy = (
        Recipe(about="say the input again (chapter 14)", data="copy")
        .changed(source="symbols", target="symbols", tokenizer="word")
        .changed(train_pairs=20_000, vocab=20)
        .changed(num_encoder_layers=2, num_decoder_layers=2)
        .changed(d_model=64, d_ff=256, num_heads=4, dropout=0.0)
        .changed(batch_tokens=500, warmup=300, rate=0.6)
        .changed(max_steps=1000, cooldown=500, save_every=500, keep=1)
    )
    reverse = copy.changed(data="reverse").changed(
        about="say the input backwards (chapter 14)"
    )
    pocket = (
        copy.changed(about="German to English from a grammar (chapter 19)")
        .changed(data="pocket", source="de", target="en")
        .changed(train_pairs=100_000, vocab=2000)
        .changed(tie="decoder", d_model=128, label_smoothing=0.0)
        .changed(batch_tokens=600, warmup=400, rate=0.8)
        .changed(max_steps=3000, cooldown=1500, save_every=200)
    )
    return {"copy": copy, "reverse": reverse, "pocket": pocket}


def _corpus_recipes() -> dict[str, Recipe]:
    """Multi30k, Tatoeba and IWSLT (chapter 20)."""
    captions = (
        Recipe(
            about="English to German, 29,000 captions (chapter 20)",
            data="multi30k",
        )
        .changed(vocab=8000, num_encoder_layers=3, num_decoder_layers=3)
        .changed(d_model=128, d_ff=512, num_heads=4, alpha=1.2)
        .changed(norm="pre", dropout=0.2, positions="rotary")
        .changed(batch_tokens=1500, warmup=1200, rate=1.176)
        .changed(max_steps=12_300, cooldown=4950, save_every=300, keep=4)
    )
    talks = (
        Recipe(
            about="German to English, 160,000 sentences of talks",
            data="iwslt14",
        )
        .changed(source="de", target="en", vocab=10_000)
        .changed(d_ff=1024, num_heads=4, dropout=0.3)
        .changed(batch_tokens=4096, rate=0.715, max_steps=50_000)
        .changed(save_minutes=10, keep=10)
    )
    more_talks = talks.changed(
        about="English to German, 200,000 sentences of talks",
        data="iwslt17",
    ).changed(source="en", target="de", vocab=16_000)
    everyday = (
        captions.changed(
            about="English to German, French, Spanish: everyday sentences"
        )
        .changed(data="tatoeba", alpha=1.0, valid_pairs=1000)
        .changed(positions="sinusoidal")
        .changed(num_decoder_layers=2, d_model=160, d_ff=576, dropout=0.1)
        .changed(batch_tokens=2000, warmup=1500, rate=1.47)
        .changed(max_steps=8000, cooldown=3000)
    )
    return {
        "multi30k": captions,
        "everyday": everyday,
        "iwslt14": talks,
        "iwslt17": more_talks,
    }


def _wmt14_recipes() -> dict[str, Recipe]:
    """The models of Table 2, as the paper trained them (§5)."""
    recipes = {}
    german = Recipe(
        about="English to German, the paper's base model",
        data="wmt14-en-de",
    ).changed(save_every=1500, save_minutes=10)
    french = german.changed(
        about="English to French, the paper's base model",
        data="wmt14-en-fr",
    ).changed(target="fr", vocab=32_000, tokenizer="wordpiece")
    for base, dropout in ((german, 0.3), (french, 0.1)):
        recipes[f"{base.data}-base"] = base
        recipes[f"{base.data}-big"] = (
            base.changed(about=base.about.replace("base", "big"))
            .changed(d_model=1024, d_ff=4096, num_heads=16)
            .changed(dropout=dropout)
            .changed(max_steps=300_000, save_every=600, keep=20)
        )
    return recipes


def _table3_recipes() -> dict[str, Recipe]:
    """The rows of Table 3, by name: table3-A-h1 and so on (§6.2)."""
    stacks = "num_encoder_layers", "num_decoder_layers"
    changes: dict[str, dict[str, Any]] = {
        "base": {},  # d_k and d_v of (A) and (C) are d_model / h
        **{f"A-h{h}": {"num_heads": h} for h in (1, 4, 16, 32)},
        **{f"B-dk{d}": {"d_k": d} for d in (16, 32)},
        **{f"C-N{n}": dict.fromkeys(stacks, n) for n in (2, 4, 8)},
        **{f"C-d{d}": {"d_model": d} for d in (256, 1024)},
        **{f"C-ff{d}": {"d_ff": d} for d in (1024, 4096)},
        **{f"D-drop{p}": {"dropout": p} for p in (0.0, 0.2)},
        "E-learned": {"positions": "learned"},
        "big": {},
        **{f"D-eps{e}": {"label_smoothing": e} for e in (0.0, 0.2)},
    }
    recipes, plain = {}, _wmt14_recipes()
    for row, change in changes.items():
        size = "big" if row == "big" else "base"
        recipe = plain[f"wmt14-en-de-{size}"].changed(keep=1, **change)
        about = f"row {row} of Table 3"
        recipes[f"table3-{row}"] = recipe.changed(about=about)
    return recipes


def _parse_recipes() -> dict[str, Recipe]:
    """Sentences to trees (§6.3, chapter 24): data is a folder that
    annotated treebank has made.
    """
    wsj = (
        Recipe(
            about="English to trees, the paper's parser, 40,000 gold trees",
            data="trees",
        )
        .changed(source="words", target="tree", tokenizer="word")
        .changed(vocab=16_000, tie="decoder", warmup=16_000)
        .changed(num_encoder_layers=4, num_decoder_layers=4, d_model=1024)
        .changed(dropout=0.2, attention_dropout=0.2)
        .changed(beam=21, alpha=0.3, extra=300)
    )
    semi = (
        wsj.changed(about="the same, with 17 million silver trees besides")
        .changed(vocab=32_000, warmup=4000)
        .changed(dropout=0.1, attention_dropout=0.1)
    )
    small = (
        wsj.changed(about="English to trees, on a processor (chapter 24)")
        .changed(num_encoder_layers=2, num_decoder_layers=2, norm="pre")
        .changed(d_model=128, d_ff=512, num_heads=4)
        .changed(dropout=0.1, attention_dropout=0.0, label_smoothing=0.0)
        .changed(batch_tokens=1500, warmup=400, rate=0.45)
        .changed(max_steps=4000, cooldown=2000, save_every=500, keep=1)
    )
    return {"parse-wsj": wsj, "parse-semi": semi, "parse-small": small}


_PAIR = (
    Recipe(
        about="your own text: --data and a folder, yours or data prepare's",
        data="pair",
    )
    .changed(source="source", target="target", vocab=8000, fit=_FITTED)
    .changed(norm="pre", num_heads=4, max_minutes=20.0, alpha=1.0)
    .changed(valid_pairs=1000)
)
RECIPES = {
    **_synthetic_recipes(),
    **_corpus_recipes(),
    **_wmt14_recipes(),
    "pair": _PAIR,
    **_table3_recipes(),
    **_parse_recipes(),
}
