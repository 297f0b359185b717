"""annotated.recipes.

Exported from the book; edit the chapter, then run `make export`.

- 18-multi30k.md: Multi30k and IWSLT: real sentences
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from annotated.batches import Corpus, Sentences
from annotated.corpora import (
    SYNTHETIC,
    DataError,
    load_pairs,
    registry,
    synthetic_pairs,
)
from annotated.decoding import Hypothesis, SearchConfig, search_in_order
from annotated.evaluation import average_weights
from annotated.model import Transformer, TransformerConfig, table3
from annotated.preparation import Prepared, usual_folder
from annotated.tokens import PAD, Tokenizer
from annotated.training import (
    Progress,
    Team,
    Trainer,
    TrainingConfig,
    checkpoints,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    validate,
)

__all__ = [
    "Recipe",
    "SMALL",
    "IWSLT",
    "BASE",
    "BIG",
    "wmt14_recipes",
    "table3_recipes",
    "RECIPES",
    "prepared_data",
    "settled",
    "load_text",
    "load_usable",
    "encode_pairs",
    "train_tokenizers",
    "RunError",
    "write_text",
    "write_json",
    "read_recipe",
    "MAX_SOURCE",
    "Translation",
    "one_line",
    "Run",
    "Stopped",
    "read_metrics",
    "FREE",
    "pick_device",
    "train_recipe",
    "best_step",
]


# 18-multi30k.md: Recipes
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that a run is made of: data, tokens, model, training, search.

    Fields that TransformerConfig, TrainingConfig or SearchConfig have too
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
            "pad_id": PAD,
        }
        return TransformerConfig(
            **_shared(self, TransformerConfig), **sizes
        )

    def training_config(self) -> TrainingConfig:
        """How to train. ValueError names a field."""
        return TrainingConfig(**_shared(self, TrainingConfig))

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


# 18-multi30k.md: A run and its folder
class RunError(ValueError):
    """A run that cannot begin or be used; the message says what to do."""


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, "utf-8")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON to path, whole or not at all."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    write_text(path, text + "\n")


def read_recipe(folder: Path) -> Recipe:
    """The recipe of a run folder. RunError where there is none to use."""
    path = folder / "recipe.json"
    if not path.is_file():
        raise RunError(
            f"{folder} is no run folder, or not a whole one: it has no "
            "recipe.json"
        )
    try:
        values = json.loads(path.read_text("utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it holds no fields")
        known = {f.name for f in dataclasses.fields(Recipe)}
        if strange := values.keys() - known:
            raise ValueError(
                f"this version knows no field {', '.join(sorted(strange))}"
            )
        return Recipe(**values)
    except (TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}") from None


def _first_model(
    recipe: Recipe, source: Tokenizer, target: Tokenizer
) -> Transformer:
    """The model with its first weights, a function of the recipe's seed."""
    config = recipe.model_config(len(source), len(target))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return Transformer(config)


def _check_lengths(recipe: Recipe, corpus: Corpus) -> None:
    """Learned positions are as many as max_len, and no more."""
    longest = 1 + int(
        max(corpus.src.lengths.max(), corpus.tgt.lengths.max())
    )
    if recipe.positions == "learned" and longest > recipe.max_len:
        raise RunError(
            f"{recipe.data} has a sentence of {longest} tokens: max_len "
            f"{recipe.max_len} is too short for it"
        )


MAX_SOURCE = 512


@dataclass(frozen=True)
class Translation:
    """A line of text, the score that search gave it, and the logarithm
    of its probability.
    """

    text: str
    score: float
    log_probability: float


def one_line(text: str) -> str:
    """text without line breaks of any kind: one line in, one line out."""
    return " ".join(text.splitlines()).strip()


def _most_source(config: TransformerConfig, search: SearchConfig) -> int:
    """The longest piece, in tokens, that the model can translate."""
    if config.positions == "sinusoidal":
        return MAX_SOURCE
    most = min(MAX_SOURCE, config.max_len - search.extra)
    if most < 1:
        raise RunError(
            f"extra {search.extra} is too much for max_len {config.max_len}"
        )
    return most


