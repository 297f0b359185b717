"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from annotated.batches import Corpus
from annotated.corpora.fetch import file_hash
from annotated.corpora.registry import registry
from annotated.corpora.sentencepieces import (
    in_parts,
    load_tokenizer,
    same_tokens,
)
from annotated.engine.checkpoints import checkpoints
from annotated.engine.data import Data, open_data, prepared_data
from annotated.engine.errors import RunError
from annotated.engine.files import check_new, replacing, write_json
from annotated.engine.machine import kept, pick_precision
from annotated.engine.packing import PackedTransformer
from annotated.engine.recipes import Recipe, described, fitted, recipe_of
from annotated.engine.search import Guide, WorkerError, search_in_order
from annotated.engine.tensors import load_weights, write_tensors
from annotated.engine.trainer import training_speed
from annotated.model import ModelShape, Transformer, TransformerConfig
from annotated.search import Hypothesis, SearchConfig
from annotated.tokens import Tokenizer
from annotated.training import fingerprint

__all__ = [
    "FORMAT", "read_recipe", "run_folder", "read_metrics", "validations",
    "results_of", "SCORES", "best_step", "Run", "FIRST", "first_model",
    "with_precision", "TUNED", "NOISE", "going_on", "old_corpus",
    "begin_run", "FREE", "resume_run", "MAX_SOURCE", "Translation",
    "one_line",
]  # fmt: skip


# E9-recipes.md: A run and its folder
FORMAT = 2  # of a run folder; 1, the first, had no number


def read_recipe(folder: Path) -> Recipe:
    """The recipe of a run folder. RunError if it is missing, damaged or
    of a later format.
    """
    return _read(folder).recipe


def run_folder(name: Path) -> Path:
    """name, or, where there is no such folder, that of the run of this
    name that comes with the package.
    """
    own = Path(str(resources.files("annotated"))) / "runs" / name
    shipped = len(name.parts) == 1 and own.is_dir()
    return own if shipped and not name.exists() else name


@dataclass(frozen=True)
class _About:
    """What recipe.json holds: see Run."""

    recipe: Recipe
    format: int
    fingerprints: dict[str, int]
    first: str


def _read(folder: Path) -> _About:
    path = folder / "recipe.json"
    if not path.is_file():
        raise RunError(
            f"{folder} is not a run folder, or is incomplete: it has no "
            "recipe.json"
        )
    try:
        values = dict(json.loads(path.read_text("utf-8")))
        form = values.pop("format", 1)
        if form not in (1, FORMAT):
            raise RunError(
                f"{folder} has format {form}, but this version reads "
                f"formats 1 and {FORMAT}: use the version that made it"
            )
        prints = dict(values.pop("fingerprints", {}))
        first = str(values.pop("first", ""))
        return _About(recipe_of(values), form, prints, first)
    except RunError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error!r}") from None


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """What a run has logged, in order: {"step": …, "loss": …, …} for steps,
    {"step": …, "valid": {…}} for validations.
    """
    path, found = folder / "metrics.jsonl", []
    if path.exists():
        for line in path.read_text("utf-8", errors="replace").split("\n"):
            with suppress(ValueError):  # cut off when a run was killed
                found.append(json.loads(line))
    return [e for e in found if isinstance(e, dict) and "step" in e]


def validations(folder: Path) -> dict[int, float]:
    """A run's validation nll, by step."""
    notes = [e for e in read_metrics(folder) if "valid" in e]
    return {e["step"]: e["valid"]["nll"] for e in notes}


def results_of(folder: Path) -> dict[str, dict[str, Any]]:
    """What a run folder knows of its scores, by split: those of the end
    of training, and those that evaluate --keep has left. RunError if one
    of the files is damaged.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, key in (("summary.json", "valid"), (SCORES, None)):
        path = folder / name
        if not path.is_file():
            continue
        try:
            values = dict(json.loads(path.read_text("utf-8")))
            parts = values if key is None else {key: values.get(key, {})}
            for split, scores in parts.items():
                found[split] = found.get(split, {}) | dict(scores)
        except (TypeError, ValueError) as error:
            raise RunError(f"{path} is damaged: {error}") from None
    return {split: scores for split, scores in found.items() if scores}


SCORES = "scores.json"


def best_step(folder: Path) -> int | None:
    """The step of a run's lowest validation nll; None if there is none."""
    nll = validations(folder)
    return min(nll, key=nll.__getitem__, default=None)


