"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import io
import json
import os
import re
import sys
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import torch
import tyro

from annotated.book.paper import copy_path, keep, put_beside, words
from annotated.book.sweep import Sweep
from annotated.checkpoints import average_weights, choose_checkpoints
from annotated.cli import COMMANDS
from annotated.corpora.data import open_data
from annotated.corpora.pieces import unknown_words
from annotated.corpora.prepare import (
    Preparation,
    Prepared,
    of_files,
    of_folder,
    prepare,
    registered,
    usual_folder,
)
from annotated.corpora.reading import (
    CURES,
    decoded,
    read_lines,
    read_pair,
    splits_of,
)
from annotated.corpora.registry import data_folder, registry
from annotated.corpora.treebanks import (
    TreeOptions,
    parse_lines,
    prepare_trees,
    tree_guide,
    tree_scores,
)
from annotated.costs import dry_run
from annotated.engine.checkpoints import checkpoints
from annotated.engine.distributed import (
    all_gather,
    process_group,
    rank,
    rank_zero_only,
    world_size,
)
from annotated.engine.errors import (
    DataError,
    RunError,
    UsageError,
    check_whole,
    unknown,
)
from annotated.engine.files import (
    check_new,
    new_folder,
    write_json,
    write_text,
)
from annotated.engine.machine import HALF, pick_device, pick_precision
from annotated.engine.recipes import RECIPES, Recipe
from annotated.engine.runner import train_recipe, with_micro_tokens
from annotated.engine.runs import (
    SCORES,
    Run,
    read_recipe,
    results_of,
    run_folder,
    validations,
)
from annotated.engine.search import converted
from annotated.engine.start import fine_tuning, with_precision
from annotated.engine.tensors import write_tensors
from annotated.evaluation import compare, score
from annotated.exchange.export import FORMS, export_run
from annotated.exchange.marian import (
    cannot_leave,
    find_published,
    import_marian,
)
from annotated.model import count_parameters
from annotated.school.classroom import Classroom
from annotated.school.terminal import Exercises, Milestone, Questions
from annotated.search import SearchConfig
from annotated.tokens import Tokenizer

__all__ = [
    "Flag", "obey", "parsed", "complaint", "PLAINER", "List", "Show",
    "Prepare", "Recipes", "Train", "train", "Translate", "UTF8", "TYPED",
    "Evaluate", "Average", "Export", "Report", "Look", "Paper", "Import",
    "Treebank", "Parse", "Completion", "KINDS",
]  # fmt: skip


# E12-command-line.md: What the subcommands share
Flag = tyro.conf.FlagCreatePairsOff[bool]


def obey(name: str, args: list[str]) -> None:
    """Run a subcommand. UsageError if its options are invalid."""
    if name == "train":
        train(args)
    else:
        unset = tyro.conf.DisallowNone  # only a recipe's fields take None
        parsed(KINDS[name], name, args, config=(unset,)).act()


def parsed(kind: Any, name: str, args: list[str], **more: Any) -> Any:
    """tyro.cli, whose complaint becomes a UsageError."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.cli(
                kind, args=args, prog=f"annotated {name}", **more
            )
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
    raise UsageError(f"{name}: {complaint(said.getvalue())}")


def complaint(box: str) -> str:
    """What tyro prints in a box, on one line: title, ruler, reason,
    ruler, advice.
    """
    lines = [line.strip(" │") for line in box.strip().splitlines()][1:]
    ruled = [set(line) <= set("─-╰╯") for line in lines]
    if ruled and ruled[0]:
        lines, ruled = lines[1:], ruled[1:]
    end = ruled.index(True) if True in ruled else len(lines)
    reason, rest = " ".join(lines[:end]), " ".join(lines[end:])
    for pattern, plain in PLAINER.items():
        reason = re.sub(pattern, plain, reason)
    if "Perhaps you meant" in rest:
        alike = dict.fromkeys(re.findall(r"(?<!\w)--[a-z][\w-]*", rest))
        alike.pop("--help", None)
        reason += f": did you mean {' or '.join(list(alike)[:3])}?"
    if found := re.search(r"Available subcommands: [\w, ]+\w", rest):
        reason += f". {found[0]}"
    return reason


PLAINER = {  # what tyro says, and what we say
    r"^Error parsing [a-z.]+: ": "",
    r"^Missing from [^:]+: ": "missing: ",
    r" \(required\)": "",
    r"^Error parsing (--\S+): no type matching (\S+) could be .* from "
    r"(\[.*?\])\..*": r"\1 must be \2, not \3",
    r"^Error parsing (--\S+): invalid literal for int.*: ('.*')": (
        r"\1 must be an integer, not \2"
    ),
    r"^Error parsing (--\S+): could not convert string to float: (.*)": (
        r"\1 must be a number, not \2"
    ),
}


def _given(options: object, *names: str) -> dict[str, Any]:
    """The options that were given, by name."""
    values = ((name, getattr(options, name)) for name in names)
    # 0 equals False, but is a value
    return {n: v for n, v in values if v is not None and v is not False}


@contextmanager
def _asked() -> Iterator[None]:
    """Turn a ValueError into a UsageError."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


