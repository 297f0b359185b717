"""Everything that a GPU is wanted for, in one call of at most nine minutes.

    python benchmarks/gpu.py --out gpu-results
    python benchmarks/gpu.py --out gpu-results --only peak,train-base
    python benchmarks/gpu.py --out /tmp/try --tiny        # any machine

Sections: the matrix peak of this machine, now; the tests that need a GPU;
training at the paper's base and big shape, 25,000 tokens a side and step;
decoding at the base shape with a beam of 4; and a training that converges.
Each runs in a process of its own, within its own time, so that a crash or a
standstill in one is noted and the others go on. What is there is written
after every section: gpu.json, and gpu-learn.json for the training, both in
the form of book/results. --tiny goes the same way with small numbers, on a
CPU too, so that nothing is found broken on the day when a GPU is at hand.

It needs the package's dependencies and pytest, and no network. With
multi30k (or another data set that is named by --data) under ANNOTATED_DATA
the last section trains on it; else on pocket German.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from ledger import write  # noqa: E402

from annotated.batches import Batch, Corpus, Sentences  # noqa: E402
from annotated.book.results import entry, rounded  # noqa: E402
from annotated.engine.machine import set_up  # noqa: E402
from annotated.engine.search import search_in_order  # noqa: E402
from annotated.engine.trainer import RunConfig, Trainer  # noqa: E402
from annotated.model import Transformer, TransformerConfig  # noqa: E402
from annotated.search import SearchConfig  # noqa: E402
from annotated.tokens import PAD, SPECIALS  # noqa: E402

PACKAGES = ("numpy", "triton", "tokenizers", "sacrebleu")


@dataclass(frozen=True)
class Sizes:
    """How large everything is; TINY goes through the same code."""

    matrix: int = 8192
    products: int = 20
    vocab: int = 37_000
    batch_tokens: int = 25_000
    batches: int = 8  # different ones, in turn
    warm: int = 5  # steps before the clock starts
    steps: int = 40
    sentences: int = 2048  # to decode
    decode_tokens: int = 16_000  # source tokens searched at once
    mean_length: float = 27.0  # tokens of a sentence of WMT14
    shrink: int = 1  # of the model's width


TINY = Sizes(
    matrix=64,
    products=3,
    vocab=60,
    batch_tokens=120,
    batches=2,
    warm=1,
    steps=2,
    sentences=6,
    decode_tokens=40,
    mean_length=5.0,
    shrink=16,
)


@dataclass(frozen=True)
class Bench:
    """What a section gets to know."""

    sizes: Sizes
    device: str
    out: Path
    data: str | None
    deadline: float  # of this section, by time.time
    seed: int = 0

    @property
    def left(self) -> float:
        """Seconds that this section still has."""
        return self.deadline - time.time()


# --- tools ----------------------------------------------------------------


def wait(device: str) -> None:
    """Until the device has done what it was told to do."""
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def memory(device: str) -> Iterator[dict[str, float]]:
    """The most memory that the device held inside the with, in GiB."""
    found: dict[str, float] = {}
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    yield found
    if device == "cuda":
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30


def shape(sizes: Sizes, name: str, **changes: Any) -> TransformerConfig:
    """The paper's base or big model, narrower for --tiny."""
    build = getattr(TransformerConfig, name)
    vocab = {"src_vocab": sizes.vocab, "tgt_vocab": sizes.vocab}
    config = build(**vocab, **changes)
    if sizes.shrink == 1:
        return config
    return replace(
        config,
        d_model=config.d_model // sizes.shrink,
        d_ff=config.d_ff // sizes.shrink,
        d_k=None,
        d_v=None,
        num_encoder_layers=2,
        num_decoder_layers=2,
    )


