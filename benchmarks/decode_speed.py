"""The speed of translation: this book's search and what else one has.

    python benchmarks/decode_speed.py
    python benchmarks/decode_speed.py --run RUN --beam 4
    python benchmarks/decode_speed.py --json book/results/decode-speed.json

The same weights translate the same sentences with the same beam, in turn:
`annotated`, `torch.nn.Transformer`, and where they are installed Hugging
Face's Marian and CTranslate2. `annotated` and CTranslate2 take part twice:
with all threads on each batch, and with a batch for each. All compute in
float32; these two do it in int8 as well, and `annotated` in bfloat16 where
this machine multiplies it faster.
benchmarks/README.md says what is equal, what is not, and how to read the
table.
"""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tyro

# the scripts beside this one
from ledger import options, typed, write
from memory import Watch, held
from models import Shape, marian_config, told
from torch import Tensor, nn
from train_speed import draw_lengths

from annotated.batches import pad_rows
from annotated.book.results import entry, versions
from annotated.embeddings import sinusoids
from annotated.engine.machine import pick_precision
from annotated.engine.search import (
    batches_by_length,
    converted,
    search_in_order,
)
from annotated.model import Transformer
from annotated.search import SearchConfig
from annotated.tokens import BOS, EOS, PAD, SPECIALS

Ids = list[int]


@dataclass(frozen=True, kw_only=True)
class Settings(Shape):
    """The shape, the sentences and the measurement."""

    free = {"run", "only", "memory", "seed", "json", "warmup"}

    run: Path | None = None
    """a trained run: its weights and its test sentences are taken"""
    beam: int = 4
    sentences: int = 64
    """in a batch"""
    length: int = 24
    """the most tokens in a source sentence, its end sign included"""
    output: int = 24
    """tokens in every translation, its end sign included; where a run is
    given, the model ends them"""
    batches: int = 4
    """that everyone gets at once"""
    rounds: int = 5
    warmup: int = 1
    """rounds that run before and do not count"""
    only: str | None = None
    """the contenders, with commas between; all unless given"""
    memory: bool = True
    """also measure peak memory, each contender in a process of its own;
    on Linux"""
    threads: int = os.cpu_count() or 1
    seed: int = 0
    json: Path | None = None
    """also write the result here, as the results ledger has it"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 4 or self.output < 2:
            raise ValueError("length must be at least 4, output 2")
        if unknown := set(self.names) - set(MAKERS):
            raise ValueError(
                f"no contender {', '.join(sorted(unknown))}; there are "
                f"{', '.join(MAKERS)}"
            )

    @property
    def names(self) -> list[str]:
        """Who takes part, ours first."""
        chosen = self.only.split(",") if self.only else usual()
        return [n for n in MAKERS if n in chosen] + [
            n for n in chosen if n not in MAKERS
        ]


# --- weights and sentences ------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What all contenders get."""

    model: Transformer
    sentences: list[Ids]  # sources, without the end sign
    batch: int  # sentences searched at once
    beam: int
    limit: int | None  # tokens in every output, or as the model ends it
    threads: int

    def longest(self, sentences: list[Ids]) -> int:
        """The most tokens, the end sign included, of an output."""
        return self.limit or max(map(len, sentences)) + 50


def draw_model(settings: Settings) -> Transformer:
    """Random weights that never want to end a sentence.

    The last LayerNorm puts the same number into every vector's first
    component, and the end sign's row of the shared matrix has nothing but
    a number of the other sign there.
    """
    torch.manual_seed(settings.seed)
    model = Transformer(settings.config())
    with torch.no_grad():
        layer: Any = model.decoder.layers[-1]
        # surer of itself: of two continuations one is clearly better
        layer.norm3.weight *= 3.0
        layer.norm3.weight[0], layer.norm3.bias[0] = 0.0, 10.0
        model.embeddings.target[:, 0] = 0.0
        model.embeddings.target[[PAD, BOS, EOS]] = 0.0
        model.embeddings.target[[PAD, BOS, EOS], 0] = -5.0
    return model.eval()


def draw_task(settings: Settings) -> Task:
    """Random weights, random words, lengths as in a text."""
    draw = np.random.default_rng(settings.seed)
    count = settings.batches * settings.sentences
    lengths = draw_lengths(count, settings.length, draw)[:, 0] - 1
    sentences = [
        draw.integers(len(SPECIALS), settings.vocab, n).tolist()
        for n in lengths
    ]
    return Task(
        draw_model(settings),
        sentences,
        settings.sentences,
        settings.beam,
        settings.output,
        settings.threads,
    )


