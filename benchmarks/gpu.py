"""Everything that a GPU is wanted for, in one call of fourteen minutes.

    python benchmarks/gpu.py --out gpu-results
    python benchmarks/gpu.py --out gpu-results --only peak,train-base
    python benchmarks/gpu.py --out /tmp/try --tiny        # any machine

Sections: the matrix peak of this machine, now; the tests that need a GPU;
the trainer with and without the attention that plans for each new shape;
a step beside torch.nn's and Marian's, eager and compiled; the trainer beside
its own ready-made batches; a profile by kind of work; each kernel beside what
it replaces; training at the paper's base and big shape, 25,000 tokens a side
and step; decoding at the base shape with a beam of 4, and beside
transformers.generate and CTranslate2, where that is installed; chapter 26's
three translators until they are equally good; a training that converges.
Where --only asks for them: the recipe for captions with ten seeds and each
trial that it came of (trials.py); and quality by the clock, BLEU after five
minutes at the base shape, ours beside transformers' Marian.

Each section runs in a process of its own, within its own time, so that a
crash or a standstill in one is noted and the others go on; of one that is
stopped the parts that were done stay. What is there is written after every
section, in a file of its own: gpu-peak.json, gpu-tests.json and so on, in the
form of book/results. --tiny goes the same way with small numbers, on a CPU
too, so that nothing is found broken on the day when a GPU is at hand.

It needs the package's dependencies and pytest, and no network. With
multi30k (or another data set that is named by --data) under ANNOTATED_DATA
the sections learn and clock train on it; else on pocket German. captions
needs multi30k.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from ledger import keep as keep_whole  # noqa: E402
from ledger import write  # noqa: E402

from annotated.batches import Batch, Corpus, Sentences, pad_rows  # noqa: E402
from annotated.book.results import entry, rounded  # noqa: E402
from annotated.engine import packing as packing_module  # noqa: E402
from annotated.engine.kernels import slow_row_losses  # noqa: E402
from annotated.engine.machine import set_up  # noqa: E402
from annotated.engine.micro import PackedBatch  # noqa: E402
from annotated.engine.packing import (  # noqa: E402
    PackedAttention,
    PackedMask,
    PackedTransformer,
    chunked_loss,
    compile_layers,
)
from annotated.engine.search import (  # noqa: E402
    batches_by_length,
    search_in_order,
)
from annotated.engine.trainer import (  # noqa: E402
    RunConfig,
    Trainer,
    packed_loss,
)
from annotated.model import Transformer, TransformerConfig  # noqa: E402
from annotated.schedule import (  # noqa: E402
    learning_rate,
    make_optimizer,
    set_learning_rate,
)
from annotated.search import SearchConfig  # noqa: E402
from annotated.tokens import BOS, EOS, PAD, SPECIALS  # noqa: E402

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
    clock: float = 300.0  # seconds of training, for each in the section
    judged: int = 2000  # sentences of the test set, there
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
    clock=2.0,
    judged=4,
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
    section: str = ""  # its name, where what it finds is kept

    @property
    def left(self) -> float:
        """Seconds that this section still has."""
        return self.deadline - time.time()


# --- tools ----------------------------------------------------------------


def keep(bench: Bench, found: dict[str, Any]) -> None:
    """Write what a section has found so far: one that is stopped later
    loses no more than what it was at.
    """
    if bench.section:
        path = bench.out / "sections" / f"{bench.section}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(rounded(found)), "utf-8")
        fresh.replace(path)


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
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "-rfE"]
    command += ["-p", "no:cacheprovider"]
    command.append(str(ROOT / "tests" / "engine" / "test_gpu.py"))
    told, code = bench.out / "tests.txt", None
    # a file, which tells what there is where it is stopped, too
    with told.open("w") as file, suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=max(bench.left, 1),
        )
        code = done.returncode
    lines = told.read_text("utf-8").splitlines()
    told.unlink()
    if code not in (0, 1, None):
        raise RuntimeError(f"pytest: {' '.join(lines)[-500:]}")
    how = Counter(
        match[1].lower()
        for line in lines
        if (match := re.search(r"::.* (PASSED|FAILED|ERROR|SKIPPED)", line))
    )
    failed = [line for line in lines if re.match("FAILED|ERROR", line)]
    counts = {k: how[k] for k in ("passed", "failed", "error", "skipped")}
    return counts | {"ended": code is not None, "which": failed}


MODES: dict[str, dict[str, Any]] = {  # of RunConfig
    "eager": {"precision": "bfloat16"},
    "float32": {"precision": "float32"},
    # the last: a compilation cannot be cut short
    "compiled": {"precision": "bfloat16", "compile": True},
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
        keep(bench, modes)
    if all("error" in found for found in modes.values()):
        raise RuntimeError(next(iter(modes.values()))["error"])
    return modes


def speed_of(
    bench: Bench,
    name: str,
    end: float,
    changes: dict[str, Any],
    begin: Callable[[Trainer], None] = lambda trainer: None,
    fresh: bool = False,
) -> dict[str, Any]:
    """Medians over steps, after some that do not count; begin is called
    with the trainer. fresh: no batch comes twice.
    """
    sizes, device = bench.sizes, bench.device
    set_up(device)  # as annotated train does
    torch.manual_seed(bench.seed)
    config = shape(sizes, name)
    model = Transformer(config).to(device)
    each = sizes.batch_tokens / (sizes.mean_length + 1)
    corpus = draw_corpus(
        sizes,
        max(8, int(each * (100 if fresh else sizes.batches))),
        bench.seed,
    )
    training = RunConfig(
        batch_tokens=sizes.batch_tokens,
        max_steps=sizes.warm + sizes.steps,
        seed=bench.seed,
        **changes,
    )
    trainer = Trainer(model, corpus, training)
    begin(trainer)
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
        keep(bench, found)
    if all("error" in found[road] for road in roads):
        raise RuntimeError(found["fp32 beam 4"]["error"])
    return found


# --- what the trainer is made of ------------------------------------------


def fresh(bench: Bench, count: int) -> tuple[Corpus, list[Batch]]:
    """A corpus of about count batches, and those: each of its own shape."""
    sizes = bench.sizes
    each = sizes.batch_tokens / (sizes.mean_length + 1)
    corpus = draw_corpus(sizes, max(8, int(each * count)), bench.seed + 1)
    plan = corpus.plan(sizes.batch_tokens, bench.seed, 0)
    return corpus, [corpus.batch(pairs) for pairs in plan]


def each_of(
    bench: Bench, contenders: dict[str, Callable[[], dict[str, Any]]]
) -> dict[str, Any]:
    """What each contender finds; a failure is noted, and the next goes on."""
    found: dict[str, Any] = {}
    for name, measure in contenders.items():
        try:
            found[name] = measure()
        except Exception as error:
            found[name] = {"error": trouble(error)}
        keep(bench, found)
        if bench.device == "cuda":
            torch.cuda.empty_cache()
        if bench.left < 0:
            break
    if all("error" in one for one in found.values()):
        raise RuntimeError(next(iter(found.values()))["error"])
    return found


def cause(bench: Bench) -> dict[str, Any]:
    """The trainer on padded batches of fresh shapes, with cuDNN's attention
    and without: the kernel that plans for each new shape.
    """
    share = bench.left / 3

    # before torch 2.5 there is no such kernel
    switch = getattr(torch.backends.cuda, "enable_cudnn_sdp", bool)

    def run(cudnn: bool, kernel: str | None) -> dict[str, Any]:
        def begin(trainer: Trainer) -> None:
            switch(cudnn)
            if kernel:
                model: Any = trainer.model
                model._kernel = lambda *sides: kernel

        changes = {"precision": "bfloat16"}
        end = time.time() + share
        try:
            return speed_of(bench, "base", end, changes, begin, fresh=True)
        finally:
            switch(False)

    return each_of(
        bench,
        {
            "padded, cuDNN": lambda: run(True, "padded"),
            "padded": lambda: run(False, "padded"),
            "as chosen": lambda: run(False, None),
        },
    )


def step(bench: Bench) -> dict[str, Any]:
    """A training step of ours, of torch.nn's model and of transformers'
    Marian, on batches of shapes not seen before, made beforehand.
    """
    import models
    import train_speed as peers

    sizes, device = bench.sizes, bench.device
    _, batches = fresh(bench, sizes.warm + sizes.steps)
    config = shape(sizes, "base")
    longest = max(max(b.src.size(1), b.tgt.size(1)) for b in batches)
    settings = peers.Settings(
        d_model=config.d_model,
        layers=config.num_encoder_layers,
        num_heads=config.num_heads,
        d_ff=config.d_ff,
        vocab=config.tgt_vocab,
        length=longest + 2,
        precision=("bfloat16",),
    )
    share = bench.left / 6

    def ours(compiled: bool) -> dict[str, Any]:
        torch.manual_seed(bench.seed)
        model = PackedTransformer(config).to(device).train()
        if compiled:
            compile_layers(model)
        training = RunConfig(precision="bfloat16")

        def loss(batch: Batch) -> Any:
            return packed_loss(model, batch, training)[0] / batch.tokens

        ready = [PackedBatch.of(b) for b in batches]
        return pace_of(bench, model, loss, ready, config, share)

    def theirs(build: Callable[[], Any], compiled: bool) -> dict[str, Any]:
        torch.manual_seed(bench.seed)
        model, call = build()
        called = torch.compile(model, dynamic=True) if compiled else model

        def loss(batch: Batch) -> Any:
            with torch.autocast(device, torch.bfloat16):
                logits = call(called, batch)
            return peers.padded_loss(logits.float(), batch, 0.1)

        return pace_of(bench, model, loss, batches, config, share)

    def torch_nn() -> Any:
        model = peers.TorchModel(settings).to(device).train()
        make = torch.nn.Transformer.generate_square_subsequent_mask
        model.core.generate_square_subsequent_mask = lambda n: make(
            n, device=device
        )
        return model, lambda f, b: f(b.src, b.tgt)

    def marian() -> Any:
        from transformers import MarianMTModel

        options = {
            "max_position_embeddings": longest + 8,
            "decoder_start_token_id": PAD,
            "use_cache": False,
        }
        made = models.marian_config(settings.config(dropout=0.1), **options)
        model = MarianMTModel(made).to(device).train()
        return (
            model,
            lambda f, b: (
                f(
                    input_ids=b.src,
                    attention_mask=(b.src != PAD).long(),
                    decoder_input_ids=b.tgt,
                ).logits
            ),
        )

    return each_of(
        bench,
        {
            "ours": lambda: ours(False),
            "torch.nn": lambda: theirs(torch_nn, False),
            "Marian": lambda: theirs(marian, False),
            # a compilation cannot be cut short
            "ours, compiled": lambda: ours(True),
            "torch.nn, compiled": lambda: theirs(torch_nn, True),
            "Marian, compiled": lambda: theirs(marian, True),
        },
    )


def pace_of(
    bench: Bench,
    model: Any,
    loss: Callable[[Any], Any],
    batches: list[Any],
    config: TransformerConfig,
    share: float,
) -> dict[str, Any]:
    """Milliseconds of whole steps, and per 1,000 target tokens."""
    device, warm, end = bench.device, bench.sizes.warm, time.time() + share
    optimizer = make_optimizer(list(model.parameters()))
    set_learning_rate(optimizer, 3e-4)
    times, tokens, flops = [], 0, 0.0
    with memory(device) as most:
        for i, batch in enumerate(batches):
            batch = batch.to(device)
            wait(device)
            started = time.perf_counter()
            found = loss(batch)
            found.backward()
            optimizer.step()
            optimizer.zero_grad()
            wait(device)
            if i >= warm:
                times.append(time.perf_counter() - started)
                tokens += batch.tokens
                flops += needed_flops(config, batch)
            if time.time() > end and times:
                break
    return {
        "steps": len(times),
        "step_ms": 1000 * median(times),
        "mean_ms": 1000 * sum(times) / len(times),
        "ms_per_1000_tokens": 1e6 * sum(times) / tokens,
        "tgt_tokens_per_second": tokens / sum(times),
        "needed_flops_per_second": flops / sum(times),
        "last_loss": found.item(),
        **most,
    }


def train(bench: Bench) -> dict[str, Any]:
    """The trainer with its reader, its log and its numbers, beside the
    same batches made beforehand: milliseconds per 1,000 target tokens.
    """
    from annotated.engine.log import Log

    sizes, device = bench.sizes, bench.device
    set_up(device)
    steps = sizes.warm + 5 * sizes.steps
    corpus, _ = fresh(bench, steps)
    changes: dict[str, Any] = {
        "batch_tokens": sizes.batch_tokens,
        "max_steps": steps,
        "precision": "bfloat16",
    }

    def begin() -> Trainer:
        torch.manual_seed(bench.seed)
        model = Transformer(shape(sizes, "base")).to(device)
        return Trainer(model, corpus, RunConfig(**changes))

    def whole() -> dict[str, Any]:
        trainer, folder = begin(), bench.out / "log"
        folder.mkdir(exist_ok=True)
        log, started, before = Log(folder, trainer), 0.0, 0
        for progress in trainer.steps():
            log.step(progress)
            if progress.step == sizes.warm:
                wait(device)
                started, before = time.perf_counter(), trainer.tokens
            if bench.left < 0:
                break
        wait(device)
        seconds = time.perf_counter() - started
        log.close()
        shutil.rmtree(folder)
        tokens = trainer.tokens - before
        return {"ms_per_1000_tokens": 1e6 * seconds / tokens}

    def ready(count: int = steps) -> dict[str, Any]:
        trainer = begin()
        source, works = trainer.batches(), []
        for _ in range(count):
            works.append(next(source)[0])
        for i, work in enumerate(works):
            if i == sizes.warm:
                wait(device)
                started = time.perf_counter()
            trainer.learn(work)
        wait(device)
        seconds = time.perf_counter() - started
        tokens = sum(work.tokens for work in works[sizes.warm :])
        return {"ms_per_1000_tokens": 1e6 * seconds / tokens}

    ready(2 * sizes.warm)  # the first calls of each kernel are slow
    found = each_of(bench, {"ready batches": ready, "the trainer": whole})
    paces = [one.get("ms_per_1000_tokens") for one in found.values()]
    if len(paces) == 2 and all(paces):
        found["times as long"] = paces[1] / paces[0]
    return found


KINDS = (  # of work, by what a kernel's name has in it
    ("products", ("nvjet", "gemm", "cutlass", "addmm", "aten::mm", "bmm")),
    ("attention", ("flash", "fmha", "attention")),
    ("loss", ("_rows", "softmax", "SoftMax")),
    ("norms", ("layer_norm", "LayerNorm", "GammaBeta")),
    ("optimiser", ("adam", "Adam")),
    ("dropout", ("dropout", "random", "bernoulli")),
    ("copies and casts", ("copy", "Memcpy", "cat", "Cat")),
    ("sums and the rest", ("",)),
)


def kind_of(kernel: str) -> str:
    """The kind of work that a kernel of this name does."""
    if kernel in ("_forward", "_backward"):  # page E31's
        return "attention"
    return next(k for k, parts in KINDS if any(p in kernel for p in parts))


def profile(bench: Bench) -> dict[str, Any]:
    """Where the device's time goes in a step, by kind of work, in ms."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    sizes, gpu = bench.sizes, bench.device == "cuda"
    _, batches = fresh(bench, sizes.warm + 4)
    model = PackedTransformer(shape(sizes, "base")).to(bench.device).train()
    optimizer = make_optimizer(list(model.parameters()))
    training = RunConfig(precision="bfloat16")

    def run(some: list[Batch]) -> None:
        for batch in some:
            batch = PackedBatch.of(batch).to(bench.device)
            (
                packed_loss(model, batch, training)[0] / batch.tokens
            ).backward()
            optimizer.step()
            optimizer.zero_grad()
        wait(bench.device)

    run(batches[: sizes.warm])
    counted = batches[sizes.warm :][:4]
    kinds = [ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]
    with profiler(activities=kinds) as profiled:
        run(counted)
    name = "self_device_time_total" if gpu else "self_cpu_time_total"
    found: dict[str, Any] = {kind: 0.0 for kind, _ in KINDS}
    kernels = []
    for event in profiled.key_averages():
        ms = getattr(event, name, 0.0) / 1000 / len(counted)
        found[kind_of(event.key)] += ms
        kernels.append((event.key[:90], ms, event.count // len(counted)))
    found["longest"] = sorted(kernels, key=lambda row: -row[1])[:20]
    return found


def kernels(bench: Bench) -> dict[str, Any]:
    """Attention and loss by each kernel, with the gradient, in ms."""
    sizes, device = bench.sizes, bench.device
    config = shape(sizes, "base")
    _, batches = fresh(bench, 3)
    packing = PackedBatch.of(batches[0]).to(device).source
    heads, d, gpu = config.num_heads, config.key_size, device == "cuda"
    dtype = torch.bfloat16 if gpu else torch.float32
    tokens = len(packing.index)
    rows = [torch.randn(tokens, heads, d, device=device).to(dtype)
            for _ in "qkv"]  # fmt: skip
    rows = [x.requires_grad_() for x in rows]

    def attend(kernel: str) -> Callable[[], Any]:
        mask = PackedMask.to(packing, packing, kernel=kernel)
        layer = PackedAttention(heads * d, heads).to(device, dtype)
        x = rows[0].flatten(1)
        return lambda: layer(x, mask=mask)

    x = torch.randn(tokens, config.d_model, device=device).to(dtype)
    weight = torch.randn(config.tgt_vocab, config.d_model, device=device)
    x, weight = x.requires_grad_(), weight.requires_grad_()
    labels = torch.randint(4, config.tgt_vocab, (tokens,), device=device)
    fused = getattr(torch.nn.functional, "linear_cross_entropy", None)

    def chunks() -> Any:
        return chunked_loss(x, weight, labels, 0.1)[0]

    def slow_chunks() -> Any:
        own, packing_module.row_losses = (
            packing_module.row_losses,
            slow_row_losses,
        )
        try:
            return chunks()
        finally:
            packing_module.row_losses = own

    def torchs() -> Any:
        if fused is None:
            raise RuntimeError("this torch has none")
        return fused(
            x,
            weight.to(dtype),
            labels,
            label_smoothing=0.1,
            reduction="sum",
        )

    def timed(run: Callable[[], Any]) -> dict[str, Any]:
        times = []
        for _ in range(3 + sizes.products):
            wait(device)
            started = time.perf_counter()
            run().float().sum().backward()
            wait(device)
            times.append(time.perf_counter() - started)
        return {"ms": 1000 * median(times[3:])}

    contenders = {
        "attention, a sentence a program": attend("sentences"),
        "attention, varlen": attend("varlen"),
        "attention, padded": attend("padded"),
        "loss, as chosen": chunks,
        "loss, in chunks": slow_chunks,
        "loss, torch's own": torchs,
    }
    return each_of(
        bench,
        {n: (lambda run=run: timed(run)) for n, run in contenders.items()},
    )


def generate(bench: Bench) -> dict[str, Any]:
    """Ours beside transformers.generate: the same sizes and batches, beams
    of 4 and outputs as long as their sources, with random weights.
    """
    sizes, device, gpu = bench.sizes, bench.device, bench.device == "cuda"
    dtype = torch.bfloat16 if gpu else torch.float32
    config = shape(sizes, "base")
    sentences = list(draw_corpus(sizes, sizes.sentences, bench.seed).src)
    longest = max(map(len, sentences))
    size = 2 * longest + 8

    def pace(run: Callable[[list[Any]], Any]) -> dict[str, Any]:
        run(sentences[: max(1, len(sentences) // 16)])
        wait(device)
        started = time.perf_counter()
        run(sentences)
        wait(device)
        seconds = time.perf_counter() - started
        return {"sentences_per_second": len(sentences) / seconds}

    def ours() -> dict[str, Any]:
        torch.manual_seed(bench.seed)
        model = Transformer(config).to(device, dtype).eval()
        search = SearchConfig(beam=4, extra=1)
        tokens = sizes.decode_tokens
        return pace(
            lambda some: search_in_order(model, some, search, tokens)
        )

    def theirs() -> dict[str, Any]:
        import models
        from transformers import MarianMTModel

        torch.manual_seed(bench.seed)
        made = models.marian_config(
            config, max_position_embeddings=size, decoder_start_token_id=PAD
        )
        model = MarianMTModel(made).to(device, dtype).eval()

        def run(some: list[Any]) -> None:
            batches = batches_by_length(some, sizes.decode_tokens, 512)
            for batch in batches:
                rows = pad_rows([np.asarray(some[i]) for i in batch])
                rows = rows.to(device)
                model.generate(
                    rows,
                    attention_mask=(rows != PAD).long(),
                    num_beams=4,
                    max_new_tokens=rows.size(1) + 1,
                )

        with torch.no_grad():
            return pace(run)

    def converted() -> dict[str, Any]:
        try:
            from ctranslate2 import Translator
        except ImportError:
            return {"skipped": "ctranslate2 is not installed here"}
        from annotated.exchange.export import write_ctranslate2

        torch.manual_seed(bench.seed)
        model = Transformer(config).eval()
        words = [*SPECIALS, *map(str, range(len(SPECIALS), sizes.vocab))]
        folder = bench.out / "ctranslate2"
        shutil.rmtree(folder, ignore_errors=True)
        write_ctranslate2(model, words, words, folder)
        kind = "bfloat16" if gpu else "float32"
        translator = Translator(
            str(folder), device=device, compute_type=kind
        )

        def run(some: list[Any]) -> None:
            for batch in batches_by_length(some, sizes.decode_tokens, 512):
                rows = [[words[i] for i in some[j]] for j in batch]
                translator.translate_batch(
                    rows,
                    beam_size=4,
                    length_penalty=0.0,
                    max_decoding_length=max(map(len, rows)) + 1,
                )

        try:
            return pace(run)
        finally:
            shutil.rmtree(folder)

    contenders = {"ours": ours, "transformers": theirs}
    return each_of(bench, contenders | {"CTranslate2": converted})


def race(bench: Bench) -> dict[str, Any]:
    """Page 26's three translators, until they are equally good: the seconds
    and the steps that each takes on this device.
    """
    import translators

    tiny = bench.sizes.shrink > 1
    settings = translators.Settings(
        device=bench.device,
        nll=(1e9,) if tiny else (0.5, 0.2),
        steps=1 if tiny else 2000,
        pairs=40 if tiny else 100_000,
        width=16 if tiny else 128,
    )
    data = translators.corpora(settings.pairs)

    def one(kind: str) -> dict[str, Any]:
        peak = settings.peaks[-1]
        return translators.train(settings, kind, peak, bench.seed, *data)

    return each_of(
        bench, {k: (lambda k=k: one(k)) for k in translators.KINDS}
    )


def parts_of(items: list[Any], count: int) -> list[list[Any]]:
    """Every count-th, from the first, from the second, and so on."""
    return [part for i in range(count) if (part := items[i::count])]


def recipe_of(bench: Bench, *, base: bool) -> tuple[str, Any]:
    """What to train on, and the recipe for it: if base, or where the data
    have none of their own, the paper's base model and batch.
    """
    # here, not above: they want packages that the rest can do without
    from annotated.corpora.registry import data_folder, registry
    from annotated.engine.recipes import RECIPES

    data, sizes = bench.data, bench.sizes
    if data is None:
        known = [name for name in ("multi30k",) if name in registry()]
        there = [n for n in known if (data_folder() / n).is_dir()]
        data = there[0] if there else "pocket"
    changes: dict[str, Any] = {"precision": "bfloat16"}
    if data not in RECIPES:
        changes["data"] = data
    if base or data not in RECIPES:
        # as many steps as there is time for, half of them cooling down
        changes |= {
            "fit": (), "d_model": 512, "d_ff": 2048, "num_heads": 8,
            "num_encoder_layers": 6, "num_decoder_layers": 6,
            "batch_tokens": sizes.batch_tokens, "rate": 1.0, "warmup": 1000,
            "max_steps": 100_000, "cooldown": 50_000,
        }  # fmt: skip
    if sizes.shrink > 1:
        changes |= {
            "max_steps": 6, "save_every": 3, "warmup": 2, "keep": 2,
            "d_model": 32, "d_ff": 64, "num_encoder_layers": 1,
            "num_decoder_layers": 1, "train_pairs": 200, "vocab": 300,
            "cooldown": 0, "extra": 2,
        }  # fmt: skip
    own = RECIPES[data if data in RECIPES else "pair"]
    return data, own.changed(**changes)


def judged(
    bench: Bench,
    recipe: Any,
    translate: Callable[[list[str]], list[str]],
    most: int | None = None,
) -> dict[str, Any]:
    """The scores of translations of the test set, and some of them."""
    from annotated.engine.data import open_data
    from annotated.evaluation import score

    src, ref = open_data(recipe).text("test")
    most = 8 if bench.sizes.shrink > 1 and most is None else most
    src, ref = src[:most], ref[:most]
    wait(bench.device)
    started = time.perf_counter()
    found = translate(src)
    seconds = time.perf_counter() - started
    scores = score(found, ref, split_compounds=True) | {"seconds": seconds}
    samples = [list(row) for row in zip(src[:5], ref[:5], found[:5])]
    return {"test": scores, "samples": samples}


def trained(
    bench: Bench, recipe: Any, most: int | None = None
) -> dict[str, Any]:
    """What annotated train and evaluate make of a recipe."""
    from annotated.engine.runner import train_recipe
    from annotated.engine.runs import Run

    folder = bench.out / "run"
    shutil.rmtree(folder, ignore_errors=True)
    summary = train_recipe(recipe, folder, device=bench.device)
    run = Run.open(folder)
    run.model.to(bench.device)

    def translate(lines: list[str]) -> list[str]:
        return [best[0].text for best in run.translate(lines)]

    found = judged(bench, recipe, translate, most)
    shutil.rmtree(folder)
    return summary | found


def learn(bench: Bench) -> dict[str, Any]:
    """A training that converges, and the BLEU of what it gives."""
    data, recipe = recipe_of(bench, base=False)
    recipe = recipe.changed(max_minutes=0.6 * bench.left / 60)
    found = trained(bench, recipe)
    return found | {"data": data, "recipe": asdict(recipe)}


def clock(bench: Bench) -> dict[str, Any]:
    """Quality by the clock: BLEU after as many seconds of training at the
    paper's base shape, ours and transformers' Marian, from the same pairs,
    tokens, batches and rates. Who has finished in a call before is kept, so
    that several calls may share the time.
    """
    data, recipe = recipe_of(bench, base=True)
    seconds = bench.sizes.clock
    recipe = recipe.changed(max_minutes=seconds / 60)
    most, work = bench.sizes.judged, bench.out / "clock"
    contenders: dict[str, Callable[[], dict[str, Any]]] = {
        "ours": lambda: trained(bench, recipe, most),
        "Marian, compiled": lambda: marian_by_the_clock(
            bench, recipe, True
        ),
        "Marian": lambda: marian_by_the_clock(bench, recipe, False),
    }
    asked = {"data": data, "recipe": asdict(recipe), "judged": most}
    found: dict[str, Any] = {}
    for name, measure in contenders.items():
        note = work / f"{name}.json"
        known = (
            json.loads(note.read_text("utf-8")) if note.is_file() else {}
        )
        if known.get("asked") == rounded(asked):
            found[name] = known["found"]
        elif bench.left > 1.3 * seconds:  # corpus and search take time, too
            try:
                found[name] = measure()
                kept = rounded({"asked": asked, "found": found[name]})
                keep_whole(note, json.dumps(kept))
            except Exception as error:
                found[name] = {"error": trouble(error)}
            if bench.device == "cuda":
                torch.cuda.empty_cache()
        else:
            found[name] = {"skipped": "no time was left: call again"}
        keep(bench, found | {"settings": asked})
    return found | {"settings": asked}


# Marian has the norm after the sub-layers, which bears half of our peak
MARIAN_RATE = 0.5


def marian_by_the_clock(
    bench: Bench, recipe: Any, compiled: bool
) -> dict[str, Any]:
    """transformers' Marian on the recipe's corpus: the time begins with the
    first batch, so compiling counts; in its second half the rate falls.
    """
    import models
    import train_speed as peers
    from transformers import MarianMTModel

    from annotated.engine.start import begin_run

    device, training = bench.device, recipe.training
    with TemporaryDirectory(dir=bench.out) as place:
        run, corpus, _ = begin_run(recipe, Path(place) / "run", device)
    sizes, longest = run.model.config, 1024
    torch.manual_seed(bench.seed)
    made = models.marian_config(
        sizes,
        max_position_embeddings=longest,
        decoder_start_token_id=BOS,
    )
    model = MarianMTModel(made).to(device).train()
    called = torch.compile(model, dynamic=True) if compiled else model
    optimizer = make_optimizer(list(model.parameters()))
    limit, step, tokens = 60 * training.max_minutes, 0, 0
    plans = (
        pairs
        for epoch in itertools.count()
        for pairs in corpus.plan(training.batch_tokens, bench.seed, epoch)
    )
    set_up(device)
    started = time.perf_counter()
    for pairs in plans:
        left = 1 - (time.perf_counter() - started) / limit
        if left <= 0 or step == training.max_steps:
            break
        batch = corpus.batch(pairs)
        tokens += batch.tokens
        batch = batch.to(device)
        with torch.autocast(device, torch.bfloat16, device == "cuda"):
            logits = called(
                input_ids=batch.src,
                attention_mask=(batch.src != PAD).long(),
                decoder_input_ids=batch.tgt,
                use_cache=False,
            ).logits
        loss = peers.padded_loss(
            logits.float(), batch, training.label_smoothing
        )
        loss.backward()
        step += 1
        rate = learning_rate(
            step,
            sizes.d_model,
            training.warmup,
            MARIAN_RATE * training.rate,
        )
        set_learning_rate(optimizer, rate * min(1.0, 2 * left))
        optimizer.step()
        optimizer.zero_grad()
        # not further ahead of the device than this
        if step % 10 == 0 and not math.isfinite(loss.item()):
            raise RuntimeError(f"the loss is not finite at step {step}")
    last = loss.item()
    seconds = time.perf_counter() - started
    model.eval()

    @torch.no_grad()
    def translate(lines: list[str]) -> list[str]:
        rows = [ids[: longest - 1] for ids in run.source.encode(lines)]
        best: list[list[int]] = [[] for _ in rows]
        batches = batches_by_length(rows, bench.sizes.decode_tokens, 512)
        for some in batches:
            src = pad_rows([np.asarray(rows[i]) for i in some], after=EOS)
            src = src.to(device)
            room = src.size(1) + recipe.search.extra
            written = model.generate(
                src,
                attention_mask=(src != PAD).long(),
                num_beams=recipe.search.beam,
                max_new_tokens=min(room, longest - 1),
            )
            for i, ids in zip(some, written.tolist(), strict=True):
                best[i] = ids
        return run.target.decode(best)

    found = judged(bench, recipe, translate, bench.sizes.judged)
    return found | {
        "steps": step,
        "tokens": tokens,
        "seconds": seconds,
        "parameters": model.num_parameters(),
        "last_loss": last,
    }


def captions(bench: Bench) -> dict[str, Any]:
    """The recipe for captions with ten seeds, then each trial that it came
    of with one, on the validation set: as many as there is time for. They
    stay under --out, and a second call goes on behind them.
    """
    import trials

    change: dict[str, Any] = {}
    if bench.sizes.shrink > 1:
        change = {
            "data": "pocket", "vocab": 300, "train_pairs": 200,
            "valid_pairs": 6, "max_steps": 6, "save_every": 3, "warmup": 2,
            "cooldown": 0, "keep": 2, "d_model": 16, "d_ff": 32, "extra": 2,
        }  # fmt: skip
    jobs = [(trials.RECIPE, seed) for seed in range(10)]
    jobs += [(name, 0) for name in trials.TRIALS if name != trials.RECIPE]
    bench = replace(bench, out=bench.out.resolve())
    os.chdir(ROOT)  # trials name files of this repository
    os.environ["OMP_NUM_THREADS"] = "1"  # of the commands that are typed
    work = bench.out / ("captions-tiny" if change else "captions")
    found: dict[str, Any] = {"rows": {}, "runs": []}
    pace = 0.0  # seconds of a step, with all that belongs to a run
    for name, seed in jobs:
        steps = trials.TRIALS[name]["max_steps"]
        known = (trials.folder_of(work, name, seed) / "trial.json").exists()
        if pace * steps > bench.left and not known:
            break
        began = time.time()
        try:
            run = trials.made(work, name, seed, bench.device, change)
        except (Exception, SystemExit) as error:
            found["error"] = f"{name}, seed {seed}: {trouble(error)}"
            keep(bench, found)
            continue
        spent = 1.2 * run["seconds"] if known else time.time() - began
        pace = max(pace, spent / steps)
        runs = [*found["runs"], run]
        rows = trials.rows_of(runs, "trial", trials.TRIALS, trials.VALUES)
        found |= {"rows": rows, "runs": runs}
        keep(bench, found)
    return found


SECTIONS: dict[str, tuple[Callable[[Bench], dict[str, Any]], float]] = {
    # and how many seconds each may take; together under fourteen minutes
    "peak": (peak, 20),
    "tests": (tests, 100),
    "cause": (cause, 50),
    "step": (step, 95),
    "train": (train, 60),
    "profile": (profile, 25),
    "kernels": (kernels, 25),
    "train-base": (train_base, 80),
    "train-big": (train_big, 45),
    "decode": (decode, 50),
    "generate": (generate, 50),
    "translators": (race, 60),
    "learn": (learn, 128),
    "captions": (captions, 840),
    "clock": (clock, 840),
}
ALONE = {"captions", "clock"}  # only where it is asked for
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
    bench = replace(bench, section=name)
    try:
        found = SECTIONS[name][0](bench)
    except Exception as error:
        found = {"error": trouble(error)}
    keep(bench, found | {"seconds": time.perf_counter() - started})
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


def write_ledger(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """The ledger file of a section, gpu-SECTION.json; what it found."""
    found = read(args.out, name)
    command = "python benchmarks/gpu.py" + " --tiny" * args.tiny
    if args.minutes:
        command += f" --minutes {args.minutes:g}"
    more: dict[str, Any] = {
        "settings": asdict(TINY if args.tiny else Sizes())
    }
    recipe, metrics = "gpu", found
    if "recipe" in found:  # a training
        recipe, keys = found["data"], ("recipe", "samples", "data")
        metrics = {k: v for k, v in found.items() if k not in keys}
        more = {"settings": found["recipe"], "samples": found["samples"]}
    content = entry(
        recipe,
        f"{command} --only {name}",
        metrics,
        wall_seconds=found.get("seconds"),
        seed=0,
        packages=PACKAGES,
        device=args.device,
        **more,
    )
    write(args.out / f"gpu-{name}.json", content)
    return found


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
    parser.add_argument(
        "--minutes", type=float, help="of all (14); with --only, filled"
    )
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    found = parser.parse_args(args)
    there = torch.cuda.is_available()
    found.device = found.device or ("cuda" if there else "cpu")
    if found.device == "cuda" and not there:
        parser.error("there is no CUDA device here")
    if found.device == "cpu" and not found.tiny:
        parser.error("there is no CUDA device here; --tiny runs anywhere")
    usual = ",".join(name for name in SECTIONS if name not in ALONE)
    found.names = (found.only or usual).split(",")
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
    end = time.monotonic() + 60 * (found.minutes or 14.0)
    budgets = {name: SECTIONS[name][1] for name in found.names}
    if found.only and found.minutes:  # what is asked for takes all of it
        room = 60 * found.minutes - GRACE * len(budgets)
        scale = room / sum(budgets.values())
        budgets = {name: scale * each for name, each in budgets.items()}
    failed = False
    for name in found.names:
        path = found.out / "sections" / f"{name}.json"
        path.unlink(missing_ok=True)
        seconds = min(budgets[name], end - time.monotonic() - GRACE)
        if seconds > 1:
            wrong = supervise(name, seconds, options)
        else:
            wrong = "not begun: the minutes were used up"
        if wrong and "seconds" not in (so_far := read(found.out, name)):
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(so_far | {"error": wrong}), "utf-8")
        metrics = write_ledger(found, name)
        failed = failed or "error" in metrics
        print(f"{name}: {json.dumps(metrics)[:2000]}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