# E12-command-line.md: Data
@dataclasses.dataclass(frozen=True)
class List:
    """List the data sets, and which of them are on this machine."""

    def act(self) -> None:
        for name, entry in registry().items():
            print(f"{name:12} {entry['about']}; {_here(name, entry)}")
            print(f"{'':12} {entry['title']}")


def _here(name: str, entry: dict[str, Any]) -> str:
    """The state of a data set in the data folder."""
    folder = data_folder() / entry.get("folder", name)
    full = folder.is_dir() and any(folder.iterdir())
    ready = list(data_folder().glob(f"prepared/{name}.*/corpus.json"))
    return "prepared" if ready else "here" if full else "not downloaded"


@dataclasses.dataclass(frozen=True)
class Show:
    """Show the card of a data set, or how a folder was prepared."""

    name: tyro.conf.Positional[str]  # a data set, or a prepared folder

    def act(self) -> None:
        if (Path(self.name) / "corpus.json").is_file():
            found = Prepared.open(Path(self.name))
            found.check()
            print(json.dumps(found.settings, indent=1, ensure_ascii=False))
            print(f"{found.report()}\n{found.fingerprint}: intact")
            return
        known = registry()
        if self.name not in known:
            listed = (
                "annotated data list lists them; or give a folder that "
                "data prepare made"
            )
            raise DataError(unknown("data set", self.name, known, listed))
        entry = known[self.name]
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
            "folder": data_folder() / entry.get("folder", self.name),
            "state": _here(self.name, entry),
        }
        for key, value in rows.items():
            print(f"{key:10} {value}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepare:
    """Clean and encode a corpus into a folder that opens instantly."""

    name: tyro.conf.Positional[str]  # data set, your own folder, or pair
    out: Path | None = None  # the folder to create
    src: Path | None = None  # pair: the source file
    tgt: Path | None = None  # pair: its translation, unless a column of src
    # pair: two files for validation (unset: hold out part of src)
    valid: tuple[Path, Path] | None = None
    # pair: two files for the test (unset: hold out part of src)
    test: tuple[Path, Path] | None = None
    # pair: hold out one in this many source sentences
    hold_out: int = 100
    source: str | None = None  # the language to translate from
    target: str | None = None  # the language to translate into
    vocab: int | None = None  # maximum vocabulary size
    # kind of tokens
    tokenizer: Literal["bpe", "wordpiece", "word"] | None = None
    separate: Flag = False  # one vocabulary per side
    # maximum number of pairs to learn the vocabulary from
    vocab_pairs: int | None = None
    # take the vocabulary of this run or prepared folder instead
    tokens: Path | None = None
    min_words: int | None = None  # drop pairs with fewer words on a side
    max_words: int | None = None  # drop pairs with more words on a side
    # drop pairs with one side more than this many times longer
    ratio: float | None = None
    lower: Flag = False  # convert to lower case
    unescape: Flag = False  # decode &quot; and other HTML entities
    detokenize: Flag = False  # rejoin punctuation to words
    json: Flag = False  # print the report as JSON, on one line

    def act(self) -> None:
        with _asked():
            preparation = self._preparation()
        if self.out is None and self.name not in registry():
            raise UsageError("data prepare: give --out, a new folder")
        languages = preparation.source, preparation.target
        usual = usual_folder(preparation.name, *languages)
        made = prepare(preparation, self.out or usual)
        if self.json:
            print(json.dumps(made.manifest["splits"]))
        else:
            print(f"{made.report()}\n{made.folder}: {made.fingerprint}")

    def _preparation(self) -> Preparation:
        """The preparation asked for. UsageError or ValueError if it is
        invalid.
        """
        names = ("source", "target", "vocab", "tokenizer", "vocab_pairs")
        changes = _given(self, *names)
        if self.separate:
            changes["shared"] = False
        if self.name == "pair":
            if self.src is None:
                raise UsageError("data prepare pair: give --src and --tgt")
            changes |= _given(self, "valid", "test", "hold_out")
            made = of_files(self.src, self.tgt, **changes)
        elif self.name in registry():
            made = registered(self.name, **changes)
        elif Path(self.name).is_dir():
            if not (self.source and self.target):
                raise UsageError(
                    "data prepare: a folder needs --source and --target"
                )
            made = of_folder(Path(self.name), **changes)
        else:
            known = ["pair", *registry()]
            listed = (
                "use pair, a folder, or a name that annotated data list "
                "lists"
            )
            raise UsageError(unknown("data set", self.name, known, listed))
        rules = ["min_words", "max_words", "ratio"]
        rules += ["lower", "unescape", "detokenize"]
        cleaning = dataclasses.replace(
            made.cleaning, **_given(self, *rules)
        )
        made = dataclasses.replace(made, cleaning=cleaning)
        if self.tokens is None:
            return made
        own = _given(self, "vocab", "tokenizer", "vocab_pairs", "separate")
        if own:
            raise UsageError(
                "data prepare: --tokens brings a vocabulary, so omit "
                f"{', '.join(f'--{n}' for n in own).replace('_', '-')}"
            )
        return made.with_tokens(run_folder(self.tokens))


# E12-command-line.md: Train
@dataclasses.dataclass(frozen=True)
class Recipes:
    """List the recipes that can be trained."""

    def act(self) -> None:
        width = max(map(len, RECIPES))
        for name, recipe in RECIPES.items():
            print(f"{name:{width}}  {recipe.about}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """Train a recipe. Its fields are options; its values, defaults."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]
    out: Path | None = None  # the run folder, new unless resuming
    resume: Flag = False  # continue from the newest checkpoint in --out
    dry_run: Flag = False  # print what training would take, and exit
    shard: Flag = False  # shard the weights over the processes
    # cpu, cuda or mps (unset: a GPU if there is one)
    device: str | None = None

    def act(self) -> None:
        """Train, and print the run's summary as JSON."""
        if self.out is None and not self.dry_run:
            raise UsageError("train: give --out, a folder for the run")
        with process_group(self.device) as own:
            if self.out is None or self.dry_run:
                rank_zero_only(lambda: self._foresee(pick_device(own)))
                return
            if rank() == 0:
                for form, why in cannot_leave(self.recipe.model).items():
                    print(f"no export to {form}: {why}", file=sys.stderr)
            summary = train_recipe(
                self.recipe,
                self.out,
                resume=self.resume or _started_again(self.out),
                device=own,
                shard=self.shard,
            )
            if rank() == 0:
                print(json.dumps(summary))

    def _foresee(self, device: str) -> None:
        """Measure this device, and print what the run would take."""
        recipe = with_precision(self.recipe, device)
        recipe = with_micro_tokens(recipe, device)
        print(dry_run(recipe.config(), recipe.training, device))
        never = cannot_leave(recipe.model)
        forms = [form for form in FORMS if form not in never]
        print(f"{'export to':16}{', '.join(forms)}")
        for form, why in never.items():
            print(f"{'no export to':16}{form}: {why}")


def _started_again(out: Path) -> bool:
    """Whether a launcher has restarted this command on an existing run."""
    counts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    again = any(os.environ.get(name, "0") != "0" for name in counts)
    return again and (out / "recipe.json").is_file()


def train(args: list[str]) -> None:
    """annotated train RECIPE …"""
    if not args or args[0] in ("-h", "--help"):
        print("usage: annotated train RECIPE --out RUN\n")
        Recipes().act()
        return
    name, *rest = args
    if name.startswith("-"):
        raise UsageError(f"train: the recipe comes first, before {name}")
    if name not in RECIPES:
        listed = "annotated recipes lists them"
        raise UsageError(unknown("recipe", name, RECIPES, listed))

    options = (word.partition("=")[0] for word in rest)
    typed = {option.lstrip("-").replace("-", "_") for option in options}

    def options_over(recipe: Recipe) -> Train:
        fit = tuple(field for field in recipe.fit if field not in typed)
        default = Train(recipe=recipe.changed(fit=fit))
        return parsed(Train, f"train {name}", rest, default=default)

    asked = options_over(RECIPES[name])
    if asked.resume and asked.out is not None:
        # options not given default to the run's values, not the recipe's
        begun = read_recipe(asked.out)
        if begun.about != asked.recipe.about:
            raise RunError(
                f"{asked.out} was started as {begun.about!r}, not as "
                f"{asked.recipe.about!r}"
            )
        asked = options_over(begun)
    elif asked.recipe.init is not None:
        # they default to what the other run has
        other = Path(asked.recipe.init)
        asked = options_over(fine_tuning(RECIPES[name], other))
    asked.act()


# E12-command-line.md: Translate
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Use:
    """The options that translate, evaluate and parse share."""

    run: Path  # the run folder
    ensemble: tuple[Path, ...] = ()  # other runs to form an ensemble with
    beam: int | None = None  # hypotheses per step (unset: the recipe's)
    # exponent of the length penalty (unset: the recipe's)
    alpha: float | None = None
    # tokens by which an output may exceed its source
    extra: int | None = None
    # cpu, cuda or mps (unset: a GPU if there is one)
    device: str | None = None
    # number format of the search; auto picks the fastest here
    precision: Literal["auto", "float32", "bfloat16", "float16", "int8"] = (
        "auto"
    )
    # search processes on a CPU (unset: one per core)
    workers: int | None = None

    def open(self) -> Run:
        """Load the run and those that vote with it onto the device.
        RunError or UsageError, before any work is done.
        """
        if self.workers is not None:
            check_whole("workers", self.workers, least=1)
        device = pick_device(self.device)
        run = Run.open(self.run, *self.ensemble, device=device)
        choice, why = str(self.precision), "as requested"
        if choice == "auto":  # process 0 decides
            first = rank() == 0
            own = pick_precision(device) if first else (choice, why)
            choice, why = all_gather(own)[0]
        if choice == "float32" and device != "cpu":
            return run
        if choice == "int8" and device != "cpu":
            raise UsageError(
                f"--precision int8 needs --device cpu, not {device}"
            )
        if choice != "float32" and rank() == 0:
            print(f"searching in {choice}: {why}", file=sys.stderr)
        kinds = {"float32": torch.float32, "int8": torch.qint8} | HALF
        model, *others = (
            converted(each, kinds[choice])
            for each in (run.model, *run.others)
        )
        return dataclasses.replace(run, model=model, others=tuple(others))

    def processes(self, run: Run) -> int:
        """The number of processes to search with."""
        if next(run.model.parameters()).device.type != "cpu":
            return 1
        # on systems other than Linux they take seconds to start
        usual = torch.get_num_threads() if sys.platform == "linux" else 1
        return self.workers or usual

    def search(self, run: Run, **changes: Any) -> SearchConfig:
        """The recipe's search, as changed by the command line."""
        changes |= _given(self, "beam", "alpha", "extra")
        with _asked():
            return dataclasses.replace(run.recipe.search, **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translate(_Use):
    """Translate standard input to standard output, line by line."""

    nbest: int = 1  # translations per line; above 1, numbered and scored
    json: Flag = False  # write JSON, one object per input line
    batch_tokens: int = 2000  # source tokens per batch

    def act(self) -> None:
        """Read, translate, write, until the input ends."""
        check_whole("batch_tokens", self.batch_tokens, least=1)
        run = self.open()
        search = self.search(run, nbest=self.nbest)
        number, workers = 0, self.processes(run)
        told: set[str] = set()  # unknown words
        for lines in _arriving():
            strange = unknown_words(run.source, lines)
            if fresh := [word for word in strange if word not in told]:
                print(_unread(fresh, run.source), file=sys.stderr)
                told.update(fresh)
            translated = run.translate(
                lines, search, self.batch_tokens, workers
            )
            best = [each[0].text for each in translated]
            _tell_empty(lines, best, number)
            for found in translated:
                if self.json:
                    each = [dataclasses.asdict(one) for one in found]
                    answer = {"line": number, "translations": each}
                    texts = [json.dumps(answer, ensure_ascii=False)]
                elif self.nbest > 1:
                    texts = [
                        f"{number}\t{h.score:.4f}\t{h.text}" for h in found
                    ]
                else:
                    texts = [found[0].text]
                for text in texts:
                    line = f"{text}\n".encode("utf-8", "replace")
                    sys.stdout.buffer.write(line)
                number += 1
            sys.stdout.buffer.flush()


def _tell_empty(
    lines: Sequence[str], texts: Sequence[str], before: int = 0
) -> None:
    """Say on standard error which lines, after this many others, have an
    empty translation without being blank.
    """
    pairs = enumerate(zip(lines, texts), start=before + 1)
    empty = [
        str(i) for i, (line, text) in pairs if line.strip() and not text
    ]
    if empty:
        listed = ", ".join(empty[:10]) + " …" * (len(empty) > 10)
        print(f"empty translation of line {listed}", file=sys.stderr)


def _unread(words: Sequence[str], tokenizer: Tokenizer) -> str:
    """What standard error says of words that the model cannot read."""
    listed = ", ".join(w[:40] + "…" * (len(w) > 40) for w in words[:10])
    listed += " …" * (len(words) > 10)
    hint = ""
    for word in words:
        bare = word.rstrip(".,!?;:")
        if bare != word and not unknown_words(tokenizer, [bare]):
            hint = f"; put a space before punctuation: {bare}"
            hint += f" {word.removeprefix(bare)}"
            break
    return f"not in the run's vocabulary: {listed}{hint}"


def _arriving() -> Iterator[list[str]]:
    """Yield lines of standard input as they arrive, read as Text.lines
    reads a file. DataError, after the lines before, as there.
    """
    source: Any = sys.stdin.buffer
    blocks = iter(partial(source.read1, 2**16), b"")
    told = False
    for text in decoded(blocks, "standard input", cures=CURES | TYPED):
        if not told and (lost := _LOST.search(text)):
            told = True
            print(
                f"{lost[0]}: if the shell has put ? for a letter, {UTF8}",
                file=sys.stderr,
            )
        yield text.removesuffix("\n").split("\n")


UTF8 = (  # how to send any letter to a program
    "on Windows first type chcp 65001 (in cmd) or $OutputEncoding = "
    "[Text.Encoding]::UTF8 (in PowerShell); elsewhere use iconv"
)
TYPED = {"not UTF-8 text": UTF8}
# a word in which a shell may have put ? for a letter; of a long one, a part
_LOST = re.compile(r"\w{0,40}\?[^\W\d]\w{0,40}")


# E12-command-line.md: Evaluate
@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(_Use):
    """Translate a test set and score it against its references."""

    split: str | None = None  # a split of the recipe's data: valid or test
    src: Path | None = None  # a file to translate instead; needs --ref
    ref: Path | None = None  # its reference translations
    # where the data is now, if it has been moved (unset: as in training)
    data: str | None = None
    # another run, or a file of translations, to compare with
    against: Path | None = None
    # add BLEU as the paper counted it: words split at hyphens
    split_compounds: Flag = False
    # with --split: keep the scores in the run folder, for its model card
    keep: Flag = False
    json: Flag = False  # print JSON, one object on one line

    def act(self) -> None:
        """Translate, score, compare, print."""
        given = [v is not None for v in (self.split, self.src, self.ref)]
        if given not in ([True, False, False], [False, True, True]):
            raise UsageError("evaluate: give --split, or --src with --ref")
        if self.data is not None and self.split is None:
            raise UsageError("evaluate: --data goes with --split")
        if self.keep and (self.split is None or self.ensemble):
            raise UsageError(
                "evaluate: --keep goes with --split, and with a single run"
            )
        with process_group(self.device) as own:
            scores = dataclasses.replace(self, device=own).scores()
            if rank() == 0:
                if self.keep:
                    self._keep(scores)
                if scores.get("bleu") == 0 < scores["exact_match"]:
                    print(
                        "BLEU is 0 because no translation has four tokens, "
                        "and it counts runs of up to four: look at chrf "
                        "and exact_match",
                        file=sys.stderr,
                    )
                print(json.dumps(scores) if self.json else _table(scores))

    def _keep(self, scores: dict[str, Any]) -> None:
        """Add the scores of the split to those of the run."""
        path = run_folder(self.run) / SCORES
        kept = json.loads(path.read_text("utf-8")) if path.exists() else {}
        own = {n: v for n, v in scores.items() if n != "against"}
        write_json(path, kept | {str(self.split): own})

    def scores(self) -> dict[str, Any]:
        """The scores of the whole test set, in every process."""
        run = self.open()
        if self.src is not None and self.ref is not None:
            src, ref = read_pair(self.src, self.ref)
        else:
            recipe = run.recipe
            if self.data is not None:
                recipe = recipe.changed(data=self.data)
            src, ref = open_data(recipe).text(str(self.split))
        rival = self._rival(run, len(src))
        started = time.perf_counter()
        found = self._translated(run, src)
        seconds = round(time.perf_counter() - started, 2)
        if rank() == 0:
            _tell_empty(src, found)
        if run.recipe.target == "tree":
            scores = tree_scores(src, found, ref)
        else:
            scores = score(found, ref, self.split_compounds)
        scores |= {"seconds": seconds}
        if rival is not None:
            if isinstance(rival, Run):
                rival = self._translated(rival, src)
            tests = compare(found, rival, ref)
            scores["against"] = score(rival, ref, self.split_compounds) | {
                f"{name}_difference": test for name, test in tests.items()
            }
        return scores

    def _translated(self, run: Run, src: list[str]) -> list[str]:
        """A run's translation of src, divided among the processes."""
        search, workers = self.search(run), self.processes(run)
        own = src[rank() :: world_size()]
        found = run.translate(
            own, search, workers=workers, guide=tree_guide(run)
        )
        parts = all_gather([best[0].text for best in found])
        whole = list(src)
        for i, part in enumerate(parts):
            whole[i :: len(parts)] = part
        return whole

    def _rival(self, run: Run, count: int) -> Run | list[str] | None:
        """The other run, or the output of another system."""
        if self.against is None:
            return None
        if run.recipe.target == "tree":
            raise UsageError("evaluate: --against needs translations")
        if not run_folder(self.against).is_dir():
            lines = read_lines(self.against)
            if len(lines) != count:
                raise UsageError(
                    f"{self.against} has {len(lines)} lines, but the test "
                    f"set has {count}"
                )
            return lines
        other = Run.open(self.against, device=pick_device(self.device))
        ours, theirs = (
            f"{r.recipe.source} to {r.recipe.target}" for r in (run, other)
        )
        if ours != theirs:
            raise RunError(
                f"{self.against} translates {theirs}, {self.run} {ours}"
            )
        return other


def _table(scores: dict[str, Any]) -> str:
    """Scores as text, one per line, next to the other system's."""
    others = scores.pop("against", {})
    rows = []
    for name, value in scores.items():
        other = others.pop(name, value)
        beside = "" if other == value else other
        rows.append(f"{name:15} {value!s:12} {beside}".rstrip())
    for name, test in others.items():
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

    run: Path  # the run folder
    out: Path  # the folder to create
    last: int | None = None  # average the last N (unset: all)
    best: int | None = None  # instead, the N with the lowest nll

    def act(self) -> None:
        """Choose, average, write; print the steps as JSON."""
        if self.last is not None and self.best is not None:
            raise UsageError("average: give --last or --best, not both")
        check_new(self.out)
        folder = run_folder(self.run)
        run = Run.as_begun(folder)
        places = checkpoints(folder / "checkpoints")
        if not places:
            raise RunError(f"{self.run} has no checkpoints to average")
        if self.best is not None:
            nll = validations(folder)
            chosen = choose_checkpoints(places, self.best, nll)
        else:
            count = len(places) if self.last is None else self.last
            chosen = choose_checkpoints(places, count)
        mean = average_weights([p / "model.safetensors" for p in chosen])
        with new_folder(self.out) as fresh:
            write_tensors(mean, fresh / "model.safetensors")
            run.write(fresh)
        print(json.dumps({"averaged": [int(p.name) for p in chosen]}))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """Export a run's model for another program."""

    run: Path  # the run folder
    # the format
    to: Literal["safetensors", "onnx", "ctranslate2", "transformers"]
    out: Path  # the folder to write, new or empty

    def act(self) -> None:
        folder = run_folder(self.run)
        run, results = Run.open(folder), results_of(folder)
        export_run(run, self.to, self.out, results)


# E12-command-line.md: Report
@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Write a run as one page for the browser: curves, translations,
    cost and settings.
    """

    run: Path  # the run folder
    out: Path  # the file to write, new
    # a file of sentences to translate (unset: some of the test set's)
    text: Path | None = None

    def act(self) -> None:
        """Read, draw, write."""
        if self.out.exists():
            raise UsageError(f"{self.out} exists: choose another --out")
        if not self.out.absolute().parent.is_dir():
            raise UsageError(f"there is no folder {self.out.parent}")
        lines = None if self.text is None else read_lines(self.text)
        try:
            from annotated.book.report import report
        except ModuleNotFoundError as error:
            raise RunError(
                f"report draws, and {error.name} is not installed: "
                "pip install 'attention-annotated[book]'"
            ) from None
        write_text(self.out, report(self.run, lines))
        print(self.out.absolute().as_uri())


# E12-command-line.md: Look
@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """Show a run in the browser: sentences of your own, piece by piece,
    with what else it might have written and where its heads look. The
    page comes from this machine and is seen on it alone.
    """

    run: Path  # the run folder
    port: int = 0  # where the page is served (0: any that is free)
    browser: bool = True  # open it there

    def act(self) -> None:
        """Serve until Ctrl-C."""
        try:
            from annotated.book.look import look
        except ModuleNotFoundError as error:
            raise RunError(
                f"look draws, and {error.name} is not installed: "
                "pip install 'attention-annotated[book]'"
            ) from None
        with look(self.run, self.port) as (server, address):
            print(f"{address}\n(Ctrl-C ends it)", flush=True)
            if self.browser:
                webbrowser.open(address)
            with suppress(KeyboardInterrupt):
                server.serve_forever()


# E12-command-line.md: The paper
@dataclasses.dataclass(frozen=True, kw_only=True)
class Paper:
    """Keep your own copy of the paper, and show what it says. It is
    fetched unless it is kept already, or given as a file.
    """

    # what to print: a section (3.2.1), 3.2.1 p4, table 3, fig 2, eq 1, fn 4
    part: tyro.conf.Positional[tuple[str, ...]] = ()
    # the paper as HTML that your browser has saved (unset: fetched)
    file: Path | None = None
    # the folder of the book's pages, whose cards will show its words
    site: Path | None = None

    def act(self) -> None:
        """Keep, put beside the pages, print."""
        place = copy_path()
        if self.file or not place.exists():
            print(f"kept as {keep(self.file)}", file=sys.stderr)
        if self.site:
            print(f"written: {put_beside(self.site)}", file=sys.stderr)
        if self.part:
            print(words(" ".join(self.part)))
        elif not (self.file or self.site):
            print(place)


# E12-command-line.md: Import
@dataclasses.dataclass(frozen=True, kw_only=True)
class Import:
    """Make a published model into a run."""

    kind: tyro.conf.Positional[Literal["marian"]]  # the form it is in
    # its folder, or its name on huggingface.co, such as opus-mt-en-de
    name: tyro.conf.Positional[str]
    out: Path  # the run folder to create
    # where a model translates into several: the target, such as deu
    language: str | None = None
    source: str | None = None  # what to call the source language
    target: str | None = None  # what to call the target language
    # of a name: a commit, or a branch; else that of page E25, or the newest
    revision: str | None = None

    def act(self) -> None:
        """Fetch, check, convert, write; print what it is as JSON."""
        check_new(self.out)
        folder, origin = find_published(self.name, self.revision)
        names = self.source, self.target
        run = import_marian(folder, self.out, self.language, names, origin)
        recipe = run.recipe
        print(
            json.dumps(
                {
                    "from": origin,
                    "source": recipe.source,
                    "target": recipe.target,
                    "parameters": count_parameters(run.model.config),
                    "vocabularies": [len(run.source), len(run.target)],
                }
            )
        )


# E12-command-line.md: Trees
@dataclasses.dataclass(frozen=True, kw_only=True)
class Treebank:
    """Split a treebank by article, into sentences and their trees."""

    # a folder of .mrg files, one per article, or one file and its index
    bank: tyro.conf.Positional[Path]
    out: Path  # the folder to create
    options: tyro.conf.OmitArgPrefixes[TreeOptions] = TreeOptions()

    def act(self) -> None:
        print(json.dumps(prepare_trees(self.bank, self.out, self.options)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parse(_Use):
    """Parse sentences of space-separated words, and write their trees."""

    def act(self) -> None:
        """Write one tree per line of standard input."""
        run = self.open()
        if run.recipe.target != "tree":
            raise UsageError(
                f"{self.run} was trained to write {run.recipe.target}, "
                "not trees"
            )
        search, workers = self.search(run), self.processes(run)
        for lines in _arriving():
            for tree in parse_lines(run, lines, search, workers):
                sys.stdout.buffer.write(f"{tree or ''}\n".encode())
            sys.stdout.buffer.flush()


# E12-command-line.md: Completion
@dataclasses.dataclass(frozen=True)
class Completion:
    """Print a script by which a shell completes annotated."""

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]

    def act(self) -> None:
        kinds = KINDS | {
            "train": _one_of(dict.fromkeys(RECIPES, Train)),
            "doctor": dataclasses.make_dataclass("Doctor", []),
        }
        every = _one_of({name: kinds[name] for name in COMMANDS})
        asked = ["--tyro-write-completion", self.shell, "-"]
        with suppress(SystemExit):  # after it has printed the script
            tyro.cli(every, args=asked, prog="annotated")


def _one_of(kinds: dict[str, Any]) -> Any:
    """The type of a choice between subcommands, by their names."""
    named = [
        Annotated[kind, tyro.conf.subcommand(name)]
        for name, kind in kinds.items()
    ]
    return Union[tuple(named)]  # noqa: UP007 (as many as there are)


# E12-command-line.md: The table of subcommands
KINDS: dict[str, Any] = {
    "recipes": Recipes,
    "data": List | Show | Prepare,
    "translate": Translate,
    "evaluate": Evaluate,
    "average": Average,
    "export": Export,
    "import": Import,
    "sweep": Sweep,
    "treebank": Treebank,
    "parse": Parse,
    "report": Report,
    "look": Look,
    "paper": Paper,
    "exercises": Exercises,
    "milestone": Milestone,
    "questions": Questions,
    "classroom": Classroom,
    "completion": Completion,
}