def run_task(settings: Settings) -> Task:
    """A trained run and the first sentences of its test set."""
    from annotated.engine.data import open_data
    from annotated.engine.runs import Run

    assert settings.run is not None
    run = Run.open(settings.run)
    lines, _ = open_data(run.recipe).text("test")
    count = settings.batches * settings.sentences
    sentences = [ids for ids in run.source.encode(lines) if len(ids)]
    return Task(
        run.model,
        sentences[:count],
        settings.sentences,
        settings.beam,
        None,
        settings.threads,
    )


# --- the contenders -------------------------------------------------------

Search = Callable[[list[Ids]], list[Ids]]


def ours(task: Task, scratch: Path) -> Search:
    """annotated, α = 0: the highest probability. As many processes as
    there are threads, as `annotated translate` has them.
    """
    return our_search(task, task.threads)


def ours_in_bfloat16(task: Task, scratch: Path) -> Search:
    """The same in bfloat16."""
    return our_search(task, task.threads, torch.bfloat16)


def ours_in_int8(task: Task, scratch: Path) -> Search:
    """The same with int8 products in the linear layers."""
    return our_search(task, task.threads, torch.qint8)


def ours_alone(task: Task, scratch: Path) -> Search:
    """The same in one process, all threads for one batch."""
    return our_search(task, 1)


def our_search(
    task: Task, workers: int, dtype: torch.dtype = torch.float32
) -> Search:
    config = SearchConfig(beam=task.beam, alpha=0.0, limit=task.limit)
    model = converted(task.model, dtype)

    def search(sentences: list[Ids]) -> list[Ids]:
        found = search_in_order(
            model,
            sentences,
            config,
            batch_tokens=task.batch * (max(map(len, sentences)) + 1),
            batch_size=task.batch,
            workers=workers,
        )
        return [best[0].ids for best in found]

    return search


def in_batches(search: Search, size: int) -> Search:
    """For a search that wants it done: sentences of like length together,
    answers in the order of the sentences.
    """

    def all_of(sentences: list[Ids]) -> list[Ids]:
        answers: list[Ids] = [[] for _ in sentences]
        widest = max(map(len, sentences)) + 1
        for now in batches_by_length(sentences, size * widest, size):
            found = search([sentences[i] for i in now])
            for i, answer in zip(now, found, strict=True):
                answers[i] = answer
        return answers

    return all_of


class TorchModel(nn.Module):
    """torch.nn.Transformer as one would search with it: each layer's input
    is kept, so that a step computes one position. Its attention projects
    the kept inputs to keys and values at every step; it offers no more.
    """

    def __init__(self, model: Transformer):
        super().__init__()
        c = model.config
        self.core = nn.Transformer(
            c.d_model,
            c.num_heads,
            c.num_encoder_layers,
            c.num_decoder_layers,
            c.d_ff,
            batch_first=True,
        )
        # the paper's stacks end with the norm of their last layer
        self.core.encoder.norm = self.core.decoder.norm = None
        self.embedding = nn.Parameter(model.embeddings.target.detach())
        self.scale = model.embeddings.scale
        self.register_buffer("positions", sinusoids(600, c.d_model))
        self.take(model)

    def take(self, model: Transformer) -> None:
        """Copy the weights."""
        state = model.state_dict()
        names = {
            "cross_attention.w_o": "multihead_attn.out_proj",
            "attention.w_o": "self_attn.out_proj",
            "feed_forward.inner": "linear1",
            "feed_forward.outer": "linear2",
        }
        wanted: dict[str, Tensor] = {}
        for name, value in state.items():
            if ".layers." not in name:
                continue
            stack, _, i, rest = name.split(".", 3)
            part, _, kind = rest.rpartition(".")
            to = f"{stack}.layers.{i}"
            if part.endswith("w_q"):  # one matrix for all three
                ours_ = name.replace("w_q", "{}")
                value = torch.cat(
                    [state[ours_.format(w)] for w in ("w_q", "w_k", "w_v")]
                )
                cross = part.startswith("cross")
                theirs = "multihead_attn" if cross else "self_attn"
                wanted[f"{to}.{theirs}.in_proj_{kind}"] = value
            elif not part.endswith(("w_k", "w_v")):
                wanted[f"{to}.{names.get(part, part)}.{kind}"] = value
        self.core.load_state_dict(wanted)

    def read(self, ids: Tensor, at: int = 0) -> Tensor:
        x = F.embedding(ids, self.embedding) * self.scale
        return x + self.positions[at : at + ids.size(1)]

    def encode(self, src: Tensor) -> Tensor:
        return self.core.encoder(
            self.read(src), src_key_padding_mask=src == PAD
        )

    def step(
        self,
        ids: Tensor,
        at: int,
        memory: Tensor,
        padding: Tensor,
        inputs: list[Tensor],
    ) -> Tensor:
        """ids (rows, 1) at position at -> logits (rows, vocab)."""
        x = self.read(ids, at)
        for i, layer in enumerate(self.core.decoder.layers):
            inputs[i] = torch.cat([inputs[i], x], dim=1)
            own = layer.self_attn(
                x, inputs[i], inputs[i], need_weights=False
            )[0]
            x = layer.norm1(x + own)
            across = layer.multihead_attn(
                x,
                memory,
                memory,
                key_padding_mask=padding,
                need_weights=False,
            )[0]
            x = layer.norm2(x + across)
            x = layer.norm3(x + layer.linear2(F.relu(layer.linear1(x))))
        return F.linear(x[:, 0], self.embedding)