@dataclass(frozen=True)
class Run:
    """A run folder in memory: recipe, tokenizers, model; and the models of
    other runs, where there are any, that vote when it translates.
    """

    recipe: Recipe
    source: Tokenizer
    target: Tokenizer
    model: Transformer
    others: tuple[Transformer, ...] = ()

    @classmethod
    def begin(cls, recipe: Recipe, folder: Path) -> tuple[Run, Corpus]:
        """Make a new run folder; returns the run and its training corpus.

        Raises RunError where the folder has something in it already, and
        writes nothing before all else has gone well.
        """
        if folder.exists() and (
            not folder.is_dir() or any(folder.iterdir())
        ):
            raise RunError(
                f"{folder} is not empty: choose another --out, or --resume"
            )
        pairs = load_usable(recipe, "train")
        source, target = train_tokenizers(recipe, pairs)
        corpus = encode_pairs(pairs, source, target)
        _check_lengths(recipe, corpus)
        run = cls(
            recipe, source, target, _first_model(recipe, source, target)
        )
        folder.mkdir(parents=True, exist_ok=True)
        source.save(folder / "source.json")
        target.save(folder / "target.json")
        # last: a folder that has it is a whole one
        write_json(folder / "recipe.json", dataclasses.asdict(recipe))
        return run, corpus

    @classmethod
    def as_begun(cls, folder: Path) -> Run:
        """The run as begin left it: the model has its first weights.

        Raises RunError where a part is missing, damaged or does not fit.
        """
        recipe = read_recipe(folder)
        try:
            source = Tokenizer.load(folder / "source.json")
            target = Tokenizer.load(folder / "target.json")
            model = _first_model(recipe, source, target)
        except ValueError as error:
            raise RunError(f"{folder} is damaged: {error}") from None
        return cls(recipe, source, target, model)

    @classmethod
    def open(cls, folder: Path, weights: Path | None = None) -> Run:
        """Read a run folder, with the weights of its model.safetensors, or
        of its newest checkpoint where training has not finished.

        Raises RunError where a part is missing or does not fit.
        """
        run = cls.as_begun(folder)
        places = [folder, *checkpoints(folder / "checkpoints")[::-1]]
        found = [p / "model.safetensors" for p in places]
        found = [weights] if weights else [p for p in found if p.exists()]
        if not found:
            raise RunError(f"{folder} has no weights yet: train it first")
        try:
            load_weights(run.model, found[0])
        except ValueError as error:
            raise RunError(str(error)) from None
        run.model.eval()
        return run

    def with_votes_of(self, other: Run) -> Run:
        """This run, where the model of another votes as well. ValueError
        where it has other words.
        """
        ours, theirs = (
            [tokens.inner.to_str() for tokens in (run.source, run.target)]
            for run in (self, other)
        )
        if ours != theirs:
            raise ValueError("models that vote need the same vocabulary")
        return dataclasses.replace(self, others=(*self.others, other.model))

    def translate(
        self,
        lines: Sequence[str],
        search: SearchConfig | None = None,
        batch_tokens: int = 2000,
        workers: int = 1,
    ) -> list[list[Translation]]:
        """The nbest translations of each line, the best first; at most
        batch_tokens tokens of source are searched at once, by so many
        workers (see search_in_order).

        A blank line gives a blank one; a line of more than MAX_SOURCE
        tokens is translated in pieces, whose best are put together.
        RunError where a worker dies.
        """
        search = search or self.recipe.search_config()
        models = [self.model, *self.others]
        most = min(_most_source(m.config, search) for m in models)
        pieces, owner = [], []
        for i, ids in enumerate(self.source.encode(lines)):
            end = len(ids) if lines[i].strip() else 0
            for first in range(0, end, most):
                pieces.append(ids[first : first + most])
                owner.append(i)
        found: list[list[list[Hypothesis]]] = [[] for _ in lines]
        try:
            results = search_in_order(
                models, pieces, search, batch_tokens, workers=workers
            )
        except RuntimeError as error:
            if "exited unexpectedly" not in str(error):
                raise
            raise RunError(
                "a process that searched has died, for lack of memory "
                "perhaps: fewer workers and batch_tokens need less"
            ) from None
        for i, hypotheses in zip(owner, results, strict=True):
            found[i].append(hypotheses)
        return [self._texts(parts) for parts in found]

    def _texts(self, parts: list[list[Hypothesis]]) -> list[Translation]:
        if not parts:
            return [Translation("", 0.0, 0.0)]
        if len(parts) == 1:
            texts = self.target.decode([h.ids for h in parts[0]])
            return [
                Translation(one_line(text), h.score, h.log_probability)
                for text, h in zip(texts, parts[0], strict=True)
            ]
        texts = self.target.decode([p[0].ids for p in parts])
        score = sum(p[0].score for p in parts) / len(parts)
        total = sum(p[0].log_probability for p in parts)
        text = " ".join(one_line(text) for text in texts)
        return [Translation(text, score, total)]


