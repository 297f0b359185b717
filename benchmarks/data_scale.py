"""What a corpus costs: preparing, opening, planning, batching.

    ANNOTATED_DATA=DATA python benchmarks/data_scale.py
    ANNOTATED_DATA=DATA python benchmarks/data_scale.py --json book/results/data-scale.json

Every measurement is a process of its own, so that its memory is its own.
benchmarks/README.md says what is measured, and how.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import tyro

# the script beside this one
from memory import Watch

ROOT = Path(__file__).resolve().parents[1]
# the largest corpus of the shared folder, as two files of its own
EUROPARL = "europarl-it-en/europarl.it-en"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure."""

    vocab: int = 32_000
    """of the large corpus; the small ones have their registry's"""
    simulated: int = 36_000_000
    """pairs of the corpus that is made of indices alone; 0 leaves it out"""
    steps: int = 8
    """of the trainer, to compare the loader with"""
    work: Path | None = None
    """keep what is prepared in this folder; unless given, in a new one"""
    json: Path | None = None
    """write the result here"""


# --- one process, measured ------------------------------------------------


def timed(command: Sequence[str]) -> tuple[dict[str, float], int, str]:
    """Seconds, of the clock and of all processors; peak bytes; and what a
    command printed.
    """
    begin, before = time.perf_counter(), processor_seconds()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    with Watch(process.pid) as watch:
        printed, _ = process.communicate()
    if process.returncode:
        raise SystemExit(
            f"{' '.join(command)} ended with {process.returncode}"
        )
    seconds = {
        "seconds": time.perf_counter() - begin,
        "processor_seconds": processor_seconds() - before,
    }
    return seconds, watch.peak, printed


def processor_seconds() -> float:
    """Of all processes that this one has started and seen end."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def alone(name: str, *args: object) -> dict[str, Any]:
    """A function of this file, in a process of its own."""
    command = [sys.executable, __file__, "--measure", name, *map(str, args)]
    seconds, peak, printed = timed(command)
    found = json.loads(printed.splitlines()[-1])
    return found | {
        "process_seconds": seconds["seconds"],
        "process_peak_mib": peak / 2**20,
    }


def resident() -> float:
    """MiB that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


# --- the measurements -----------------------------------------------------


def prepare(source: Sequence[str], out: Path) -> dict[str, Any]:
    """Time and memory of `annotated data prepare`."""
    command = [
        sys.executable,
        "-m",
        "annotated",
        "data",
        "prepare",
        *source,
    ]
    command += ["--out", str(out), "--json"]
    seconds, peak, printed = timed(command)
    splits = json.loads(printed.splitlines()[-1])["splits"]
    size = sum(path.stat().st_size for path in out.iterdir())
    return seconds | {
        "peak_mib": peak / 2**20,
        "folder_mib": size / 2**20,
        "splits": splits,
    }