def torch_model(task: Task, scratch: Path) -> Search:
    """torch.nn.Transformer, and a beam search as one writes it."""
    model = TorchModel(task.model).eval()
    beam, d_model = task.beam, task.model.config.d_model

    @torch.inference_mode()
    def search(batch: list[Ids]) -> list[Ids]:
        src = pad_rows([np.asarray(s) for s in batch], after=EOS)
        size, longest = len(batch), task.longest(batch)
        memory = model.encode(src).repeat_interleave(beam, dim=0)
        padding = (src == PAD).repeat_interleave(beam, dim=0)
        layers = len(model.core.decoder.layers)
        inputs = [memory.new_empty(size * beam, 0, d_model)] * layers
        ids = torch.full((size * beam, 1), BOS)
        scores = torch.full((size, beam), -math.inf)
        scores[:, 0] = 0.0
        best = torch.full((size,), -math.inf)
        answers: list[Ids] = [[] for _ in batch]
        left = torch.arange(size)
        for at in range(longest):
            logits = model.step(ids[:, -1:], at, memory, padding, inputs)
            log_p = logits.log_softmax(-1).unflatten(0, (-1, beam))
            log_p[:, :, [PAD, BOS]] = -math.inf
            if at + 1 == longest:  # all end here
                log_p[:, :, :EOS] = log_p[:, :, EOS + 1 :] = -math.inf
            totals = (scores[:, :, None] + log_p).flatten(1)
            ranks = 2 * beam if beam > 1 else 1
            scores, chosen = totals.topk(ranks, dim=1)
            vocab = log_p.size(-1)
            parent, token = chosen // vocab, chosen % vocab
            first = torch.arange(len(parent))[:, None] * beam
            rows = parent + first
            ends = token == EOS
            ended, place = scores.masked_fill(~ends, -math.inf).max(dim=1)
            for i in (ended > best).nonzero()[:, 0].tolist():
                row = int(rows[i, place[i]])
                answers[int(left[i])] = ids[row, 1:].tolist()
            best = best.maximum(ended)
            scores, place = scores.masked_fill(ends, -math.inf).topk(beam)
            keep = (scores[:, 0] > best).nonzero()[:, 0]
            if not len(keep):
                break
            rows = rows.gather(1, place)[keep].flatten()
            token = token.gather(1, place)[keep].flatten()
            ids = torch.cat([ids[rows], token[:, None]], dim=1)
            inputs = [x[rows] for x in inputs]
            if len(keep) < len(scores):
                memory, padding = memory[rows], padding[rows]
            scores, best, left = scores[keep], best[keep], left[keep]
        return answers

    return in_batches(search, task.batch)


