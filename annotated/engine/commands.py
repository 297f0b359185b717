"""annotated.engine.commands.

Exported from the book; edit the chapter, then run `make export`.

- E12-command-line.md: The command line's source
- E18-treebanks.md: Treebanks
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import tyro
from safetensors import SafetensorError

from annotated.checkpoints import (
    average_weights,
    checkpoints,
    choose_checkpoints,
    save_weights,
)
from annotated.costs import dry_run
from annotated.engine.data import open_data
from annotated.engine.distributed import (
    gather_interleaved,
    process_group,
    rank,
    rank_zero_first,
    rank_zero_only,
    world_size,
)
from annotated.engine.errors import DataError, RunError, UsageError
from annotated.engine.export import export_run
from annotated.engine.machine import pick_device, pick_precision
from annotated.engine.prepare import (
    Preparation,
    Prepared,
    of_files,
    of_folder,
    prepare,
    registered,
    usual_folder,
)
from annotated.engine.recipes import RECIPES, Recipe
from annotated.engine.registry import data_folder, registry
from annotated.engine.runner import train_recipe, with_micro_tokens
from annotated.engine.runs import (
    Run,
    Translation,
    read_metrics,
    read_recipe,
    with_precision,
)
from annotated.engine.text import (
    SYNTHETIC,
    read_lines,
    read_pair,
    splits_of,
)
from annotated.engine.treebanks import (
    TreeWishes,
    parse_lines,
    prepare_trees,
    tree_scores,
)
from annotated.evaluation import compare, score
from annotated.search import SearchConfig

__all__ = [
    "Command",
    "PairFiles",
    "Prepare",
    "data",
    "Train",
    "recipes",
    "train",
    "Translate",
    "translate",
    "Evaluate",
    "evaluate",
    "Average",
    "average",
    "Export",
    "export",
    "Treebank",
    "treebank",
    "Parse",
    "parse",
]


# E12-command-line.md: What the subcommands share
Command = TypeVar("Command")


def _parse(
    kind: type[Command],
    args: list[str],
    name: str,
    default: Command | None = None,
) -> Command:
    """A subcommand from its options. Where they are wrong, tyro says so
    and exits with code 2.
    """
    prog = f"annotated {name}"
    if default is None:
        return tyro.cli(kind, args=args, prog=prog)
    return tyro.cli(kind, args=args, prog=prog, default=default)


@contextmanager
def _asked() -> Iterator[None]:
    """A ValueError is about what the command line asks for."""
    try:
        yield
    except (DataError, RunError, UsageError):
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error


# E12-command-line.md: Data
@dataclasses.dataclass(frozen=True, kw_only=True)
class PairFiles:
    """The files of a pair, and what is held out of them."""

    src: Path | None = None
    """pair: the file to translate from"""

    tgt: Path | None = None
    """pair: its translation, line by line"""

    tsv: Path | None = None
    """pair: one file with both in two columns, instead"""

    valid_src: Path | None = None
    """pair: a file for validation; unless given, some are held out"""

    valid_tgt: Path | None = None
    """pair: its translation"""

    test_src: Path | None = None
    """pair: a file for the test; unless given, some are held out"""

    test_tgt: Path | None = None
    """pair: its translation"""

    hold_out: int = 100
    """pair: of how many source sentences one is held out"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepare:
    """Clean and encode a corpus into a folder that opens at once."""

    name: tyro.conf.Positional[str]
    """a data set, a folder of your files, or pair"""

    out: Path | None = None
    """the folder to be made"""

    files: tyro.conf.OmitArgPrefixes[PairFiles] = PairFiles()

    source: str | None = None
    """the language translated from"""

    target: str | None = None
    """the language translated into"""

    vocab: int | None = None
    """tokens in a vocabulary, at most"""

    tokenizer: Literal["bpe", "wordpiece", "word"] | None = None
    """what a token is"""

    separate: tyro.conf.FlagCreatePairsOff[bool] = False
    """one vocabulary per side"""

    vocab_pairs: int | None = None
    """pairs that the vocabulary is learned from, at most"""

    min_words: int | None = None
    """leave out pairs with fewer words on a side"""

    max_words: int | None = None
    """leave out pairs with more words on a side"""

    ratio: float | None = None
    """leave out pairs with one side this many times longer"""

    lower: tyro.conf.FlagCreatePairsOff[bool] = False
    """lower case only"""

    unescape: tyro.conf.FlagCreatePairsOff[bool] = False
    """write out &quot; and the like"""

    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print the report as JSON, one object on one line"""


def _preparation(wish: Prepare) -> tuple[Preparation, Path]:
    """What a command line asks to prepare, and where to."""
    names = ("source", "target", "vocab", "tokenizer", "vocab_pairs")
    changes = {n: getattr(wish, n) for n in names if getattr(wish, n)}
    if wish.separate:
        changes["shared"] = False
    if wish.name == "pair":
        made = _pair(wish.files, changes)
    elif wish.name in registry():
        made = registered(wish.name, **changes)
    elif Path(wish.name).is_dir():
        if not (wish.source and wish.target):
            raise UsageError(
                "data prepare: a folder needs --source, --target"
            )
        made = of_folder(Path(wish.name), **changes)
    else:
        raise UsageError(
            f"data prepare: no data set {wish.name!r}; there are pair, "
            f"{', '.join(registry())}, or a folder"
        )
    rules = ("min_words", "max_words", "ratio", "lower", "unescape")
    cleaning = {n: getattr(wish, n) for n in rules if getattr(wish, n)}
    with _asked():
        cleaned = dataclasses.replace(made.cleaning, **cleaning)
    made = dataclasses.replace(made, cleaning=cleaned)
    if wish.out is None and wish.name not in registry():
        raise UsageError("data prepare: --out says where to put it")
    usual = usual_folder(made.name, made.source, made.target)
    return made, wish.out or usual


def _pair(wish: PairFiles, changes: dict[str, Any]) -> Preparation:
    """The files that a command line names, as a preparation."""
    if wish.tsv and not (wish.src or wish.tgt):
        src, tgt = wish.tsv, None
    elif wish.src and wish.tgt and not wish.tsv:
        src, tgt = wish.src, wish.tgt
    else:
        raise UsageError(
            "data prepare pair: give --src and --tgt, or --tsv"
        )
    others: dict[str, Any] = {"hold_out": wish.hold_out}
    for split in ("valid", "test"):
        one = getattr(wish, f"{split}_src")
        other = getattr(wish, f"{split}_tgt")
        if (one is None) != (other is None):
            raise UsageError(
                f"data prepare pair: --{split}-src and --{split}-tgt go "
                "together"
            )
        others[split] = (one, other) if one else None
    with _asked():
        return of_files(src, tgt, **others, **changes)


def data(args: list[str]) -> None:
    """annotated data list | show NAME | prepare NAME …"""
    what, rest = (args[0] if args else "--help"), args[1:]
    if what in ("-h", "--help"):
        print("usage: annotated data list | show NAME | prepare NAME …")
    elif what == "list":
        for name, entry in registry().items():
            print(f"{name:12} {entry['about']}; {_here(name, entry)}")
            print(f"{'':12} {entry['title']}")
    elif what == "show" and len(rest) == 1:
        print(_show(rest[0]))
    elif what == "prepare":
        wish = _parse(Prepare, rest, "data prepare")
        made = prepare(*_preparation(wish))
        report = made.report() + f"\n{made.folder}: {made.fingerprint}"
        print(json.dumps(made.manifest["splits"]) if wish.json else report)
    else:
        raise UsageError("data: list, show NAME, or prepare NAME")


def _here(name: str, entry: dict[str, Any]) -> str:
    """Whether a data set lies in the data folder."""
    folder = data_folder() / entry.get("folder", name)
    full = folder.is_dir() and any(folder.iterdir())
    ready = list(data_folder().glob(f"prepared/{name}.*/corpus.json"))
    return "prepared" if ready else "here" if full else "to be fetched"


def _show(name: str) -> str:
    """The card of a data set, or how a folder was prepared."""
    if (Path(name) / "corpus.json").is_file():
        found = Prepared.open(Path(name))
        found.check()
        settings = json.dumps(found.settings, indent=1, ensure_ascii=False)
        return f"{settings}\n{found.report()}\n{found.fingerprint}: whole"
    known = registry()
    if name not in known:
        raise DataError(
            f"no data set {name!r}; there are {', '.join(known)}, or a "
            "folder that data prepare made"
        )
    entry = known[name]
    rows = {
        "title": entry["title"],
        "pairs": entry["about"],
        "languages": ", ".join(entry["languages"]),
        "splits": ", ".join(splits_of(entry)),
        "clean": entry.get("clean", "as it is"),
        "from": entry["url"],
        "homepage": entry["homepage"],
        "licence": entry["licence"],
        "cite": entry["citation"],
        "folder": f"{data_folder() / entry.get('folder', name)}",
        "state": _here(name, entry),
    }
    return "\n".join(f"{key:10} {value}" for key, value in rows.items())


# E12-command-line.md: Train
@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """Train a recipe. Its fields are options, with its values."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]

    out: Path | None = None
    """the run's folder, new unless you resume"""

    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """go on from the newest checkpoint in --out"""

    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """train nothing; say what it would take"""

    shard: tyro.conf.FlagCreatePairsOff[bool] = False
    """spread the weights over the processes"""

    device: str | None = None
    """cpu, cuda or mps; unless given, a GPU where there is one"""

    def run(self) -> None:
        """Train, and print the run's summary as JSON."""
        if self.out is None and not self.dry_run:
            raise UsageError("train: give --out, a folder for the run")
        with process_group(self.device) as own:
            device = pick_device(own)
            if self.out is None or self.dry_run:
                rank_zero_only(lambda: self._foresee(device))
                return
            summary = train_recipe(
                with_micro_tokens(self.recipe, device),
                self.out,
                resume=self.resume or _started_again(self.out),
                device=device,
                shard=self.shard,
            )
            if rank() == 0:
                print(json.dumps(summary))

    def _foresee(self, device: str) -> None:
        """Measure this device, and print what the run would take."""
        recipe = with_precision(self.recipe, device)
        recipe = with_micro_tokens(recipe, device)
        config = recipe.model.config(recipe.vocab, recipe.vocab)
        print(dry_run(config, recipe.training, device))


