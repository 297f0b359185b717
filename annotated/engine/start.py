"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

from annotated.batches import Corpus
from annotated.corpora.registry import registry
from annotated.corpora.segmentation import SegmentedCorpus
from annotated.engine.data import Data, open_data, prepared_data
from annotated.engine.distributed import rank
from annotated.engine.errors import DataError, RunError
from annotated.engine.files import check_new
from annotated.engine.fit import fitted_here
from annotated.engine.kernels import Machine, choose
from annotated.engine.machine import HALF, lacks, pick_precision
from annotated.engine.parts import PartsShape
from annotated.engine.recipes import Recipe
from annotated.engine.runs import Run, first_model, read_recipe, run_folder
from annotated.model import Transformer, TransformerConfig
from annotated.search import SearchConfig
from annotated.tokens import Tokenizer
from annotated.training import fingerprint

__all__ = [
    "begin_run", "foreseen", "with_precision", "fine_tuning", "resume_run",
]  # fmt: skip


# E9-recipes.md: A run begins
def begin_run(
    recipe: Recipe, folder: Path, device: str = "cpu"
) -> tuple[Run, Corpus, dict[str, Corpus]]:
    """Create a run folder. Returns the run, with its initial weights, the
    corpus to train on and those to validate on: "valid" and, where the
    recipe has old_data, "old".

    RunError if the folder is not empty, or the recipe does not go with
    the run in init; DataError if the data cannot be used.
    """
    check_new(folder)
    begun = _opened(recipe, device)
    recipe, source, target = begun.recipe, begun.source, begun.target
    model = first_model(recipe, source, target)
    prints = _fingerprints(begun.train, begun.sets["valid"])
    kernels = _kernels_of(device, recipe.training.precision)
    run = Run(
        recipe, source, target, model, fingerprints=prints,
        kernels=kernels | {"asked": begun.asked},
    )  # fmt: skip
    run = run.begin(folder, begun.weights)
    return run, begun.train, begun.sets


def foreseen(
    recipe: Recipe, device: str
) -> tuple[Recipe, TransformerConfig]:
    """The recipe that begin_run would fit to the corpus on this machine,
    and its model. DataError and RunError as from begin_run.
    """
    begun = _opened(recipe, device)
    sizes = len(begun.source), len(begun.target)
    return begun.recipe, begun.recipe.config(*sizes)


@dataclass(frozen=True)
class _Opened:
    """What a run begins with: see begin_run."""

    recipe: Recipe  # as it is trained
    asked: str  # the precision before one was picked
    source: Tokenizer
    target: Tokenizer
    weights: Transformer | None  # of the run that it goes on from
    train: Corpus
    sets: dict[str, Corpus]


def _opened(recipe: Recipe, device: str) -> _Opened:
    """The data of a recipe, and the recipe fitted to them."""
    recipe = _with_init(recipe)
    first = None if recipe.init is None else Run.open(Path(recipe.init))
    tokenizers = None
    if first is not None:
        _check_shape(recipe, first)
        tokenizers = first.source, first.target
    data = open_data(recipe, tokenizers)
    source, target = data.tokenizers()  # fails if there is no data
    old = _old_corpus(data.recipe, (source, target))
    asked = data.recipe.training.precision
    recipe = with_precision(data.recipe, device)
    for line in data.notes:
        print(line, file=sys.stderr)
    train, valid = _corpora(data)
    if recipe.fit:
        recipe = fitted_here(recipe, train, source, target, device)
    sets = {"valid": valid} | old
    weights = None if first is None else first.model
    return _Opened(recipe, asked, source, target, weights, train, sets)


def with_precision(recipe: Recipe, device: str) -> Recipe:
    """The recipe with precision auto resolved; prints the choice."""
    if recipe.training.precision == "auto":
        choice, reason = pick_precision(device)
        kernels = choose(Machine.at(device), choice)
        line = f"precision {choice} on {device}: {reason}; {kernels}"
        print(line, file=sys.stderr)
        recipe = recipe.changed(precision=choice)
    emulated = device == "cpu" and recipe.training.precision in HALF
    if emulated and lacks(recipe.training.precision):
        print(
            f"{recipe.training.precision} is emulated on this processor, "
            "slowly: use it only to try what another would do, or give "
            "--precision float32",
            file=sys.stderr,
        )
    return recipe


def _kernels_of(device: str, precision: str) -> dict[str, str]:
    """What a run on a device keeps: the machine, and what was chosen for
    its sentences of usual length.
    """
    machine = Machine.at(device)
    chosen = choose(machine, precision)
    level = ".".join(map(str, machine.capability))
    name = f"{machine.name} ({level})" if machine.kind == "cuda" else device
    names = {"precision": precision, "attention": chosen.attention}
    return {"machine": name} | names | {"loss": chosen.loss}


def _with_init(recipe: Recipe) -> Recipe:
    """The recipe with the whole path of the run that it goes on from."""
    if recipe.init is None:
        return recipe
    folder = run_folder(Path(recipe.init))
    return recipe.changed(init=str(folder.resolve()))


def _valid(data: Data) -> Corpus:
    """The pairs to validate on."""
    corpus, count = data.corpus("valid"), data.recipe.valid_pairs
    return corpus.first(count) if count else corpus