def marian(task: Task, scratch: Path) -> Search:
    """Hugging Face's generate. ImportError where it is not installed."""
    from transformers import MarianMTModel

    model = MarianMTModel(
        marian_config(
            task.model.config,
            max_position_embeddings=600,
            bos_token_id=BOS,
            decoder_start_token_id=BOS,
        )
    )
    missing, unknown = model.load_state_dict(
        marian_weights(task.model), strict=False
    )
    known = ("embed_positions", "embed_tokens", "final_logits_bias")
    missing = [m for m in missing if not any(k in m for k in known)]
    assert not missing and not unknown, (missing, unknown)
    model.eval()

    @torch.inference_mode()
    def search(batch: list[Ids]) -> list[Ids]:
        src = pad_rows([np.asarray(s) for s in batch], after=EOS)
        found = model.generate(
            input_ids=src,
            attention_mask=(src != PAD).long(),
            num_beams=task.beam,
            do_sample=False,
            length_penalty=0.0,
            early_stopping=True,
            suppress_tokens=[PAD, BOS],
            max_new_tokens=task.longest(batch) - bool(task.limit),
            min_new_tokens=task.limit and task.limit - 1,
        )
        return [words_of(ids) for ids in found[:, 1:].tolist()]

    return in_batches(search, task.batch)


def words_of(ids: Ids) -> Ids:
    """ids up to the first end sign or padding."""
    stops = [i for i, token in enumerate(ids) if token in (EOS, PAD)]
    return ids[: stops[0]] if stops else ids


def marian_weights(model: Transformer) -> dict[str, Tensor]:
    """Our weights under Marian's names.

    Marian's sinusoids have all sines first, then all cosines: whatever
    reads or writes a vector of d_model numbers is put into that order.
    """
    c = model.config
    order = torch.arange(c.d_model)
    order = torch.cat([order[0::2], order[1::2]])
    state = {k: v.detach() for k, v in model.state_dict().items()}
    shared = state["embeddings.target"][:, order]
    found = {
        "model.shared.weight": shared,
        "model.encoder.embed_tokens.weight": shared,
        "model.decoder.embed_tokens.weight": shared,
        "lm_head.weight": shared,
    }
    norms = ["self_attn_layer_norm", "encoder_attn_layer_norm"]
    parts = {"w_q": "q_proj", "w_k": "k_proj", "w_v": "v_proj"}
    for name, value in state.items():
        if ".layers." not in name:
            continue
        stack, _, i, rest = name.split(".", 3)
        to = f"model.{stack}.layers.{i}"
        block, *part, kind = rest.split(".")
        if block.startswith("norm"):
            last = "norm2" if stack == "encoder" else "norm3"
            norm = "final_layer_norm"
            if block != last:
                norm = norms[int(block[-1]) - 1]
            found[f"{to}.{norm}.{kind}"] = value[order]
        elif part == ["inner"]:
            value = value[:, order] if value.ndim == 2 else value
            found[f"{to}.fc1.{kind}"] = value
        elif part == ["outer"]:
            found[f"{to}.fc2.{kind}"] = value[order]
        else:
            own = "self_attn" if block == "attention" else "encoder_attn"
            if part == ["w_o"]:
                found[f"{to}.{own}.out_proj.{kind}"] = value[order]
            else:
                value = value[:, order] if value.ndim == 2 else value
                found[f"{to}.{own}.{parts[part[0]]}.{kind}"] = value
    return found


def ctranslate2(task: Task, scratch: Path) -> Search:
    """CTranslate2, all threads on one batch: what it does unless told.
    ImportError where it is not installed.
    """
    return engine(task, scratch, intra_threads=task.threads)


def ctranslate2_workers(task: Task, scratch: Path) -> Search:
    """CTranslate2, told to give a batch to each thread."""
    return engine(
        task, scratch, intra_threads=1, inter_threads=task.threads
    )


def ctranslate2_int8(task: Task, scratch: Path) -> Search:
    """CTranslate2 with weights and factors of eight bits."""
    return engine(task, scratch, "int8", intra_threads=task.threads)


def ctranslate2_workers_int8(task: Task, scratch: Path) -> Search:
    """The same, with a batch for each thread."""
    return engine(
        task, scratch, "int8", intra_threads=1, inter_threads=task.threads
    )