def draw_corpus(sizes: Sizes, pairs: int, seed: int) -> Corpus:
    """Random pairs whose lengths are spread like those of a news corpus:
    log-normal, the target as long as the source but for some per cent.
    """
    draw = np.random.default_rng(seed)
    spread = 0.55
    middle = math.log(sizes.mean_length) - spread**2 / 2
    src = np.exp(draw.normal(middle, spread, pairs))
    tgt = src * np.exp(draw.normal(0, 0.15, pairs))
    longest = round(8 * sizes.mean_length)
    sides = [
        Sentences.of(
            [
                draw.integers(len(SPECIALS), sizes.vocab, n)
                for n in np.clip(lengths.round().astype(int), 1, longest)
            ]
        )
        for lengths in (src, tgt)
    ]
    return Corpus(*sides)


def needed_flops(config: TransformerConfig, batch: Batch) -> float:
    """Floating-point operations of the matrix products that a training
    step needs for this batch. Padding needs none.
    """
    c = config
    d, heads = c.d_model, c.num_heads * (c.key_size + c.value_size)
    attention = 2 * d * heads  # the projections of q, k, v and the output
    keys = d * heads  # of which these belong to the memory
    network = 2 * d * c.d_ff
    n = (batch.src != PAD).sum(dim=1).double()
    m = (batch.tgt != PAD).sum(dim=1).double()
    source = c.num_encoder_layers * (attention + network)
    source += c.num_decoder_layers * keys
    target = c.num_decoder_layers * (2 * attention - keys + network)
    target += d * c.tgt_vocab
    weights = source * n.sum() + target * m.sum()
    looks = c.num_encoder_layers * (n * n).sum()
    looks = looks + c.num_decoder_layers * (m * m + n * m).sum()
    # a product is 2 operations; the backward pass has two for each
    return float(2 * 3 * (weights + heads * looks))


# --- sections -------------------------------------------------------------


def peak(bench: Bench) -> dict[str, Any]:
    """Operations a second in one large matrix product of random numbers:
    what everything else is measured by.
    """
    size, device = bench.sizes.matrix, bench.device
    found = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        draw = torch.Generator(device).manual_seed(bench.seed)
        a, b = (
            torch.randn(size, size, generator=draw, device=device).to(dtype)
            for _ in range(2)
        )
        product = a @ b
        times = []
        for _ in range(bench.sizes.products):
            wait(device)
            started = time.perf_counter()
            torch.mm(a, b, out=product)
            wait(device)
            times.append(time.perf_counter() - started)
            if bench.left < 0:
                break
        found[f"{name}_flops"] = 2 * size**3 / median(times)
        found[f"{name}_best_flops"] = 2 * size**3 / min(times)
    return found


