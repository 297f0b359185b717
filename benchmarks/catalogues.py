"""The messages of the programs on a Linux: what is dirty, and what it does.

    python -m venv PEER && PEER/bin/pip install joeynmt importlib_metadata
    python benchmarks/catalogues.py --work WORK --peer PEER/bin/python \
        --json book/results/catalogues.json      # 50 minutes of one core

The text is every *.mo file of a language, as a distribution ships them:
version beside version of the same program, names that are not translated,
placeholders. It is prepared as it is, without equal pairs, and without copies
as well; of each preparation the two baselines of page E35 are scored, which
have learned nothing.

Then two translators learn the last of them in one thread each, one after the
other: ours, fitted to the minutes, and JoeyNMT's, as its transformer_small.yaml
has it, for as many seconds of the processor as ours took with all that belongs
to it. Of that file only what belongs to its toy text is changed: paths,
languages, 8,000 merges for 200, sentences of up to 250 tokens for 30, a look
at 200 sentences of validation every 1,000 steps (its default) for 10, outputs
of up to 100 for 31 when it translates the test, and no end but that of the
time. It takes its best checkpoint, by loss. (JoeyNMT 2.3.0 gives one scheduler
an argument that torch no longer has, which PEER below takes away.)

Each part that is done is kept in WORK: a second call goes on from there.
"""

from __future__ import annotations

import json as coding
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import tyro
from ledger import annotated, typed, write
from rapidfuzz.fuzz import ratio

from annotated.book.results import commit, entry
from annotated.corpora.cleaning import Cleaning, divide
from annotated.corpora.marks import MarkedTokenizer, missing
from annotated.corpora.neighbours import nearest
from annotated.corpora.prepare import Preparation, Prepared
from annotated.corpora.reading import read_lines
from annotated.engine.baselines import interval
from annotated.engine.runs import Run
from annotated.evaluation import compare, score

PLACES = (  # printf's, Python's, and those in braces
    r"%(?:\d+\$)?(?:\(\w+\))?[-+#0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?"
    r"(?:hh?|ll?|[jztL])?[diouxXeEfFgGcspm](?![^\W\d_])",
    r"\{\w*\}",
)
WAYS: dict[str, list[str]] = {
    "as it is": [],
    "dedup": ["--dedup"],
    "clean": ["--dedup", "--drop-copies"],
}
ALIKE = 90  # per cent of the characters
MERGES = 8000


@dataclass(frozen=True)
class Settings:
    """Prepare, train, compare."""

    work: Path | None = None  # a folder; again: goes on
    peer: Path | None = None  # a Python that has JoeyNMT; none: ours alone
    folder: Path = Path("/usr/share/locale/de/LC_MESSAGES")
    source: str = "en"
    target: str = "de"
    minutes: float = 20.0  # of training
    hold_out: int = 50  # one source in so many, for valid and for test
    also: bool = False  # train ours on the text as it is, too
    nice: int = 0  # of the trainings; below 0 only for root
    json: Path | None = None  # the ledger file to write


def once(file: Path, make: Callable[[], Any]) -> Any:
    """What a file has, or what make returns, which it has from then on."""
    if not file.exists():
        write(file, make())
    return coding.loads(file.read_text("utf-8"))


def prepared(settings: Settings, work: Path, way: str) -> dict[str, Any]:
    """Prepare the text in one of the ways; what it reports."""
    files = sorted(map(str, settings.folder.glob("*.mo")))
    names = ["--source", settings.source, "--target", settings.target]
    return annotated(
        "data", "prepare", "pair", "--src", *files, *names,
        "--hold-out", str(settings.hold_out), "--out", str(work / way),
        "--protect", *PLACES, *WAYS[way], "--json",
    )  # fmt: skip


def looked_up(folder: Path) -> dict[str, Any]:
    """What copying and looking up make of a prepared test set, and score."""
    corpus = Prepared.open(folder)
    source, target = corpus.tokenizers()
    train = corpus.corpus("train")
    src, ref = text(folder, "test")
    rows = nearest(source.encode(src), train.src)
    assert isinstance(target, MarkedTokenizer)
    sides = target.decode([train.tgt[int(i)].tolist() for i in rows])
    lines = {
        "copied": src,
        "nearest": [target.restored(*both) for both in zip(sides, src)],
    }
    return {
        "lines": lines,
        "sentences": len(src),
        "near": sum(near(folder, src)),
        **{name: score(some, ref) for name, some in lines.items()},
    }