# 18-multi30k.md: Stop, and go on
class Stopped(Exception):
    """Training was asked to stop, and did, with a checkpoint written."""

    def __init__(self, step: int, number: int):
        super().__init__(f"stopped at step {step}: --resume goes on")
        self.number = number  # of the signal


class _StopSignals:
    """The first SIGTERM or SIGINT is noted; a second acts as ever, or not
    at all where there are several processes: launchers repeat them.
    """

    def __init__(self, team: Team):
        self.alone = team.size == 1

    def __enter__(self) -> _StopSignals:
        self.number = 0
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.number = number
        if self.alone:
            self.__exit__()
            # not print: the signal may have come in the middle of one
            os.write(2, b"\nstopping after this step; again: at once\n")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """What a run has noted, in order: {"step": …, "loss": …, …} for steps,
    {"step": …, "valid": {…}} for validations.
    """
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    found = []
    for line in path.read_text("utf-8", errors="replace").split("\n"):
        try:
            entry = json.loads(line)
        except ValueError:  # the end of a run that was killed
            continue
        if isinstance(entry, dict) and "step" in entry:
            found.append(entry)
    return found


class _Log:
    """metrics.jsonl, and a progress bar, or plain lines without one."""

    def __init__(self, folder: Path, trainer: Trainer):
        self.trainer = trainer
        path = folder / "metrics.jsonl"
        # a resumed run forgets what came after its checkpoint
        kept = [
            e for e in read_metrics(folder) if e["step"] <= trainer.step
        ]
        write_text(path, "".join(json.dumps(e) + "\n" for e in kept))
        self.file = path.open("a", encoding="utf-8")
        self.bar = tqdm(
            total=trainer.config.max_steps,
            initial=trainer.step,
            unit="step",
            dynamic_ncols=True,
            disable=None,
        )
        self.said = time.monotonic()
        self.recent: list[Progress] = []

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        self.file.close()

    def step(self, progress: Progress) -> None:
        """Note a step; every tenth and the first go to the file."""
        self.recent = [*self.recent[-9:], progress]
        if progress.step % 10 == 0 or progress.step == 1:
            self._write(dataclasses.asdict(progress))
        self.bar.set_postfix_str(self._state(), refresh=False)
        self.bar.update()
        if self.bar.disable and time.monotonic() - self.said > 30:
            self.said = time.monotonic()
            self._say(f"step {progress.step}, {self._state()}")

    def valid(self, step: int, scores: dict[str, float]) -> None:
        """Note what validation found."""
        self._write({"step": step, "valid": scores})
        self._say(
            f"step {step}: checkpoint, validation perplexity "
            f"{scores['perplexity']:.2f}"
        )

    def _state(self) -> str:
        first, last = self.recent[0], self.recent[-1]
        loss = sum(p.loss for p in self.recent) / len(self.recent)
        seconds = last.seconds - first.seconds
        speed = (last.tokens - first.tokens) / seconds if seconds else 0.0
        most = self.trainer.config.max_minutes
        end = f" of {most:g}" if most else ""
        return (
            f"epoch {last.epoch}, loss {loss:.3f}, {speed:,.0f} tokens/s, "
            f"{last.seconds / 60:.1f}{end} min"
        )

    def _write(self, entry: dict[str, Any]) -> None:
        self.file.write(json.dumps(entry) + "\n")
        self.file.flush()

    def _say(self, line: str) -> None:
        tqdm.write(line, file=sys.stderr)