def tests(bench: Bench) -> dict[str, Any]:
    """The tests marked gpu: how many passed, failed, were skipped."""
    report = bench.out / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-rfE"]
    command += ["-p", "no:cacheprovider", f"--junitxml={report}"]
    done = subprocess.run(
        [*command, str(ROOT / "tests" / "engine" / "test_gpu.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=max(bench.left, 1),
    )
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    if report.is_file():
        text = report.read_text("utf-8")
        for name in counts:
            if match := re.search(rf'\b{name}="(\d+)"', text):
                counts[name] = int(match[1])
        report.unlink()
    lost = counts["failures"] + counts["errors"] + counts["skipped"]
    failed = [line for line in done.stdout.splitlines() if "FAILED" in line]
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest: {done.stdout[-500:]}{done.stderr}")
    return counts | {"passed": counts["tests"] - lost, "failed": failed}


MODES: dict[str, dict[str, Any]] = {  # of RunConfig
    "eager": {"precision": "bfloat16"},
    "compiled": {"precision": "bfloat16", "compile": True},
    "float32": {"precision": "float32"},
}


def train_speed(bench: Bench, name: str) -> dict[str, Any]:
    """Steps of the real trainer on random sentences, in each mode."""
    peaks = read(bench.out, "peak").get("bf16_flops")
    modes, share = {}, bench.left / len(MODES)
    for mode, changes in MODES.items():
        try:
            modes[mode] = speed_of(
                bench, name, time.time() + share, changes
            )
        except Exception as error:  # the other modes still count
            modes[mode] = {"error": trouble(error)}
            continue
        if peaks and changes["precision"] == "bfloat16":
            reached = modes[mode]["needed_flops_per_second"]
            modes[mode]["peak_share"] = reached / peaks
    if all("error" in found for found in modes.values()):
        raise RuntimeError(next(iter(modes.values()))["error"])
    return modes


def speed_of(
    bench: Bench,
    name: str,
    end: float,
    changes: dict[str, Any],
) -> dict[str, Any]:
    """Medians over steps, after some that do not count."""
    sizes, device = bench.sizes, bench.device
    set_up(device)  # as annotated train does
    torch.manual_seed(bench.seed)
    config = shape(sizes, name)
    model = Transformer(config).to(device)
    each = sizes.batch_tokens / (sizes.mean_length + 1)
    corpus = draw_corpus(
        sizes, max(8, int(each * sizes.batches)), bench.seed
    )
    training = RunConfig(
        batch_tokens=sizes.batch_tokens,
        max_steps=sizes.warm + sizes.steps,
        seed=bench.seed,
        **changes,
    )
    trainer = Trainer(model, corpus, training)
    plans: dict[int, list[Any]] = {}
    rows, losses = [], []
    before = time.perf_counter()
    with memory(device) as most:
        for progress in trainer.steps():
            wait(device)
            now = time.perf_counter()
            losses.append(progress.loss)
            epoch = progress.epoch
            if epoch not in plans:
                plans[epoch] = corpus.plan(
                    sizes.batch_tokens, bench.seed, epoch
                )
                done = progress.step - 1
            if progress.step > sizes.warm:
                pairs = plans[epoch][progress.step - 1 - done]
                batch = corpus.batch(pairs)
                sides = [
                    int((x != PAD).sum()) for x in (batch.src, batch.tgt)
                ]
                flops = needed_flops(config, batch)
                rows.append((now - before, *sides, flops))
            if time.time() > end and len(rows) >= 2:
                break
            before = time.perf_counter()
    seconds, src, tgt, flops = (sum(column) for column in zip(*rows))
    return {
        "steps": len(rows),
        "step_ms": 1000 * median(row[0] for row in rows),
        "src_tokens_per_step": src / len(rows),
        "tgt_tokens_per_step": tgt / len(rows),
        "tgt_tokens_per_second": tgt / seconds,
        "tokens_per_second": (src + tgt) / seconds,
        "needed_flops_per_second": flops / seconds,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        **most,
    }


def train_base(bench: Bench) -> dict[str, Any]:
    """Training at the paper's base shape."""
    return train_speed(bench, "base")


def train_big(bench: Bench) -> dict[str, Any]:
    """Training at the paper's big shape."""
    return train_speed(bench, "big")


def decode(bench: Bench) -> dict[str, Any]:
    """Beam search at the base shape with random weights. Such a model
    hardly ever ends a sentence, so the limit does: a token more than the
    source has. Tokens are those of the best hypotheses, their ends too.
    """
    sizes, device = bench.sizes, bench.device
    sentences = list(draw_corpus(sizes, sizes.sentences, bench.seed).src)
    found: dict[str, Any] = {"sentences": len(sentences)}
    roads = {
        "fp32 beam 4": (torch.float32, 4),
        "bf16 beam 4": (torch.bfloat16, 4),
        "bf16 greedy": (torch.bfloat16, 1),
    }
    share = bench.left / len(roads)
    for road, (dtype, beam) in roads.items():
        torch.manual_seed(bench.seed)
        model = Transformer(shape(sizes, "base")).to(device, dtype).eval()
        search = SearchConfig(beam=beam, extra=1)
        few = sentences[: max(1, len(sentences) // 16)]
        try:
            with memory(device) as most:
                search_in_order(model, few, search, sizes.decode_tokens)
                seconds, tokens, count = 0.0, 0, 0
                for part in parts_of(sentences, 4):
                    wait(device)
                    started = time.perf_counter()
                    best = search_in_order(
                        model, part, search, sizes.decode_tokens
                    )
                    wait(device)
                    seconds += time.perf_counter() - started
                    tokens += sum(len(one[0].ids) + 1 for one in best)
                    count += len(part)
                    if seconds > share:
                        break
        except Exception as error:  # the other roads still count
            found[road] = {"error": trouble(error)}
            continue
        found[road] = {
            "tokens_per_second": tokens / seconds,
            "sentences_per_second": count / seconds,
            **most,
        }
    if all("error" in found[road] for road in roads):
        raise RuntimeError(found["fp32 beam 4"]["error"])
    return found


def parts_of(items: list[Any], count: int) -> list[list[Any]]:
    """Every count-th, from the first, from the second, and so on."""
    return [part for i in range(count) if (part := items[i::count])]


def learn(bench: Bench) -> dict[str, Any]:
    """A training that converges, and the BLEU of what it gives."""
    # here, not above: they want packages that the rest can do without
    from annotated.corpora.registry import data_folder, registry
    from annotated.engine.data import open_data
    from annotated.engine.recipes import RECIPES
    from annotated.engine.runner import train_recipe
    from annotated.engine.runs import Run
    from annotated.evaluation import score

    data = bench.data
    if data is None:
        known = [name for name in ("multi30k",) if name in registry()]
        there = [n for n in known if (data_folder() / n).is_dir()]
        data = there[0] if there else "pocket"
    recipe = RECIPES[data] if data in RECIPES else RECIPES["multi30k"]
    tiny = bench.sizes.shrink > 1
    changes: dict[str, Any] = {
        "max_minutes": 0.6 * bench.left / 60,
        "precision": "bfloat16",
    }
    if data not in RECIPES:
        changes["data"] = data
    if tiny:
        changes |= {
            "max_steps": 6, "save_every": 3, "warmup": 2, "keep": 2,
            "d_model": 32, "d_ff": 64, "num_encoder_layers": 1,
            "num_decoder_layers": 1, "train_pairs": 200, "vocab": 300,
            "cooldown": 0, "extra": 2,
        }  # fmt: skip
    recipe = recipe.changed(**changes)
    folder = bench.out / "run"
    shutil.rmtree(folder, ignore_errors=True)
    summary = train_recipe(recipe, folder, device=bench.device)
    run = Run.open(folder)
    run.model.to(bench.device)
    src, ref = open_data(recipe).text("test")
    if tiny:
        src, ref = src[:8], ref[:8]
    wait(bench.device)
    started = time.perf_counter()
    found = [best[0].text for best in run.translate(src)]
    seconds = time.perf_counter() - started
    shutil.rmtree(folder)
    scores = score(found, ref, split_compounds=True) | {"seconds": seconds}
    samples = [list(row) for row in zip(src[:5], ref[:5], found[:5])]
    return {
        **summary,
        "data": data,
        "test": scores,
        "recipe": asdict(recipe),
        "samples": samples,
    }


SECTIONS: dict[str, tuple[Callable[[Bench], dict[str, Any]], float]] = {
    # and how many seconds each may take; together under nine minutes
    "peak": (peak, 25),
    "tests": (tests, 90),
    "train-base": (train_base, 110),
    "train-big": (train_big, 80),
    "decode": (decode, 60),
    "learn": (learn, 150),
}
GRACE = 4  # seconds more before a section is stopped from outside


# --- one section, in a process of its own ---------------------------------


def read(out: Path, section: str) -> dict[str, Any]:
    """What a section has found; nothing where it has not been run."""
    path = out / "sections" / f"{section}.json"
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def trouble(error: BaseException) -> str:
    """An error in a line."""
    what = " ".join(str(error).split())
    return f"{type(error).__name__}: {what}"[:500]


def run_section(name: str, bench: Bench) -> int:
    """Do it and write what it found, or what went wrong."""
    started = time.perf_counter()
    try:
        found = SECTIONS[name][0](bench)
    except Exception as error:
        found = {"error": trouble(error)}
    found["seconds"] = time.perf_counter() - started
    path = bench.out / "sections" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rounded(found)), "utf-8")
    return 0


# --- all of them ----------------------------------------------------------


def supervise(name: str, seconds: float, options: list[str]) -> str | None:
    """Run a section in a process of its own; what went wrong, if so."""
    command = [sys.executable, __file__, *options]
    command += ["--section", name, "--until", f"{time.time() + seconds}"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(timeout=seconds + GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # its children too
        process.wait()
        return f"stopped after {seconds + GRACE:.0f} seconds"
    return f"ended with exit code {code}" if code else None


def write_all(
    args: argparse.Namespace, names: list[str], seconds: float
) -> dict[str, Any]:
    """gpu.json, and gpu-learn.json if there was a training."""
    metrics = {name: read(args.out, name) for name in names}
    learned = metrics.get("learn", {})
    command = "python benchmarks/gpu.py" + " --tiny" * args.tiny
    common: dict[str, Any] = {"seed": 0, "packages": PACKAGES}
    common["device"] = args.device
    if "test" in learned:
        keys = ("recipe", "samples", "data")
        rest = {k: v for k, v in learned.items() if k not in keys}
        content = entry(
            learned["data"],
            f"{command} --only learn",
            rest,
            wall_seconds=learned["seconds"],
            settings=learned["recipe"],
            samples=learned["samples"],
            **common,
        )
        write(args.out / "gpu-learn.json", content)
        metrics["learn"] = {
            "data": learned["data"],
            "bleu": learned["test"]["bleu"],
            "signature": learned["test"]["signature"],
        }
    content = entry(
        "gpu",
        command,
        metrics,
        wall_seconds=seconds,
        settings=asdict(TINY if args.tiny else Sizes()),
        **common,
    )
    write(args.out / "gpu.json", content)
    return metrics


def parse(args: list[str] | None) -> argparse.Namespace:
    """The command line. Not tyro: a borrowed machine may not have it."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", help="some sections, with commas")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--data", help="to train on: a data set, a folder")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    found = parser.parse_args(args)
    there = torch.cuda.is_available()
    found.device = found.device or ("cuda" if there else "cpu")
    if found.device == "cuda" and not there:
        parser.error("there is no CUDA device here")
    if found.device == "cpu" and not found.tiny:
        parser.error("there is no CUDA device here; --tiny runs anywhere")
    found.names = (found.only or ",".join(SECTIONS)).split(",")
    if strange := set(found.names) - set(SECTIONS):
        parser.error(
            f"no section {', '.join(sorted(strange))}; there are "
            f"{', '.join(SECTIONS)}"
        )
    return found


def main(args: list[str] | None = None) -> int:
    """Run the sections one after the other; 1 if one of them failed."""
    found = parse(args)
    if found.section:
        bench = Bench(
            TINY if found.tiny else Sizes(),
            found.device,
            found.out,
            found.data,
            found.until,
        )
        return run_section(found.section, bench)
    found.out.mkdir(parents=True, exist_ok=True)
    options = ["--out", str(found.out), "--device", found.device]
    options += ["--tiny"] * found.tiny
    options += ["--data", found.data] if found.data else []
    started = time.monotonic()
    end = started + 60 * found.minutes
    for i, name in enumerate(found.names):
        path = found.out / "sections" / f"{name}.json"
        path.unlink(missing_ok=True)
        seconds = min(SECTIONS[name][1], end - time.monotonic() - GRACE)
        if seconds > 1:
            wrong = supervise(name, seconds, options)
        else:
            wrong = "not begun: the minutes were used up"
        if wrong and not path.is_file():
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({"error": wrong}), "utf-8")
        metrics = write_all(
            found, found.names[: i + 1], time.monotonic() - started
        )
        print(f"{name}: {json.dumps(metrics[name])[:2000]}", flush=True)
    return int(any("error" in one for one in metrics.values()))


if __name__ == "__main__":
    sys.exit(main())