def opening(folder: str) -> dict[str, Any]:
    """Time and memory of opening a prepared corpus and making one batch."""
    from annotated.corpora.prepare import Prepared

    before, begin = resident(), time.perf_counter()
    corpus = Prepared.open(Path(folder)).corpus("train")
    opened = time.perf_counter() - begin
    after = resident()
    corpus.batch(np.arange(0, len(corpus), max(len(corpus) // 900, 1)))
    return {
        "pairs": len(corpus),
        "open_seconds": opened,
        "open_mib": after - before,
        "first_batch_mib": resident() - before,
    }


def planning(folder: str, *sizes: str) -> dict[str, Any]:
    """What the batches waste, and how fast they are made."""
    from annotated.batches import Corpus
    from annotated.tokens import PAD

    corpus = Corpus.load(Path(folder) / "train")
    found: dict[str, Any] = {"pairs": len(corpus)}
    for size in map(int, sizes):
        begin = time.perf_counter()
        plan = corpus.plan(size, seed=0, epoch=0)
        seconds = time.perf_counter() - begin
        assert sum(map(len, plan)) == len(corpus)
        waste = {}
        for name, side in (("source", corpus.src), ("target", corpus.tgt)):
            lengths = side.lengths + 1
            places = sum(int(lengths[b].max()) * len(b) for b in plan)
            waste[name] = 100 * (1 - int(lengths.sum()) / places)
        begin, tokens = time.perf_counter(), 0
        for pairs in plan[:300]:
            tokens += int((corpus.batch(pairs).labels != PAD).sum())
        found[str(size)] = {
            "batches": len(plan),
            "plan_seconds": seconds,
            "padding_percent": waste,
            "loader_tokens_per_second": tokens
            / (time.perf_counter() - begin),
        }
    return found


def training(folder: str, steps: str) -> dict[str, Any]:
    """Tokens a second of the trainer: the shape of the recipe multi30k."""
    from annotated.batches import Corpus
    from annotated.corpora.prepare import Prepared
    from annotated.engine.recipes import RECIPES
    from annotated.engine.trainer import Trainer
    from annotated.model import Transformer

    ready = Prepared.open(Path(folder))
    recipe = RECIPES["multi30k"].changed(max_steps=int(steps))
    vocab = ready.manifest["source_vocab"]
    corpus: Corpus = ready.corpus("train")
    model = Transformer(recipe.config(vocab, vocab))
    trainer = Trainer(model, corpus, recipe.training)
    marks = [(p.tokens, p.seconds) for p in trainer.steps()]
    (first, begin), (last, end) = marks[1], marks[-1]
    return {"tokens_per_second": (last - first) / (end - begin)}


def simulated(folder: str, pairs: str) -> dict[str, Any]:
    """A corpus with the lengths of English-French and no text, opened,
    planned, and taken up in the middle of an epoch.
    """
    from annotated.batches import Corpus, Sentences

    stem, count = Path(folder) / "train", int(pairs)
    if not Path(f"{stem}.tgt.starts.npy").exists():
        _simulate(stem, count)
        return {"made": count}
    before, begin = resident(), time.perf_counter()
    corpus = Corpus.load(stem)
    opened, after = time.perf_counter() - begin, resident()
    begin = time.perf_counter()
    plan = corpus.plan(25_000, seed=0, epoch=3)
    planned = time.perf_counter() - begin
    middle = len(plan) // 2
    begin = time.perf_counter()
    batch = corpus.batch(plan[middle])
    first = time.perf_counter() - begin
    assert isinstance(corpus.src, Sentences)
    return {
        "pairs": len(corpus),
        "tokens": [len(corpus.src.ids), len(corpus.tgt.ids)],
        "batches": len(plan),
        "open_seconds": opened,
        "open_mib": after - before,
        "plan_seconds": planned,
        "batch_seconds": first,
        "resume_at": middle,
        # equal in two processes: the plan is a function of seed and epoch
        "pairs_there": int(np.asarray(plan[middle], dtype=np.int64).sum()),
        "shape_there": list(batch.tgt.shape),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        / 1024,
    }


def _simulate(stem: Path, count: int) -> None:
    """Starts as they would be; ids in a file that is all hole."""
    draw = np.random.default_rng(0)
    src = draw.lognormal(3.2, 0.65, count)
    tgt = src * draw.lognormal(0.1, 0.2, count)
    for name, side in (("src", src), ("tgt", tgt)):
        lengths = side.clip(1, 250).astype(np.int64)
        starts = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(lengths, out=starts[1:])
        np.save(f"{stem}.{name}.starts.npy", starts)
        np.lib.format.open_memmap(
            f"{stem}.{name}.ids.npy", "w+", np.uint16, (int(starts[-1]),)
        )


MEASURES = {f.__name__: f for f in (opening, planning, training, simulated)}


# --- the report -----------------------------------------------------------


def run(settings: Settings, work: Path) -> dict[str, Any]:
    data = os.environ.get("ANNOTATED_DATA", "")
    large = [
        f"{data}/{EUROPARL}.{language}.xz" for language in ("it", "en")
    ]
    corpora: dict[str, list[str]] = {}
    if all(Path(path).exists() for path in large):
        corpora["europarl"] = [
            "pair", "--src", large[0], "--tgt", large[1],
            "--vocab", str(settings.vocab),
        ]  # fmt: skip
    for name in ("tatoeba", "multi30k"):
        if (Path(data) / name).is_dir():
            corpora[name] = [name]
    found: dict[str, Any] = {}
    for name, source in corpora.items():
        out = work / name
        one: dict[str, Any] = {"prepare": prepare(source, out)}
        one["open"] = alone("opening", out)
        one["plan"] = alone("planning", out, 3000, 12_500, 25_000)
        one["train"] = alone("training", out, settings.steps)
        found[name] = one
        print(f"{name}\n{json.dumps(one, indent=1)}", flush=True)
    if settings.simulated:
        place = work / "simulated"
        place.mkdir(exist_ok=True)
        alone("simulated", place, settings.simulated)
        twice = [
            alone("simulated", place, settings.simulated) for _ in "ab"
        ]
        one = twice[0] | {
            "resumes_at_the_same_batch": twice[0]["pairs_there"]
            == twice[1]["pairs_there"]
        }
        found["simulated"] = one
        print(f"simulated\n{json.dumps(one, indent=1)}", flush=True)
    return found


def result(
    settings: Settings, metrics: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """What the ledger wants to know."""
    import tokenizers

    git = ["git", "describe", "--always", "--abbrev=40", "--dirty=+"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True)
    model = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    values = {
        k: v
        for k, v in asdict(settings).items()
        if k not in ("json", "work")
    }
    return {
        "recipe": "benchmarks/data_scale.py",
        "command": "python benchmarks/data_scale.py --json book/results/data-scale.json",
        "commit": commit.stdout.strip() or None,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "hardware": f"{model[0] if model else platform.machine()}, {os.cpu_count()} cores",
        "versions": f"python {platform.python_version()}, numpy {np.__version__}, "
        f"tokenizers {tokenizers.__version__}",
        "seed": 0,
        "wall_seconds": seconds,
        "settings": values,
        "metrics": metrics,
    }


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(MEASURES[sys.argv[2]](*sys.argv[3:])))
        return
    settings = tyro.cli(Settings)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        work = settings.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        metrics = run(settings, work)
    if settings.json:
        from ledger import write  # torch, which nothing measured here loads

        seconds = time.perf_counter() - begin
        write(settings.json, result(settings, metrics, seconds))


if __name__ == "__main__":
    main()