@dataclass(frozen=True)
class Run:
    """A run folder in memory: recipe, tokenizers and model; and the models
    of other runs, if any, that vote when it translates. fingerprints are
    those of the corpora that it trains and validates on, first the SHA-256
    of first.safetensors, if it went on from another run.
    """

    recipe: Recipe
    source: Tokenizer
    target: Tokenizer
    model: Transformer
    others: tuple[Transformer, ...] = ()
    fingerprints: Mapping[str, int] = field(default_factory=dict)
    first: str = ""

    def write(self, folder: Path) -> None:
        """Write the tokenizers, then the recipe, whose presence marks the
        folder as complete.
        """
        self.source.save(folder / "source.json")
        self.target.save(folder / "target.json")
        self.write_recipe(folder)

    def write_recipe(self, folder: Path) -> None:
        """Write recipe.json alone, in place of the one that is there."""
        values = {
            "format": FORMAT,
            "fingerprints": dict(self.fingerprints),
            **({"first": self.first} if self.first else {}),
            **dataclasses.asdict(self.recipe),
        }
        write_json(folder / "recipe.json", values)

    @classmethod
    def as_begun(cls, folder: Path) -> Run:
        """The run as begin_run left it, with its initial weights.
        RunError if a part is missing, damaged or inconsistent.
        """
        run = cls._drawn(folder)
        if run.first:
            path = folder / FIRST
            load_weights(run.model, path)
            if file_hash(path) != run.first:
                raise RunError(
                    f"{path} is not what {folder} began with: by its "
                    "checksum, it has changed"
                )
        return run

    @classmethod
    def _drawn(cls, folder: Path) -> Run:
        """The run with weights drawn by its seed, wherever it began."""
        about = _read(folder)
        try:
            source = load_tokenizer(folder / "source.json")
            target = load_tokenizer(folder / "target.json")
            model = first_model(about.recipe, source, target)
        except ValueError as error:
            raise RunError(f"{folder} is damaged: {error}") from None
        return cls(
            about.recipe, source, target, model,
            fingerprints=about.fingerprints, first=about.first,
        )  # fmt: skip

    @classmethod
    def open(cls, folder: Path, *others: Path, device: str = "cpu") -> Run:
        """Read a run folder, with the weights of its model.safetensors, or
        of its newest checkpoint if training has not finished; and those of
        others, whose models vote. The run "pocket" comes with the package.
        RunError if a part is missing or inconsistent.
        """
        folder = run_folder(folder)
        run = cls._drawn(folder)
        places = [folder, *checkpoints(folder / "checkpoints")[::-1]]
        files = [p / "model.safetensors" for p in places]
        found = next((file for file in files if file.exists()), None)
        if found is None:
            raise RunError(f"{folder} has no weights yet: train it first")
        load_weights(run.model, found)
        run.model.to(device).eval()
        for path in others:
            other = cls.open(path, device=device)
            for side in ("source", "target"):
                one, two = (getattr(r, side) for r in (run, other))
                if not same_tokens(one, two):
                    raise RunError(
                        f"{path} and {folder} cannot vote together: their "
                        "vocabularies differ"
                    )
            voting = (*run.others, other.model)
            run = dataclasses.replace(run, others=voting)
        return run

    # E9-recipes.md: Translating lines
    def translate(
        self,
        lines: Sequence[str],
        search: SearchConfig | None = None,
        batch_tokens: int = 2000,
        workers: int = 1,
        guide: Guide | None = None,
    ) -> list[list[Translation]]:
        """The nbest translations of each line, best first (see
        search_in_order). A blank line stays blank. A line of more than
        MAX_SOURCE tokens is translated in pieces, and only their best
        translations are joined. RunError if a worker dies.
        """
        search = search or self.recipe.search
        models = [self.model, *self.others]
        most = min(_most_source(m.config, search) for m in models)
        pieces, owner = [], []
        for i, ids in enumerate(self.source.encode(lines)):
            own = in_parts(self.source, ids, most)
            own = own if lines[i].strip() else []
            pieces += own
            owner += [i] * len(own)
        found: list[list[list[Hypothesis]]] = [[] for _ in lines]
        try:
            results = search_in_order(
                models, pieces, search, batch_tokens,
                workers=workers, guide=guide,
            )  # fmt: skip
        except WorkerError as error:
            raise RunError(
                f"a search process failed ({error}), perhaps for lack of "
                "memory: try fewer workers or a smaller batch_tokens"
            ) from None
        for i, hypotheses in zip(owner, results, strict=True):
            found[i].append(hypotheses)
        return [self._texts(parts) for parts in found]

    def _texts(self, parts: list[list[Hypothesis]]) -> list[Translation]:
        """The translations of a line, joined from those of its parts."""
        if not parts:
            return [Translation("", 0.0, 0.0)]
        ranks = list(zip(*parts))
        found = []
        for pieces in ranks if len(parts) == 1 else ranks[:1]:
            texts = self.target.decode([piece.ids for piece in pieces])
            score = sum(piece.score for piece in pieces) / len(pieces)
            total = sum(piece.log_probability for piece in pieces)
            text = " ".join(map(one_line, texts))
            found.append(Translation(text, score, total))
        return found