def near(folder: Path, src: Sequence[str]) -> list[bool]:
    """Whether the most similar source of the training set is nearly a
    sentence.
    """
    corpus = Prepared.open(folder)
    source, _ = corpus.tokenizers()
    train = corpus.corpus("train").src
    queries = source.encode(src)
    found = source.decode([train[int(i)] for i in nearest(queries, train)])
    both = zip(source.decode(queries), found)
    return [ratio(a.casefold(), b.casefold()) >= ALIKE for a, b in both]


def text(folder: Path, split: str) -> tuple[list[str], list[str]]:
    """The clean lines of a split that is held out."""
    sides = Prepared.open(folder).settings
    src, ref = (
        read_lines(folder / f"{split}.{sides[side]}")
        for side in ("source", "target")
    )
    return src, ref


def timed(
    words: Sequence[str],
    settings: Settings,
    log: Path,
    most: float = math.inf,
) -> dict[str, Any]:
    """Run a command in one thread, until it ends or has had so many seconds
    of the processor; how long it took, and what it has had.
    """
    here = commit()  # of the code that trains
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    nice = ["nice", "-n", str(settings.nice)] if settings.nice else []
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*nice, *words],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        while process.poll() is None:
            if spent(process.pid) >= most:
                process.terminate()
            time.sleep(1)
    if process.returncode not in (0, -signal.SIGTERM):
        sys.exit(f"{words[:4]} failed: see {log}")
    took = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    both = zip(after[:2], before[:2])  # the user's, the system's
    return {
        "seconds": took,
        "processor": sum(a - b for a, b in both),
        "commit": here,
        "load": os.getloadavg()[2],
    }


def spent(number: int) -> float:
    """Seconds of the processor that a process has had, all its threads."""
    words = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2]
    user, system = words.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def ours(settings: Settings, work: Path, way: str) -> dict[str, Any]:
    """Train on a preparation."""
    run = work / f"run {way}"
    words = [
        sys.executable, "-m", "annotated", "train", "pair", "--data",
        str(work / way), "--source", settings.source, "--target",
        settings.target, "--max-minutes", str(settings.minutes), "--device",
        "cpu", "--out", str(run),
    ]  # fmt: skip
    found = timed(words, settings, work / f"run {way}.log")
    summary = coding.loads((run / "summary.json").read_text("utf-8"))
    recipe = coding.loads((run / "recipe.json").read_text("utf-8"))
    sizes = {key: recipe[key] for key in ("model", "training")}
    return found | {"summary": summary, **sizes}


def translated(work: Path, way: str) -> list[str]:
    """What a model of ours makes of the clean test set."""
    src, _ = text(work / "clean", "test")
    run = Run.open(work / f"run {way}")
    return [best[0].text for best in run.translate(src)]


# --- JoeyNMT -----------------------------------------------------------------

VOCABULARY = """
import sys
from collections import Counter
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe
folder, merges = sys.argv[1], int(sys.argv[2])
with open(f"{folder}/both", encoding="utf-8") as lines, \\
        open(f"{folder}/codes", "w", encoding="utf-8") as out:
    learn_bpe(lines, out, merges, 1)
with open(f"{folder}/codes", encoding="utf-8") as codes:
    bpe = BPE(codes)
counts = Counter()
with open(f"{folder}/both", encoding="utf-8") as lines:
    for line in lines:
        counts.update(bpe.process_line(line).split())
words = sorted(counts, key=lambda word: (-counts[word], word))
with open(f"{folder}/vocabulary", "w", encoding="utf-8") as out:
    out.write("".join(f"{word}\\n" for word in words))
"""


def divided(
    settings: Settings, work: Path
) -> dict[str, list[tuple[str, str]]]:
    """The pairs of each split of the clean text, as they were prepared."""
    preparation = Preparation.of_corpora(
        sorted(settings.folder.glob("*.mo")),
        source=settings.source,
        target=settings.target,
        hold_out=settings.hold_out,
    )
    known = Prepared.open(work / "clean")
    cleaning = Cleaning(**known.settings["cleaning"])
    pairs = chain.from_iterable(
        part.pairs(strict=False) for part in preparation.parts["train"]
    )
    rules = cleaning, preparation.division, Counter[str]()
    splits: dict[str, list[tuple[str, str]]] = {}
    for split, src, tgt in divide("train", pairs, *rules):
        splits.setdefault(split, []).append((src, tgt))
    for split in ("valid", "test"):
        if [*zip(*text(work / "clean", split))] != splits[split]:
            sys.exit(f"{split} is not what was prepared")
    return splits