def engine(
    task: Task, scratch: Path, kind: str = "float32", **threads: int
) -> Search:
    from ctranslate2 import Translator

    from annotated.exchange.export import write_ctranslate2

    folder = scratch / "ctranslate2"
    c = task.model.config
    if not folder.exists():
        words = [str(i) for i in range(c.tgt_vocab)]
        words[: len(SPECIALS)] = SPECIALS
        write_ctranslate2(task.model, words, words, folder)
    translator = Translator(
        str(folder), device="cpu", compute_type=kind, **threads
    )

    def search(sentences: list[Ids]) -> list[Ids]:
        found = translator.translate_batch(
            [[name(i) for i in ids] for ids in sentences],
            beam_size=task.beam,
            length_penalty=0.0,
            suppress_sequences=[[SPECIALS[PAD]], [SPECIALS[BOS]]],
            max_decoding_length=task.longest(sentences) - bool(task.limit),
            min_decoding_length=(task.limit or 2) - 1,
            max_batch_size=task.batch,
        )
        return [
            [number(word) for word in one.hypotheses[0]] for one in found
        ]

    return search


def name(i: int) -> str:
    return SPECIALS[i] if i < len(SPECIALS) else str(i)


def number(word: str) -> int:
    return SPECIALS.index(word) if word in SPECIALS else int(word)


MAKERS: dict[str, Callable[[Task, Path], Search]] = {
    "annotated": ours,
    "annotated (one process)": ours_alone,
    "torch.nn": torch_model,
    "Marian": marian,
    "CTranslate2": ctranslate2,
    "CTranslate2 (workers)": ctranslate2_workers,
    "annotated bfloat16": ours_in_bfloat16,
    "annotated int8": ours_in_int8,
    "CTranslate2 int8": ctranslate2_int8,
    "CTranslate2 int8 (workers)": ctranslate2_workers_int8,
}
# rounding moves what is found: a part of log p that may be lost by it
ROUNDED = {name: 0.05 for name in MAKERS if "int8" in name} | {
    "annotated bfloat16": 0.05
}


def usual() -> list[str]:
    """Everyone, without bfloat16 where the machine emulates it."""
    fast = pick_precision("cpu")[0] == "bfloat16"
    return [n for n in MAKERS if fast or "bfloat16" not in n]


# --- the measurement ------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """One contender."""

    name: str
    seconds: float  # for all sentences, the median over rounds
    sentences_per_second: float
    tokens_per_second: float  # of the output, end signs counted
    ratio: float  # its time / ours, the median over rounds
    same: float  # the share of sentences translated as ours are
    log_probability: float  # mean over sentences, by our model
    memory_mb: float | None = None  # the most beyond the loaded model


@torch.no_grad()
def worth(task: Task, outputs: list[Ids]) -> float:
    """The mean log-probability of outputs, by our model."""
    total = 0.0
    for first in range(0, len(outputs), task.batch):
        part = slice(first, first + task.batch)
        sources = [np.asarray(s) for s in task.sentences[part]]
        rows = [np.asarray(a, dtype=np.int64) for a in outputs[part]]
        src = pad_rows(sources, after=EOS)
        tgt, labels = pad_rows(rows, before=BOS), pad_rows(rows, after=EOS)
        log_p = task.model(src, tgt).log_softmax(dim=-1)
        log_p = log_p.gather(2, labels[:, :, None])[:, :, 0]
        total += float(log_p[labels != PAD].sum())
    return total / len(outputs)


def measure(
    settings: Settings, task: Task, searches: dict[str, Search]
) -> list[Outcome]:
    """Let everyone translate in turn."""
    seconds = {name: list[float]() for name in searches}
    outputs: dict[str, list[Ids]] = {}
    for turn in range(settings.warmup + settings.rounds):
        for name, search in searches.items():
            time.sleep(0.25)  # until the last one's threads are asleep
            start = time.perf_counter()
            outputs[name] = search(task.sentences)
            if turn >= settings.warmup:
                seconds[name].append(time.perf_counter() - start)
    first = next(iter(searches))
    count = len(task.sentences)
    outcomes = []
    for name, times in seconds.items():
        answers, mine = outputs[name], outputs[first]
        tokens = sum(len(a) + 1 for a in answers)
        pairs = zip(times, seconds[first], strict=True)
        outcomes.append(
            Outcome(
                name,
                median(times),
                count / median(times),
                tokens / median(times),
                median(t / o for t, o in pairs),
                sum(a == b for a, b in zip(answers, mine)) / count,
                worth(task, answers),
            )
        )
    return outcomes