def _started_again(out: Path) -> bool:
    """Whether a launcher repeats this command for a run that was begun."""
    counts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    again = any(os.environ.get(name, "0") != "0" for name in counts)
    return again and (out / "recipe.json").is_file()


def recipes(args: list[str]) -> None:
    """annotated recipes: what can be trained."""
    if args and args[0] not in ("-h", "--help"):
        raise UsageError(f"recipes: it takes no {args[0]!r}")
    width = max(map(len, RECIPES))
    for name, recipe in RECIPES.items():
        print(f"{name:{width}}  {recipe.about}")


def train(args: list[str]) -> None:
    """annotated train RECIPE …"""
    if not args or args[0] in ("-h", "--help"):
        print("usage: annotated train RECIPE --out RUN\n")
        recipes([])
        return
    if args[0] not in RECIPES:
        raise UsageError(
            f"no recipe {args[0]!r}; there are {', '.join(RECIPES)}"
        )
    name, rest = f"train {args[0]}", args[1:]
    wish = _parse(Train, rest, name, Train(recipe=RECIPES[args[0]]))
    if wish.resume and wish.out is not None:
        # what is not given is as the run has it, not as the recipe has it
        begun = read_recipe(wish.out)
        # a recipe can be given any data of one's own, and pair has none
        known = {*SYNTHETIC, *registry()} & {begun.data}
        if known and wish.recipe.data not in (begun.data, "pair"):
            raise RunError(
                f"{wish.out} was begun with data {begun.data!r}, which "
                f"{name} does not train on"
            )
        wish = _parse(Train, rest, name, Train(recipe=begun))
    wish.run()