class _NoLog:
    """What the other processes note: nothing."""

    def __enter__(self) -> _NoLog:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to close."""

    def step(self, progress: Progress) -> None:
        """Process 0 notes it."""

    def valid(self, step: int, scores: dict[str, float]) -> None:
        """Process 0 notes it."""


def _save(trainer: Trainer, folder: Path) -> None:
    """A checkpoint; RunError, with nothing lost, where it cannot be."""
    config, places = trainer.config, folder / "checkpoints"
    try:
        save_checkpoint(trainer, places, config.keep, config.save_every)
    except (OSError, RuntimeError, SafetensorError) as error:
        for begun in places.glob(".[0-9]*"):
            shutil.rmtree(begun, ignore_errors=True)
        what = f"the checkpoint of step {trainer.step}"
        raise _unwritten(what, error) from None


def _unwritten(what: str, error: Exception) -> RunError:
    reason = " ".join(str(error).split())[:160]
    return RunError(
        f"{what} could not be written ({reason}): the checkpoints before "
        "it are whole; make room, then --resume"
    )


def _take_up(trainer: Trainer, folder: Path) -> None:
    """Load the newest checkpoint that is whole, and say which."""
    trainer.team.in_turn(lambda: _take_newest(trainer, folder))
    trainer.check_team()


def _take_newest(trainer: Trainer, folder: Path) -> None:
    loud = trainer.team.rank == 0
    places = checkpoints(folder / "checkpoints")[::-1]
    for place in places:
        try:
            load_checkpoint(trainer, place)
        except (KeyError, TypeError, ValueError) as error:
            aside = place.with_name(f"damaged-{place.name}")
            shutil.rmtree(aside, ignore_errors=True)
            place.rename(aside)
            print(f"{error}: set aside as {aside.name}", file=sys.stderr)
            continue
        if loud:
            print(f"resuming at step {trainer.step}", file=sys.stderr)
        return
    if places:
        raise RunError(f"{folder} has no checkpoint that is whole")
    if loud:
        print("no checkpoint yet: starting at step 0", file=sys.stderr)


FREE = {
    "about",
    "max_steps",
    "max_minutes",
    "micro_tokens",
    "save_minutes",
    "beam",
    "alpha",
    "extra",
}


def _resumed(recipe: Recipe, folder: Path) -> tuple[Run, Corpus]:
    """The run in folder and its corpus. RunError where recipe is another
    in anything but the fields that are FREE.
    """
    run = Run.as_begun(folder)
    for f in dataclasses.fields(Recipe):
        new, old = getattr(recipe, f.name), getattr(run.recipe, f.name)
        if f.name not in FREE and new != old:
            raise RunError(
                f"{folder} was begun with {f.name} {old!r}: resume it with "
                f"that, not with {new!r}"
            )
    pairs = load_usable(recipe, "train")
    corpus = encode_pairs(pairs, run.source, run.target)
    if recipe != run.recipe:
        write_json(folder / "recipe.json", dataclasses.asdict(recipe))
    return dataclasses.replace(run, recipe=recipe), corpus


def pick_device(name: str | None = None) -> str:
    """name, or a GPU where there is one. RunError where it is not there."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if torch.device(name).type not in ("cpu", "cuda"):
            raise RuntimeError("only cpu and cuda are supported")
        torch.empty(1, device=name)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise RunError(f"no device {name!r}: {reason}") from None
    return name


# 18-multi30k.md: Training a recipe
def train_recipe(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    device: str | None = None,
    team: Team | None = None,
) -> dict[str, Any]:
    """Train a recipe into a run folder; returns the run's summary.

    On SIGTERM or SIGINT it writes a checkpoint and raises Stopped. At the
    end model.safetensors is the mean of the last keep checkpoints (§6.1),
    or the last one, where that has the lower validation nll;
    best.safetensors has the weights of the lowest nll on the way.
    Raises DataError, RunError, TrainingError or ValueError.
    """
    recipe = settled(recipe)
    team = team or Team()
    device = pick_device(device)
    run, corpus, valid = team.in_turn(
        lambda: _open(recipe, folder, resume or team.rank > 0)
    )
    model = run.model.to(device)
    trainer = Trainer(model, corpus, recipe.training_config(), team)
    if resume:
        _take_up(trainer, folder)
    _say_what(run, corpus, device, team)
    quiet = team.rank > 0
    with (
        _StopSignals(team) as stop,
        _NoLog() if quiet else _Log(folder, trainer) as log,
    ):
        _train(trainer, valid, folder, stop, log)
    return _finish(run, trainer, valid, folder)


def _open(
    recipe: Recipe, folder: Path, begun: bool
) -> tuple[Run, Corpus, Corpus]:
    """The run, its corpus and what it is validated on."""
    valid_text = load_usable(recipe, "valid")
    start = _resumed if begun else Run.begin
    run, corpus = start(recipe, folder)
    valid = encode_pairs(valid_text, run.source, run.target)
    _check_lengths(recipe, valid)
    return run, corpus, valid