def doubts(outcomes: Sequence[Outcome]) -> list[str]:
    """Who did not do the same work: a fast answer that is another one, and
    a worse one, is no answer.
    """
    first = outcomes[0]
    best = max(one.log_probability for one in outcomes)
    return [
        f"{one.name} found {one.same:.0%} of our translations, and its own "
        f"are less probable: {one.log_probability:.3f}, where "
        f"{best:.3f} can be had"
        for one in outcomes
        if one.same < 0.9 or one is first
        if one.log_probability
        < best - ROUNDED.get(one.name, 0.01) * abs(best)
    ]


def peak_memory(task: Task, name: str, scratch: Path) -> float:
    """Megabytes that searching takes beyond the loaded model, here and in
    the processes that it starts.
    """
    search = MAKERS[name](task, scratch)
    gc.collect()
    before = held(os.getpid())
    with Watch(os.getpid()) as watch:
        search(task.sentences)
    return (watch.peak - before) / 2**20


def memory_elsewhere(settings: Settings, name: str) -> float | None:
    """The same in a process of its own; None where nothing tells."""
    if sys.platform != "linux":
        return None
    alone = replace(settings, only=name, memory=False, json=None)
    done = subprocess.run(
        [sys.executable, __file__, *options(alone)],
        env=os.environ | {"DECODE_SPEED_MEMORY": "1"},
        capture_output=True,
        text=True,
    )
    return float(done.stdout) if done.returncode == 0 else None


# --- the report -----------------------------------------------------------


def table(outcomes: Sequence[Outcome]) -> list[str]:
    lines = [
        f"{'':28}{'sentences/s':>12}{'tokens/s':>10}{'time / ours':>13}"
        f"{'as ours':>9}{'log p':>9}{'MB':>7}"
    ]
    for one in outcomes:
        memory = "" if one.memory_mb is None else f"{one.memory_mb:.0f}"
        lines.append(
            f"{one.name:28}{one.sentences_per_second:12.1f}"
            f"{one.tokens_per_second:10,.0f}{one.ratio:13.2f}"
            f"{one.same:9.0%}{one.log_probability:9.3f}{memory:>7}"
        )
    return lines


PACKAGES = ("numpy", "transformers", "ctranslate2")


def main(argv: Sequence[str] | None = None) -> int:
    settings = tyro.cli(
        Settings, args=argv, description=(__doc__ or "").splitlines()[0]
    )
    torch.set_num_threads(settings.threads)
    start = time.perf_counter()
    task = (run_task if settings.run else draw_task)(settings)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if os.environ.get("DECODE_SPEED_MEMORY"):
            print(peak_memory(task, settings.names[0], scratch))
            return 0
        outcomes = compare(settings, task, scratch)
    print("\n".join(table(outcomes)))
    if wrong := doubts(outcomes):
        print("\n".join(wrong), file=sys.stderr)
        return 1
    if settings.json is not None:
        report(settings, outcomes, time.perf_counter() - start)
    return 0


def compare(settings: Settings, task: Task, scratch: Path) -> list[Outcome]:
    """Say what will be measured, and measure it."""
    print(
        f"{told(task.model.config)}; {len(task.sentences)} "
        f"sentences in batches of {settings.sentences}, beam {task.beam}; "
        f"{settings.threads} threads; median of {settings.rounds} rounds"
    )
    print(versions(*PACKAGES))
    searches: dict[str, Search] = {}
    for name in settings.names:
        try:
            searches[name] = MAKERS[name](task, scratch)
        except ImportError as error:
            package = "transformers" if name == "Marian" else "ctranslate2"
            print(f"{name} is left out: {error} (pip install {package})")
    outcomes = measure(settings, task, searches)
    if not settings.memory:
        return outcomes
    return [
        replace(one, memory_mb=memory_elsewhere(settings, one.name))
        for one in outcomes
    ]


def report(
    settings: Settings, outcomes: Sequence[Outcome], seconds: float
) -> None:
    """The result as a file of book/results (see its README)."""
    shape = asdict(settings)
    for name in ("json", "run", "memory", "only"):
        del shape[name]
    contenders = {one.name: asdict(one) for one in outcomes}
    for one in contenders.values():
        del one["name"]
    result = entry(
        "decode_speed",
        typed("decode_speed.py", settings),
        {"contenders": contenders},
        seed=settings.seed,
        wall_seconds=seconds,
        settings=shape,
        packages=PACKAGES,
        threads=settings.threads,
    )
    assert settings.json is not None
    write(settings.json, result)


if __name__ == "__main__":
    sys.exit(main())