# E12-command-line.md: Translate
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Use:
    """What translate and evaluate have in common."""

    run: Path
    """the run's folder"""

    ensemble: tuple[Path, ...] = ()
    """other runs that vote at every step"""

    beam: int | None = None
    """hypotheses kept at each step; unless given, the recipe's"""

    alpha: float | None = None
    """exponent of the length penalty; unless given, the recipe's"""

    extra: int | None = None
    """tokens that a translation may be longer than its source"""

    device: str | None = None
    """cpu, cuda or mps; unless given, a GPU where there is one"""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """the numbers to search with; auto takes what is faster here"""

    workers: int | None = None
    """processes that search on a CPU; unless given, one per core"""

    def open(self) -> Run:
        """The run and those that vote with it, on the device. RunError or
        UsageError, before any work.
        """
        device = pick_device(self.device)
        if self.workers is not None and self.workers < 1:
            raise UsageError(
                f"workers must be at least 1, not {self.workers}"
            )
        if device != "cpu" and self.workers not in (None, 1):
            raise UsageError(
                f"workers are for a CPU; {device} has no need of them"
            )
        run = _open(self.run, device)
        for folder in self.ensemble:
            other = _open(folder, device)
            try:
                run = run.with_votes_of(other)
            except ValueError as error:
                raise RunError(f"{folder}, {self.run}: {error}") from None
        choice: str = self.precision
        why = "as asked"
        if choice == "auto":
            choice, why = pick_precision(device)
        if choice == "bfloat16":
            print(f"searching in bfloat16: {why}", file=sys.stderr)
            for model in (run.model, *run.others):
                model.to(torch.bfloat16)
        return run

    def processes(self, run: Run) -> int:
        """How many processes search with this run."""
        device = next(run.model.parameters()).device.type
        # on other systems they take seconds to start
        many = device == "cpu" and sys.platform == "linux"
        return self.workers or (torch.get_num_threads() if many else 1)

    def search(self, run: Run, **changes: Any) -> SearchConfig:
        """The recipe's search with what the command line changes."""
        for name in ("beam", "alpha", "extra"):
            if getattr(self, name) is not None:
                changes[name] = getattr(self, name)
        with _asked():
            return dataclasses.replace(run.recipe.search, **changes)