def _corpora(data: Data) -> tuple[Corpus, Corpus]:
    """The corpora to train and validate on. RunError if a sentence is too
    long for learned positions.
    """
    train, valid = data.corpus("train"), _valid(data)
    model = data.recipe.model
    sides = train.src, train.tgt, valid.src, valid.tgt
    longest = 1 + max(int(side.lengths.max()) for side in sides)
    if model.positions == "learned" and longest > model.max_len:
        raise RunError(
            f"{data.recipe.data} has a sentence of {longest} tokens: "
            f"max_len must be at least that, not {model.max_len}"
        )
    if data.recipe.training.bpe_dropout:
        train = SegmentedCorpus.of(train, data.tokenizers())
    return train, valid


def _fingerprints(train: Corpus, valid: Corpus) -> dict[str, int]:
    return {"train": fingerprint(train), "valid": fingerprint(valid)}


# E9-recipes.md: Where another run has ended
_FITTED_GENTLY = (  # what is fitted in a run that goes on from another
    *("dropout", "batch_tokens", "max_steps", "warmup", "rate"),
    *("cooldown", "save_every"),
)
_NOISE = "dropout", "attention_dropout", "activation_dropout"


def fine_tuning(recipe: Recipe, folder: Path) -> Recipe:
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
        fit=_FITTED_GENTLY,
    )


def _check_shape(recipe: Recipe, first: Run) -> None:
    """RunError, naming the field, unless the weights of first fit."""
    for name in PartsShape.__dataclass_fields__:
        asked = getattr(recipe.model, name)
        begun = getattr(first.recipe.model, name)
        if name not in _NOISE and asked != begun:
            raise RunError(
                f"{recipe.init} has {name} {begun}, and a run that goes on "
                f"from it has the same: it cannot have {asked}"
            )


def _old_corpus(
    recipe: Recipe, tokenizers: tuple[Tokenizer, Tokenizer]
) -> dict[str, Corpus]:
    """The validation pairs of old_data, as "old"; nothing if the recipe
    has none. DataError if they do not fit.
    """
    if recipe.old_data is None:
        return {}
    folder = Path(recipe.old_data)
    if folder.is_absolute() and not folder.is_dir():
        raise DataError(
            f"there is no folder {folder}, the data of the run that this "
            "one goes on from: say where it is with --old-data, or that "
            "it is not to be looked at with --old-data None"
        )
    data = open_data(recipe.changed(data=recipe.old_data), tokenizers)
    return {"old": _valid(data)}


# E9-recipes.md: A run is taken up again
_MAY_CHANGE = {f.name for f in dataclasses.fields(SearchConfig)} | {
    *("about", "data", "max_steps", "max_minutes", "save_minutes"),
    *("micro_tokens", "old_data"),
    *("rate", "warmup", "cooldown", "clip", "precision", "compile"),
    *("dropout", "attention_dropout", "activation_dropout"),
    *("label_smoothing", "bpe_dropout"),
}


def resume_run(
    recipe: Recipe, folder: Path, device: str = "cpu"
) -> tuple[Run, Corpus, dict[str, Corpus]]:
    """Like begin_run, for an existing run; writes nothing. RunError if
    recipe differs from the run's in a field that determines its weights,
    tokens or batches, or if the pairs are others.
    """
    run = Run.as_begun(folder)
    if recipe.fit:  # it was fitted when the run began
        recipe = run.recipe
    if recipe.training.precision == "auto":
        before = run.kernels.get("machine")
        now = _kernels_of(device, "float32")["machine"]
        if before != now and run.kernels.get("asked") == "auto":
            print(f"begun on {before}; on {now}:", file=sys.stderr)
            recipe = with_precision(recipe, device)
        else:  # resolved then, too
            same = run.recipe.training.precision
            recipe = recipe.changed(precision=same)
    recipe = _with_init(recipe)
    tokenizers = run.source, run.target
    data = open_data(recipe, tokenizers)
    recipe, begun = data.recipe, run.recipe.flat()
    for name, new in recipe.unlike(run.recipe).items():
        if name not in _MAY_CHANGE:
            raise RunError(
                f"{folder} was started with {name} {begun[name]!r}: resume "
                f"it with that; {new!r} needs a new run"
            )
    if recipe != run.recipe:
        line = recipe.described(run.recipe, "resuming with")
        if rank() == 0:
            print(line, file=sys.stderr)
        model = first_model(recipe, *tokenizers)
        if run.first:
            model.load_state_dict(run.model.state_dict())
        run = dataclasses.replace(run, recipe=recipe, model=model)
    kernels = _kernels_of(device, recipe.training.precision)
    run = dataclasses.replace(run, kernels={**run.kernels, **kernels})
    train, valid = _corpora(data)
    prints = _fingerprints(train, valid)
    others = [s for s in prints if prints[s] != run.fingerprints.get(s)]
    if others:
        raise RunError(
            f"the pairs of {' and '.join(others)} in {recipe.data} are not "
            f"those that {folder} was started with: resume it with them, "
            "or start a new run"
        )
    old = _old_corpus(recipe, tokenizers)
    return run, train, {"valid": valid} | old