def peer_text(
    settings: Settings, work: Path, folder: Path
) -> dict[str, int]:
    """Write the splits of the clean text, and a vocabulary, for the peer."""
    splits = divided(settings, work)
    folder.mkdir(parents=True, exist_ok=True)
    both: list[str] = []
    for split, rows in splits.items():
        for side, lines in zip(
            (settings.source, settings.target), zip(*rows)
        ):
            words = "".join(f"{line}\n" for line in lines)
            (folder / f"{split}.{side}").write_text(words, "utf-8")
            both += [words] * (split == "train")
    (folder / "both").write_text("".join(both), "utf-8")
    subprocess.run(
        [str(settings.peer), "-c", VOCABULARY, str(folder), str(MERGES)],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return {split: len(rows) for split, rows in splits.items()}


def peer_settings(
    settings: Settings, folder: Path, longest: int
) -> dict[str, Any]:
    """JoeyNMT's small Transformer, for this text."""

    def side(language: str) -> dict[str, Any]:
        return {
            "lang": language, "level": "bpe", "lowercase": False,
            "max_length": 250, "min_length": 1,
            "voc_file": str(folder / "vocabulary"),
            "tokenizer_type": "subword-nmt",
            "tokenizer_cfg": {
                "num_merges": MERGES, "codes": str(folder / "codes"),
                "dropout": 0.0, "pretokenizer": "none",
            },
        }  # fmt: skip

    half = {
        "type": "transformer", "num_layers": 3, "num_heads": 4,
        "embeddings": {"embedding_dim": 64, "scale": True},
        "hidden_size": 64, "ff_size": 128, "dropout": 0.1,
        "layer_norm": "pre", "activation": "relu",
    }  # fmt: skip
    special = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"}
    return {
        "name": "catalogues",
        "model_dir": str(folder / "model"),
        "use_cuda": False,
        "fp16": False,
        "random_seed": 42,
        "data": {
            **{k: str(folder / v) for k, v in (
                ("train", "train"), ("dev", "valid"), ("test", "test"),
            )},
            "dataset_type": "plain", "sample_dev_subset": 200,
            "src": side(settings.source), "trg": side(settings.target),
            "special_symbols": {
                **{f"{name}_token": text for name, text in special.items()},
                **{f"{name}_id": i for i, name in enumerate(special)},
            },
        },
        "testing": {
            "n_best": 1, "beam_size": 5, "beam_alpha": 1.0,
            "batch_size": 10, "batch_type": "sentence",
            "eval_metrics": ["bleu"], "max_output_length": longest,
            "min_output_length": 1, "sacrebleu_cfg": {"tokenize": "13a"},
        },
        "training": {
            "optimizer": "adamw", "adam_betas": [0.9, 0.999],
            "learning_rate": 0.005, "learning_rate_min": 0.0001,
            "clip_grad_val": 1.0, "weight_decay": 0.0,
            "loss": "crossentropy", "label_smoothing": 0.0,
            "batch_size": 10, "batch_type": "sentence",
            "normalization": "batch", "scheduling": "plateau",
            "patience": 5, "decrease_factor": 0.5, "epochs": 10_000,
            "validation_freq": 1000, "logging_freq": 100,
            "early_stopping_metric": "loss", "shuffle": True,
            "overwrite": True, "keep_best_ckpts": 3,
        },
        "model": {
            "initializer": "xavier_uniform", "init_gain": 1.0,
            "bias_initializer": "zeros",
            "embed_initializer": "xavier_uniform", "embed_init_gain": 1.0,
            "tied_embeddings": False, "tied_softmax": True,
            "encoder": half, "decoder": half,
        },
    }  # fmt: skip


def peer(
    settings: Settings, work: Path, folder: Path, seconds: float
) -> dict[str, Any]:
    """Train the peer for so many seconds of the processor."""
    file = folder / "settings.yaml"  # JSON is YAML
    chosen = peer_settings(settings, folder, 31)
    file.write_text(coding.dumps(chosen, indent=1), "utf-8")
    words = [str(settings.peer), "-c", PEER, "train", str(file), "-t"]
    found = timed(words, settings, work / "peer.log", seconds)
    looks = (folder / "model/validations.txt").read_text("utf-8")
    steps = looks.splitlines()
    return found | {"looks": len(steps), "last": steps[-1]}


def peer_translated(settings: Settings, folder: Path) -> list[str]:
    """What the peer makes of the test set."""
    file = folder / "translate.yaml"
    chosen = peer_settings(settings, folder, 100)
    file.write_text(coding.dumps(chosen, indent=1), "utf-8")
    done = subprocess.run(
        [str(settings.peer), "-c", PEER, "translate", str(file)],
        input=(folder / f"test.{settings.source}").read_bytes(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return done.stdout.decode().splitlines()


PEER = """
import runpy
import joeynmt.builders as builders
class Plateau(builders.ReduceLROnPlateau):
    def __init__(self, *words, verbose=False, **named):  # torch dropped it
        super().__init__(*words, **named)
builders.ReduceLROnPlateau = Plateau
runpy.run_module("joeynmt", run_name="__main__")
"""
PEER_VERSIONS = """
from importlib.metadata import version
print(", ".join(f"{n} {version(n)}" for n in
                ("joeynmt", "torch", "subword-nmt", "sacrebleu")))
"""


# --- the comparison -----------------------------------------------------------


def judged(work: Path, lines: Sequence[str]) -> dict[str, Any]:
    """Scores of translations of the clean test set: of all, of those near
    the training set, and of the others; and how often all placeholders
    of the source are there.
    """
    clean = work / "clean"
    src, ref = text(clean, "test")
    marks = near(clean, src)
    source, _ = Prepared.open(clean).tokenizers()
    found: dict[str, Any] = score(lines, ref) | interval(lines, ref)
    for name, wanted in (("near", True), ("apart", False)):
        rows = [i for i, mark in enumerate(marks) if mark == wanted]
        some = [lines[i] for i in rows], [ref[i] for i in rows]
        found[name] = {"bleu": score(*some)["bleu"], "sentences": len(rows)}
    assert isinstance(source, MarkedTokenizer)
    with_places = [bool(source.placeholders(line)) for line in src]
    lost = missing(source, src, lines)
    found["places"] = {
        "sentences": sum(with_places),
        "lost": sum(map(bool, lost)),
    }
    return found


def trained(
    settings: Settings, work: Path
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Train each model; how that went, and its translations."""

    def kept(name: str, make: Callable[..., Any], *words: Any) -> Any:
        return once(work / f"{name}.json", lambda: make(*words))

    runs = {"clean": kept("run clean", ours, settings, work, "clean")}
    lines = {"clean": kept("run clean test", translated, work, "clean")}
    if settings.peer:
        folder = work / "peer"
        seconds = runs["clean"]["processor"]
        kept("peer splits", peer_text, settings, work, folder)
        runs["JoeyNMT"] = kept(
            "peer", peer, settings, work, folder, seconds
        )
        lines["JoeyNMT"] = kept(
            "peer test", peer_translated, settings, folder
        )
    if settings.also:
        way = "as it is"
        runs[way] = kept(f"run {way}", ours, settings, work, way)
        lines[way] = kept(f"run {way} test", translated, work, way)
    return runs, lines


def main(settings: Settings) -> None:
    work = settings.work or Path("catalogues-work")
    work.mkdir(parents=True, exist_ok=True)
    reports = {
        way: once(
            work / f"{way}.json", lambda w=way: prepared(settings, work, w)
        )
        for way in WAYS
    }
    lookups = {
        way: once(
            work / f"{way} looked up.json",
            lambda w=way: looked_up(work / w),
        )
        for way in WAYS
    }
    beside = {way: found.pop("lines") for way, found in lookups.items()}
    runs, lines = trained(settings, work)
    lines = beside["clean"] | lines
    src, ref = text(work / "clean", "test")
    scores = {name: judged(work, some) for name, some in lines.items()}
    against = {
        name: compare(lines["clean"], some, ref)
        for name, some in lines.items()
        if name in runs and name != "clean"
    }
    files = [*settings.folder.glob("*.mo")]
    metrics = {
        "files": len(files),
        "links": sum(file.is_symlink() for file in files),
        "prepared": {
            way: {
                "splits": {
                    split: card["pairs"]
                    for split, card in report["splits"].items()
                },
                "read": report["splits"]["train"]["read"],
                "dropped": report["splits"]["train"]["dropped"],
                "findings": report["findings"],
                **lookups[way],
            }
            for way, report in reports.items()
        },
        "scores": scores,
        "against": against,
        "runs": runs,
    }
    print(coding.dumps({"scores": scores, "against": against}, indent=1))
    if settings.json:
        more = {}
        if settings.peer:
            words = [str(settings.peer), "-c", PEER_VERSIONS]
            done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
            more["peer"] = done.stdout.decode().strip()
        command = typed("catalogues.py", settings)
        for path, name in ((work, "WORK"), (settings.peer, "PEER")):
            command = command.replace(str(path), name)
        samples = [*zip(src, ref, lines["clean"])][::20]
        write(
            settings.json,
            entry(
                "catalogues", command, metrics, seed=0, threads=1,
                wall_seconds=sum(run["seconds"] for run in runs.values()),
                settings={
                    "minutes": settings.minutes,
                    "hold_out": settings.hold_out,
                    "languages": f"{settings.source}-{settings.target}",
                },
                packages=("numpy", "tokenizers", "sacrebleu", "polib", "rapidfuzz"),
                commit=runs["clean"]["commit"], scored_at=commit(), samples=samples, **more,
            ),
        )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Settings, description=(__doc__ or "").splitlines()[0]))