def _open(folder: Path, device: str) -> Run:
    run = Run.open(folder)
    run.model.to(device)
    return run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translate(_Use):
    """Translate standard input to standard output, line by line."""

    nbest: int = 1
    """translations per line; if several: line number, score, text"""

    scores: tyro.conf.FlagCreatePairsOff[bool] = False
    """write the score and a tab before each translation"""

    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """write JSON, an object for each line of input"""

    batch_tokens: int = 2000
    """tokens of source that are searched at once"""

    def answer(self) -> None:
        """Read, translate, write, until the input ends."""
        if self.batch_tokens < 1:
            raise UsageError(
                "translate: batch_tokens must be at least 1, not "
                f"{self.batch_tokens}"
            )
        run = self.open()
        search = self.search(run, nbest=self.nbest)
        number, workers = 0, self.processes(run)
        for lines in _arriving():
            for found in run.translate(
                lines, search, self.batch_tokens, workers
            ):
                for line in self.lines(number, found):
                    line = f"{line}\n"
                    sys.stdout.buffer.write(line.encode("utf-8", "replace"))
                number += 1
            sys.stdout.buffer.flush()

    def lines(self, number: int, found: list[Translation]) -> list[str]:
        """What is written for line number of the input."""
        if self.json:
            each = [dataclasses.asdict(one) for one in found]
            answer = {"line": number, "translations": each}
            return [json.dumps(answer, ensure_ascii=False)]
        if self.nbest > 1:
            return [f"{number}\t{h.score:.4f}\t{h.text}" for h in found]
        if self.scores:
            return [f"{h.score:.4f}\t{h.text}" for h in found]
        return [h.text for h in found]


def translate(args: list[str]) -> None:
    """annotated translate …"""
    _parse(Translate, args, "translate").answer()


