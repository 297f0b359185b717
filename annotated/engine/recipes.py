"""annotated.engine.recipes.

Exported from the book; edit the chapter, then run `make export`.

- 18-multi30k.md: Multi30k and IWSLT: real sentences
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from annotated.engine.trainer import RunConfig
from annotated.model import TransformerConfig, table3
from annotated.search import SearchConfig

__all__ = [
    "Recipe",
    "SMALL",
    "IWSLT",
    "BASE",
    "BIG",
    "wmt14_recipes",
    "table3_recipes",
    "RECIPES",
]


# 18-multi30k.md: Recipes
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that a run is made of: data, tokens, model, training, search.

    Fields that TransformerConfig, RunConfig or SearchConfig have too
    mean what they mean there. Without changes: the paper's base model.
    ValueError names a wrong field.
    """

    about: str  # one line that says what this is
    data: str  # a data set's name, or a folder of your own files
    source: str = "en"  # the language translated from
    target: str = "de"  # the language translated into
    train_pairs: int | None = None  # pairs to train on, if not all
    vocab: int = 37_000  # tokens in a vocabulary, at most
    # what a token is: byte pairs, word pieces, or words
    tokenizer: Literal["bpe", "wordpiece", "word"] = "bpe"
    num_encoder_layers: int = 6  # layers of the encoder
    num_decoder_layers: int = 6  # layers of the decoder
    d_model: int = 512  # width of the model
    d_ff: int = 2048  # width inside the feed-forward networks
    num_heads: int = 8  # attention heads in a layer
    d_k: int | None = None  # key size, if not d_model / num_heads
    d_v: int | None = None  # value size, if not d_model / num_heads
    dropout: float = 0.1  # residual dropout, P_drop
    attention_dropout: float = 0.0  # dropout of attention weights
    activation_dropout: float = 0.0  # dropout in the feed-forward
    norm: Literal["post", "pre"] = "post"  # where LayerNorm stands
    # how a position is written
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    # which of the embeddings and the softmax share their weights
    tie: Literal["all", "decoder", "none"] = "all"
    window: int | None = None  # tokens that self-attention sees, if not all
    max_len: int = 1024  # tokens in a sentence, for learned positions
    # tokens in a batch, on each side, over all processes
    batch_tokens: int = 25_000
    # of these, at most so many at once in a process, if not all
    micro_tokens: int | None = None
    max_steps: int = 100_000  # steps at which training ends
    max_minutes: float | None = None  # minutes of training, at most
    warmup: int = 4000  # steps in which the learning rate rises
    rate: float = 1.0  # factor of the learning rate
    cooldown: int = 0  # steps before max_steps in which the rate goes to 0
    label_smoothing: float = 0.1  # probability given to all words evenly
    clip: float | None = None  # bound of the gradient's norm
    # the numbers that layers compute with
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0  # of synthetic data, first weights, batches, dropout
    save_every: int = 1000  # steps between checkpoints
    # minutes of training after which there is one more, if any
    save_minutes: float | None = None
    keep: int = 5  # checkpoints kept, and averaged at the end
    beam: int = 4  # hypotheses that search keeps
    alpha: float = 0.6  # exponent of the length penalty
    extra: int = 50  # tokens that a translation may be longer by

    def __post_init__(self) -> None:
        for name in ("train_pairs", "vocab"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(
                    f"{name} must be at least 1, not {value!r}"
                )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be 0 or more, not {self.seed!r}")
        self.model_config(self.vocab, self.vocab)
        self.training_config()
        self.search_config()

    def model_config(
        self, src_vocab: int, tgt_vocab: int
    ) -> TransformerConfig:
        """The model for these vocabularies. ValueError names a field."""
        sizes: dict[str, Any] = {
            "src_vocab": src_vocab,
            "tgt_vocab": tgt_vocab,
        }
        return TransformerConfig(
            **_shared(self, TransformerConfig), **sizes
        )

    def training_config(self) -> RunConfig:
        """How to train. ValueError names a field."""
        return RunConfig(**_shared(self, RunConfig))

    def search_config(self) -> SearchConfig:
        """How to search. ValueError names a field."""
        return SearchConfig(**_shared(self, SearchConfig))


def _shared(recipe: Recipe, config: type) -> dict[str, Any]:
    """The fields of recipe that config has as well."""
    own = {f.name for f in dataclasses.fields(recipe)}
    names = [f.name for f in dataclasses.fields(config) if f.name in own]
    return {name: getattr(recipe, name) for name in names}


SMALL: dict[str, Any] = {
    "source": "symbols",
    "target": "symbols",
    "tokenizer": "word",
    "vocab": 20,
    "train_pairs": 20_000,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "d_model": 64,
    "d_ff": 256,
    "num_heads": 4,
    "dropout": 0.0,
    "batch_tokens": 500,
    "warmup": 300,
    "rate": 0.6,
    "max_steps": 1000,
    "cooldown": 500,
    "save_every": 500,
    "keep": 1,
}


IWSLT: dict[str, Any] = {
    "vocab": 10_000,
    "d_ff": 1024,
    "num_heads": 4,
    "dropout": 0.3,
    "batch_tokens": 4096,
    "rate": 0.715,
    "max_steps": 50_000,
    "save_every": 1000,
    "save_minutes": 10,
    "keep": 10,
}


BASE: dict[str, Any] = {"save_every": 1500, "save_minutes": 10}


BIG: dict[str, Any] = {
    "d_model": 1024,
    "d_ff": 4096,
    "num_heads": 16,
    "dropout": 0.3,
    "max_steps": 300_000,
    "save_every": 600,
    "save_minutes": 10,
    "keep": 20,
}


def wmt14_recipes() -> dict[str, Recipe]:
    """The models of Table 2, as the paper trained them (§5)."""
    german: dict[str, Any] = {"data": "wmt14-en-de"}
    french: dict[str, Any] = {
        "data": "wmt14-en-fr",
        "target": "fr",
        "vocab": 32_000,
        "tokenizer": "wordpiece",
    }
    made = {}
    for name, pair, to in (
        ("de", german, "German"),
        ("fr", french, "French"),
    ):
        less = {"dropout": 0.1} if name == "fr" else {}
        for size, shape in (("base", BASE), ("big", BIG | less)):
            recipe = Recipe(
                about=f"English to {to}, the paper's {size} model",
                **pair,
                **shape,
            )
            made[f"wmt14-en-{name}-{size}"] = recipe
    return made


def table3_recipes() -> dict[str, Recipe]:
    """The rows of Table 3, by name: table3-A-h1 and so on (§6.2)."""
    plain = Recipe(about="", data="wmt14-en-de", **BASE | {"keep": 1})
    own = {f.name for f in dataclasses.fields(Recipe)}
    made = {}
    for row, config in table3(plain.vocab).items():
        fields = dataclasses.asdict(config)
        changes = {k: v for k, v in fields.items() if k in own}
        if row == "big":
            changes |= {"max_steps": 300_000, "save_every": 600}
        made[row] = dataclasses.replace(plain, **changes)
    for smoothing in (0.0, 0.2):
        made[f"D-eps{smoothing}"] = dataclasses.replace(
            plain, label_smoothing=smoothing
        )
    return {
        f"table3-{row}": dataclasses.replace(
            recipe, about=f"row {row} of Table 3"
        )
        for row, recipe in made.items()
    }


RECIPES = {
    "copy": Recipe(
        about="say the input again (chapter 14)", data="copy", **SMALL
    ),
    "reverse": Recipe(
        about="say the input backwards (chapter 14)",
        data="reverse",
        **SMALL,
    ),
    "pocket": Recipe(
        about="German to English from a grammar (chapter 17)",
        data="pocket",
        source="de",
        target="en",
        train_pairs=100_000,
        tokenizer="word",
        vocab=2000,
        tie="decoder",
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_model=128,
        d_ff=256,
        num_heads=4,
        dropout=0.0,
        label_smoothing=0.0,
        batch_tokens=600,
        warmup=400,
        rate=0.8,
        max_steps=3000,
        cooldown=1500,
        save_every=200,
        keep=1,
    ),
    "multi30k": Recipe(
        about="English to German, 29,000 captions (chapter 18)",
        data="multi30k",
        vocab=4000,
        num_encoder_layers=3,
        num_decoder_layers=3,
        d_model=192,
        d_ff=512,
        num_heads=4,
        dropout=0.1,
        batch_tokens=1000,
        warmup=1000,
        rate=0.8,
        max_steps=5600,
        cooldown=2000,
        save_every=200,
        keep=4,
        alpha=1.0,
    ),
    "iwslt14": Recipe(
        about="German to English, 160,000 sentences of talks",
        data="iwslt14",
        source="de",
        target="en",
        **IWSLT,
    ),
    "iwslt17": Recipe(
        about="English to German, 200,000 sentences of talks",
        data="iwslt17",
        **IWSLT | {"vocab": 16_000},
    ),
    **wmt14_recipes(),
    "pair": Recipe(
        about="your own text: --data and a folder that data prepare made",
        data="pair",
        source="source",
        target="target",
        vocab=8000,
        num_encoder_layers=3,
        num_decoder_layers=3,
        d_model=256,
        d_ff=1024,
        num_heads=4,
        batch_tokens=3000,
        warmup=1500,
        max_steps=20_000,
        save_every=500,
        keep=5,
    ),
    **table3_recipes(),
}