def _train(
    trainer: Trainer,
    valid: Corpus,
    folder: Path,
    stop: _StopSignals,
    log: _Log | _NoLog,
) -> None:
    """Every step, with checkpoints and validations, and a checkpoint at
    the end. Raises Stopped.
    """
    config, team = trainer.config, trainer.team
    saved, seconds = trainer.step, trainer.seconds
    minutes = config.save_minutes or math.inf
    for progress in trainer.steps():
        log.step(progress)
        # looked at once, for a signal may come at any time, and together,
        # for it may have come to any process
        wish = int(team.sum(torch.tensor(stop.number)).item())
        due = trainer.step % config.save_every == 0
        late = trainer.seconds - seconds >= 60 * minutes
        if due or late or wish:
            _save(trainer, folder)
            saved, seconds = trainer.step, trainer.seconds
        if wish:
            raise Stopped(trainer.step, stop.number or signal.SIGTERM)
        if due:
            scores = validate(
                trainer.model, valid, config, team, trainer.loss
            )
            log.valid(trainer.step, scores)
            team.first(partial(_keep_best, trainer.step, folder))
    if saved != trainer.step:
        _save(trainer, folder)


def best_step(folder: Path) -> int | None:
    """The step of a run's lowest validation nll; None if there is none."""
    notes = [e for e in read_metrics(folder) if "valid" in e]
    if not notes:
        return None
    return int(min(notes, key=lambda e: e["valid"]["nll"])["step"])


def _keep_best(step: int, folder: Path) -> None:
    """best.safetensors becomes this step's weights where it is the best."""
    if best_step(folder) != step:
        return
    place = folder / "checkpoints" / f"{step:08d}" / "model.safetensors"
    fresh = folder / f".best.safetensors.{os.getpid()}"
    try:
        try:
            fresh.hardlink_to(place)
        except OSError:  # not every file system can
            shutil.copyfile(place, fresh)
        fresh.replace(folder / "best.safetensors")
    except OSError as error:
        raise _unwritten("best.safetensors", error) from None
    finally:
        fresh.unlink(missing_ok=True)


def _say_what(run: Run, corpus: Corpus, device: str, team: Team) -> None:
    if team.rank:
        return
    count = sum(p.numel() for p in run.model.parameters())
    several = f" in {team.size} processes" if team.size > 1 else ""
    print(
        f"{len(corpus):,} pairs, {len(run.source):,} and "
        f"{len(run.target):,} tokens, {count:,} parameters, on "
        f"{device}{several}",
        file=sys.stderr,
    )


def _finish(
    run: Run, trainer: Trainer, valid: Corpus, folder: Path
) -> dict[str, Any]:
    """Choose the last weights or the mean of the last checkpoints; write
    the model and the summary.
    """
    config, team = trainer.config, trainer.team
    places = folder / "checkpoints"
    final = places / f"{trainer.step:08d}"
    regular = checkpoints(places, config.save_every)
    last = [*(p for p in regular if p != final), final][-config.keep :]
    choice = []
    for count in dict.fromkeys((len(last), 1)):
        files = [p / "model.safetensors" for p in last[-count:]]
        mean = average_weights(files)
        with torch.no_grad():
            for name, parameter in run.model.named_parameters():
                here = mean[name].to(parameter.device)
                parameter.copy_(team.part(here, parameter))
        found = validate(run.model, valid, config, team, trainer.loss)
        choice.append((found, count, mean))
    scores, averaged, weights = min(choice, key=lambda c: c[0]["nll"])
    if averaged < len(last) and team.rank == 0:
        print(
            f"the last checkpoint is better than the mean of {len(last)}: "
            "it is the model",
            file=sys.stderr,
        )
    plan = trainer.corpus.plan(
        config.batch_tokens, config.seed, trainer.epoch
    )
    summary = {
        "steps": trainer.step,
        "epochs": round(trainer.epoch + trainer.batch / len(plan), 2),
        "tokens": trainer.tokens,
        "seconds": round(trainer.seconds, 1),
        "processes": team.size,
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "averaged": averaged,  # 1: the last alone
        "best": best_step(folder),
        "valid": scores,
    }
    team.first(lambda: _write_model(weights, summary, folder))
    return summary


def _write_model(
    weights: dict[str, Tensor], summary: dict[str, Any], folder: Path
) -> None:
    fresh = folder / f".model.safetensors.{os.getpid()}"
    try:
        save_file(weights, fresh)
        fresh.replace(folder / "model.safetensors")
        write_json(folder / "summary.json", summary)
    except (OSError, SafetensorError) as error:
        raise _unwritten("the model", error) from None
    finally:
        fresh.unlink(missing_ok=True)