def _arriving() -> Iterator[list[str]]:
    """The lines of standard input that have arrived, again and again; only
    \\n ends one.
    """
    begun: list[bytes] = []  # of a line whose end has not come
    source: Any = sys.stdin.buffer
    while data := source.read1(2**16):
        first, *others = data.split(b"\n")
        begun.append(first)
        if others:
            yield _decoded([b"".join(begun), *others[:-1]])
            begun = others[-1:]
    if any(begun):
        yield _decoded([b"".join(begun)])


def _decoded(lines: list[bytes]) -> list[str]:
    return [
        line.decode("utf-8", "replace").removesuffix("\r") for line in lines
    ]


# E12-command-line.md: Evaluate
@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(_Use):
    """Translate a test set and score it against its references."""

    split: str | None = None
    """a split of the recipe's data: valid or test"""

    src: Path | None = None
    """a file to translate instead; needs --ref"""

    ref: Path | None = None
    """its reference translations"""

    against: Path | None = None
    """another run, or a file of translations, to compare with"""

    split_compounds: tyro.conf.FlagCreatePairsOff[bool] = False
    """add BLEU as the paper counted it: words split at hyphens"""

    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print JSON, one object on one line"""

    def print_scores(self) -> None:
        """Translate, score, compare, print."""
        with process_group(self.device) as device:
            on = dataclasses.replace(self, device=device)
            run, src, ref, rival = rank_zero_first(on._begin)
            started = time.perf_counter()
            found = self._translated(run, src)
            seconds = round(time.perf_counter() - started, 2)
            if isinstance(rival, Run):
                rival = self._translated(rival, src)
            if rank():
                return  # one process speaks
        if run.recipe.target == "tree":
            scores = tree_scores(src, found, ref)
        else:
            scores = score(found, ref, self.split_compounds)
        scores |= {"seconds": seconds}
        if rival is not None:
            tests = compare(found, rival, ref)
            scores["against"] = score(rival, ref, self.split_compounds) | {
                f"{name}_difference": test for name, test in tests.items()
            }
        print(json.dumps(scores) if self.json else _table(scores))

    def _translated(self, run: Run, src: list[str]) -> list[str]:
        """What a run makes of src, each process of a part."""
        own = run.translate(
            src[rank() :: world_size()],
            self.search(run),
            workers=self.processes(run),
        )
        return gather_interleaved([best[0].text for best in own])

    def _begin(
        self,
    ) -> tuple[Run, list[str], list[str], Run | list[str] | None]:
        """The run, the text, its references, and what to compare with, if
        the command line makes sense.
        """
        if (self.split is None) == (self.src is None):
            raise UsageError("evaluate: give --split, or --src with --ref")
        if (self.src is None) != (self.ref is None):
            raise UsageError("evaluate: --src and --ref go together")
        run = self.open()
        if self.src is not None and self.ref is not None:
            src, ref = read_pair(self.src, self.ref)
        else:
            src, ref = open_data(run.recipe).text(str(self.split))
        return run, src, ref, self._rival(run, src)

    def _rival(self, run: Run, src: list[str]) -> Run | list[str] | None:
        """The other run, or what another system made of src."""
        if self.against is None:
            return None
        if run.recipe.target == "tree":
            raise UsageError("evaluate: --against compares translations")
        if self.against.is_dir():
            other = _open(self.against, pick_device(self.device))
            ours, theirs = (
                (r.recipe.source, r.recipe.target) for r in (run, other)
            )
            if ours != theirs:
                raise RunError(
                    f"{self.against} translates {' to '.join(theirs)}, "
                    f"{self.run} {' to '.join(ours)}"
                )
            return other
        lines = read_lines(self.against)
        if len(lines) != len(src):
            raise UsageError(
                f"{self.against} has {len(lines)} lines, the test set "
                f"{len(src)}"
            )
        return lines


def evaluate(args: list[str]) -> None:
    """annotated evaluate …"""
    _parse(Evaluate, args, "evaluate").print_scores()


def _table(scores: dict[str, Any]) -> str:
    """Scores for a person: a line each, the other system's beside."""
    others = scores.get("against", {})
    rows = []
    for name, value in scores.items():
        if name != "against":
            other = others.get(name, value)
            beside = "" if other == value else other
            rows.append(f"{name:15} {value!s:12} {beside}".rstrip())
    for name, test in others.items():
        if name.endswith("_difference"):
            rows.append(
                f"{name:15} {test['difference']:+.2f}, in 95 % of draws "
                f"{test['low']:+.2f} to {test['high']:+.2f}, "
                f"p = {test['p']:.3g}"
            )
    return "\n".join(rows)