FIRST = "first.safetensors"


def first_model(
    recipe: Recipe, source: Tokenizer, target: Tokenizer
) -> PackedTransformer:
    """The model with its initial weights, drawn with the recipe's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        return PackedTransformer(recipe.config(len(source), len(target)))


def _corpora(data: Data) -> tuple[Corpus, Corpus]:
    """The corpora to train and validate on. RunError if a sentence is too
    long for learned positions.
    """
    corpora = data.corpus("train"), data.corpus("valid")
    if count := data.recipe.valid_pairs:
        corpora = corpora[0], corpora[1].first(count)
    model = data.recipe.model
    sides = [
        side for corpus in corpora for side in (corpus.src, corpus.tgt)
    ]
    longest = 1 + max(int(side.lengths.max()) for side in sides)
    if model.positions == "learned" and longest > model.max_len:
        raise RunError(
            f"{data.recipe.data} has a sentence of {longest} tokens: "
            f"max_len must be at least that, not {model.max_len}"
        )
    return corpora


def with_precision(recipe: Recipe, device: str) -> Recipe:
    """The recipe with precision auto resolved; prints the choice."""
    if recipe.training.precision == "auto":
        choice, reason = pick_precision(device)
        print(f"precision {choice} on {device}: {reason}", file=sys.stderr)
        recipe = recipe.changed(precision=choice)
    if (recipe.training.precision, device) == ("float16", "cpu"):
        print(
            "float16 is emulated on a CPU, slowly: use it only to try "
            "what a GPU would do",
            file=sys.stderr,
        )
    return recipe


# E9-recipes.md: Where another run has ended
TUNED = (  # what is fitted in a run that goes on from another
    *("dropout", "batch_tokens", "max_steps", "warmup", "rate"),
    *("cooldown", "save_every"),
)
NOISE = "dropout", "attention_dropout", "activation_dropout"


def going_on(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe for going on from the run in folder: with its shape,
    tokens, languages and search, fitted gently, and with its data to look
    back at, if they are on this machine. RunError if it is no run.
    """
    folder = run_folder(folder)
    begun = read_recipe(folder)
    taken = vars(begun.model) | vars(begun.search)
    taken |= {n: getattr(begun, n) for n in ("vocab", "tokenizer")}
    ways = {"source": begun.source, "target": begun.target}
    if not ways.items() & {"source": "source", "target": "target"}.items():
        taken |= ways
    here = Path(begun.data).is_dir() or (
        begun.data in registry() and prepared_data(begun) is not None
    )
    return recipe.changed(
        **taken,
        init=str(folder.resolve()),
        old_data=begun.data if here else None,
        curriculum=0,
        fit=TUNED,
    )


def _check_shape(recipe: Recipe, first: Run) -> None:
    """RunError, naming the field, unless the weights of first fit."""
    for name in ModelShape.__dataclass_fields__:
        asked = getattr(recipe.model, name)
        there = getattr(first.recipe.model, name)
        if name not in NOISE and asked != there:
            raise RunError(
                f"{recipe.init} has {name} {there}, and a run that goes on "
                f"from it has the same: it cannot have {asked}"
            )


def old_corpus(
    recipe: Recipe, tokenizers: tuple[Tokenizer, Tokenizer]
) -> Corpus | None:
    """The validation pairs of old_data; None if the recipe has none."""
    if recipe.old_data is None:
        return None
    data = open_data(recipe.changed(data=recipe.old_data), tokenizers)
    corpus = data.corpus("valid")
    count = recipe.valid_pairs
    return corpus.first(count) if count else corpus


# E9-recipes.md: Begun once
def _fitted(
    recipe: Recipe,
    corpus: Corpus,
    source: Tokenizer,
    target: Tokenizer,
    device: str,
) -> Recipe:
    """fitted with this machine's measured speed; prints the result."""
    gpu = torch.device(device).type == "cuda"
    here = {
        "device": torch.cuda.get_device_name(device) if gpu else device,
        "threads": torch.get_num_threads(),
        "corpus": fingerprint(corpus),
    }
    slowed = False

    def speed(recipe: Recipe) -> float:
        config = recipe.config(len(source), len(target))
        how = dataclasses.asdict(recipe.training)
        names = "batch_tokens", "precision", "compile", "clip", "seed"

        def measure() -> tuple[float, bool]:
            nonlocal slowed
            model = first_model(recipe, source, target).to(device)
            found, busy = training_speed(model, corpus, recipe.training)
            slowed = slowed or busy
            return found, not busy

        about = here | dataclasses.asdict(config)
        about |= {name: how[name] for name in names}
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        return processes * kept("speed", about, measure)

    tokens = int(corpus.tgt.lengths.sum())
    made = fitted(recipe, len(corpus), tokens, speed)
    if slowed:
        print(
            "other programs keep this machine busy: fitted to what one "
            "thread does without them",
            file=sys.stderr,
        )
    if made != recipe.changed(fit=()):
        print(described(made, recipe), file=sys.stderr)
    return made


def _fingerprints(train: Corpus, valid: Corpus) -> dict[str, int]:
    return {"train": fingerprint(train), "valid": fingerprint(valid)}


def _with_init(recipe: Recipe) -> Recipe:
    """The recipe with the whole path of the run that it goes on from."""
    if recipe.init is None:
        return recipe
    folder = run_folder(Path(recipe.init))
    return recipe.changed(init=str(folder.resolve()))


def begin_run(
    recipe: Recipe, folder: Path, device: str = "cpu"
) -> tuple[Run, Corpus, Corpus]:
    """Create a run folder. Returns the run, with its initial weights, and
    the corpora to train and validate it on.

    RunError if the folder is not empty; DataError.
    """
    check_new(folder)
    recipe = _with_init(recipe)
    first = None if recipe.init is None else Run.open(Path(recipe.init))
    tokenizers = None
    if first is not None:
        _check_shape(recipe, first)
        tokenizers = first.source, first.target
    data = open_data(recipe, tokenizers)
    source, target = data.tokenizers()  # fails if there is no data
    old_corpus(data.recipe, (source, target))  # fails if it does not fit
    recipe = with_precision(data.recipe, device)
    for line in data.notes:
        print(line, file=sys.stderr)
    corpora = _corpora(data)
    if recipe.fit:
        recipe = _fitted(recipe, corpora[0], source, target, device)
    model = first_model(recipe, source, target)
    prints = _fingerprints(*corpora)
    run = Run(recipe, source, target, model, fingerprints=prints)
    # where it is missing later, somebody has deleted it
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    try:
        if first is not None:
            path = folder / FIRST
            with replacing(path) as fresh:
                write_tensors(dict(first.model.named_parameters()), fresh)
            run = dataclasses.replace(run, first=file_hash(path))
            load_weights(run.model, path)
        run.write(folder)
    except BaseException:  # a full disk, say: the folder is new again
        for name in ("recipe.json", "source.json", "target.json", FIRST):
            (folder / name).unlink(missing_ok=True)
        (folder / "checkpoints").rmdir()
        raise
    return run, *corpora


FREE = {f.name for f in dataclasses.fields(SearchConfig)} | {
    *("about", "data", "max_steps", "max_minutes", "save_minutes"),
    *("micro_tokens", "old_data"),
    *("rate", "warmup", "cooldown", "clip", "precision", "compile"),
    *("dropout", "attention_dropout", "activation_dropout"),
    "label_smoothing",
}


def resume_run(recipe: Recipe, folder: Path) -> tuple[Run, Corpus, Corpus]:
    """Like begin_run, for an existing run; writes nothing. RunError if
    recipe differs from the run's in a field that is not in FREE, if the
    pairs are others, or if the folder is of an earlier format.
    """
    run = Run.as_begun(folder)
    if _read(folder).format != FORMAT:
        raise RunError(
            f"{folder} was made by an earlier version: this one can use "
            "it, but not continue it; train into another --out"
        )
    if recipe.fit:  # it was fitted when the run began
        recipe = run.recipe
    if recipe.training.precision == "auto":  # resolved then, too
        recipe = recipe.changed(precision=run.recipe.training.precision)
    recipe = _with_init(recipe)
    tokenizers = run.source, run.target
    data = open_data(recipe, tokenizers)
    recipe, begun = data.recipe, run.recipe.flat()
    for name, new in recipe.unlike(run.recipe).items():
        if name not in FREE:
            raise RunError(
                f"{folder} was started with {name} {begun[name]!r}: resume "
                f"it with that; {new!r} needs a new run"
            )
    if recipe != run.recipe:
        line = described(recipe, run.recipe, "resuming with")
        print(line, file=sys.stderr)
        model = first_model(recipe, *tokenizers)
        if run.first:
            model.load_state_dict(run.model.state_dict())
        run = dataclasses.replace(run, recipe=recipe, model=model)
    corpora = _corpora(data)
    found = _fingerprints(*corpora)
    others = [s for s in found if found[s] != run.fingerprints.get(s)]
    if others:
        raise RunError(
            f"the pairs of {' and '.join(others)} in {recipe.data} are not "
            f"those that {folder} was started with: resume it with them, "
            "or start a new run"
        )
    return run, *corpora


# E9-recipes.md: Translating lines
MAX_SOURCE = 512


@dataclass(frozen=True)
class Translation:
    """A translated line, its score and its log-probability."""

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
            f"extra {search.extra} is too big for max_len {config.max_len}"
        )
    return most