# E12-command-line.md: Average, export
@dataclasses.dataclass(frozen=True, kw_only=True)
class Average:
    """Average checkpoints of a run into a new run folder."""

    run: Path
    """the run's folder"""

    out: Path
    """the new folder"""

    last: int | None = None
    """the last so many checkpoints; unless given, all"""

    best: int | None = None
    """instead: those with the lowest validation loss"""

    def write(self) -> None:
        """Choose, average, write; print the steps as JSON."""
        if self.last is not None and self.best is not None:
            raise UsageError("average: give --last or --best, not both")
        self._check_out()
        run = Run.as_begun(self.run)
        with _asked():
            chosen = self._chosen()
            files = [p / "model.safetensors" for p in chosen]
            mean = average_weights(files)
        own = dict(run.model.named_parameters())
        shapes = {name: p.shape for name, p in own.items()}
        if shapes != {name: w.shape for name, w in mean.items()}:
            raise RunError(f"{chosen[0]} does not fit the model of its run")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(mean[name])
        self._keep(run)
        print(json.dumps({"averaged": [int(p.name) for p in chosen]}))

    def _check_out(self) -> None:
        out = self.out
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RunError(f"{out} is not empty: choose another --out")

    def _keep(self, run: Run) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        try:
            save_weights(run.model, self.out / "model.safetensors")
        except SafetensorError as error:
            raise RunError(f"{self.out}: not written ({error})") from None
        run.write(self.out)

    def _chosen(self) -> list[Path]:
        places = checkpoints(self.run / "checkpoints")
        if not places:
            raise RunError(f"{self.run} has no checkpoints to average")
        if self.best is None:
            count = len(places) if self.last is None else self.last
            return choose_checkpoints(places, count)
        nll = {
            entry["step"]: entry["valid"]["nll"]
            for entry in read_metrics(self.run)
            if "valid" in entry
        }
        return choose_checkpoints(places, self.best, nll)


def average(args: list[str]) -> None:
    """annotated average …"""
    _parse(Average, args, "average").write()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """Hand a run's model to another program."""

    run: Path
    """the run's folder"""

    to: Literal["safetensors", "onnx", "ctranslate2"]
    """the form"""

    out: Path
    """the folder to write, new or empty"""


def export(args: list[str]) -> None:
    """annotated export …"""
    wish = _parse(Export, args, "export")
    export_run(Run.open(wish.run), wish.to, wish.out)


# E18-treebanks.md: From the command line
@dataclasses.dataclass(frozen=True, kw_only=True)
class Treebank:
    """Divide a treebank by article, into sentences and their trees."""

    bank: tyro.conf.Positional[Path]
    """a folder of .mrg files, one per article, or one file and its index"""

    out: Path
    """the folder to be made"""

    wishes: tyro.conf.OmitArgPrefixes[TreeWishes] = TreeWishes()


def treebank(args: list[str]) -> None:
    """annotated treebank PATH --out DIR …"""
    wish = _parse(Treebank, args, "treebank")
    print(json.dumps(prepare_trees(wish.bank, wish.out, wish.wishes)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parse(_Use):
    """Read sentences, words between spaces, and write their trees."""

    def answer(self) -> None:
        """A tree on a line for each line of standard input."""
        run = self.open()
        if run.recipe.target != "tree":
            raise UsageError(
                f"{self.run} was trained to write {run.recipe.target}, "
                "not trees"
            )
        for lines in _arriving():
            for tree in parse_lines(
                run, lines, self.search(run), self.processes(run)
            ):
                sys.stdout.buffer.write(f"{tree or ''}\n".encode())
            sys.stdout.buffer.flush()


def parse(args: list[str]) -> None:
    """annotated parse --run RUN …"""
    _parse(Parse, args, "parse").answer()
