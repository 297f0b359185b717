"""Figures that move: what they compute is what the package computes."""

from __future__ import annotations

import base64
import itertools
import json
import os
import random
import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from sacrebleu.metrics import BLEU

import annotated.batches
from annotated import costs
from annotated.attention import attention, attention_weights
from annotated.batches import cut, plan_batches
from annotated.book.example import (
    LETTERS,
    letter_ids,
    reversal_model,
    write,
)
from annotated.book.figures import figure, half_weights, plain, words_of
from annotated.embeddings import sinusoids
from annotated.engine.recipes import RECIPES
from annotated.heads import knocked_out
from annotated.masks import causal_mask, padding_mask, window_mask
from annotated.model import (
    Transformer,
    TransformerConfig,
    count_parameters,
)
from annotated.parsing import _spoken, compare_trees, linearise, tree_over
from annotated.pocket import pocket_pairs
from annotated.schedule import cooldown_factor, learning_rate
from annotated.search import (
    KVCache,
    SearchConfig,
    _grow_beams,
    log_p_after,
    plain_beam_search,
)
from annotated.search import beam as beam_search
from annotated.tokens import (
    _BYTES,
    BOS,
    EOS,
    SPECIALS,
    BytePairs,
    Tokenizer,
)
from annotated.variations import difference
from press.chapters import read_book

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    path.name.split(".")[0]
    for path in (ROOT / "tests/figures").glob("*.test.mjs")
)


def film() -> dict[str, Any]:
    """The mean of the last five losses, and the weight on a path."""
    torch.manual_seed(0)
    losses = torch.rand(30, dtype=torch.float64)
    means = [losses[max(0, i - 4) : i + 1].mean() for i in range(30)]
    weights = torch.rand(5, 6, dtype=torch.float64).softmax(dim=-1)
    path = [
        *([i, 5 - i] for i in range(4)),
        [2, 0],
    ]  # the last row has none
    share = sum(weights[i, j] for i, j in path) / 4
    return {
        "losses": losses.tolist(),
        "means": torch.stack(means).tolist(),
        "weights": weights.tolist(),
        "path": path,
        "share": share.item(),
    }


def lookup() -> list[dict[str, Any]]:
    """Equation 1 on the chapter's three tokens, and on random ones."""
    torch.manual_seed(0)
    cases = []
    for sharpness in (0.0, 1.0, 3.5):
        for d_k in (2, 5):
            q, k, v = (
                torch.randn(3, size, dtype=torch.float64)
                for size in (d_k, d_k, 2)
            )
            cases.append(
                {
                    "q": q.tolist(),
                    "k": k.tolist(),
                    "v": v.tolist(),
                    "sharpness": sharpness,
                    "weights": attention_weights(sharpness * q, k).tolist(),
                    "output": attention(sharpness * q, k, v).tolist(),
                }
            )
    return cases


def small_model(norm: str, tie: str) -> tuple[Transformer, Any, bytes]:
    """A model whose parameters are what half precision leaves of them."""
    torch.manual_seed(0)
    model = Transformer(
        TransformerConfig(
            src_vocab=12,
            tgt_vocab=12 if tie == "all" else 9,
            num_encoder_layers=2,
            num_decoder_layers=2,
            d_model=16,
            d_ff=24,
            num_heads=4,
            dropout=0.0,
            norm=norm,
            tie=tie,
        )
    ).eval()
    for one in model.parameters():  # sharper than as drawn
        one.data += 0.3 * torch.randn_like(one)
    layout, halves = half_weights(model)
    model.half().double()
    for positions in (model.src_positions, model.tgt_positions):
        positions.table = sinusoids(256, 16, torch.float64)
    return model, layout, halves


def translations(
    model: Transformer, sentences: list[list[int]], beams: int
) -> list[dict[str, Any]]:
    """Greedy for each, and beam search for the first of them."""
    found = []
    for number, src in enumerate(sentences):
        one = SearchConfig(beam=1, extra=8)
        case: dict[str, Any] = {
            "src": src,
            "greedy": plain_beam_search(model, src, one)[0].ids,
        }
        if number < beams:
            four = plain_beam_search(model, src, SearchConfig(extra=8))[0]
            case |= {"beam": four.ids, "score": four.score}
        found.append(case)
    return found


def engine() -> list[dict[str, Any]]:
    """Logits, maps and searches of small models, in float64."""
    cases = []
    for norm, tie in (
        ("post", "decoder"),
        ("pre", "all"),
        ("post", "none"),
    ):
        model, layout, halves = small_model(norm, tie)
        src, tgt = [4, 7, 5, 11, 3], [6, 4, 8]
        both = torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *tgt]])
        sentences = [
            [4 + (7 * n + 3 * i) % 8 for i in range(1 + n % 7)]
            for n in range(70)
        ]
        with torch.no_grad():
            maps = model.attention_maps(*both)
            with knocked_out(model, [("cross.1", 2)]):
                muted = model(*both)[0].tolist()
            branch = model.get_submodule("decoder.layers.1.cross_attention")
            hook = branch.register_forward_hook(
                lambda part, inputs, result: torch.zeros_like(result)
            )
            without = model(*both)[0].tolist()
            hook.remove()
            case = {
                "config": asdict(model.config),
                "layout": layout,
                "bytes": base64.b64encode(halves).decode(),
                "src": src,
                "tgt": tgt,
                "logits": model(*both)[0].tolist(),
                "maps": {
                    name: one[0].tolist() for name, one in maps.items()
                },
                "silent": "cross.1.2",
                "muted": muted,
                "off": "decoder.layers.1.norm2",
                "without": without,
                "sentences": translations(model, sentences, 6),
                "most": 1e-4,
            }
        cases.append(case)
    words = [*SPECIALS, "Der", "Hund"]
    text = " Der Esel  </s> Hund\n"
    tokenizer = Tokenizer.of_words(words[4:])
    encoded = tokenizer.encode([text])[0]
    assert words_of(tokenizer) == words
    cases[0] |= {"words": words, "text": text, "encoded": encoded}
    return cases


def beam() -> list[dict[str, Any]]:
    """The searches of the package over the language of page 16, and over
    one in which the other first word is likelier.
    """
    page = (ROOT / "book" / "16-search.md").read_text(encoding="utf-8")
    cell = page[page.index("chances = {") : page.index("where = {")]
    names: dict[str, Any] = {}
    exec(cell, names)
    first = names["chances"]
    other = first | {"<s>": {"it": 0.3, "the": 0.5, "dogs": 0.2}}
    words = SPECIALS + [
        "it",
        "the",
        "dogs",
        "is",
        "was",
        "dog",
        "hound",
        "barks",
        "loud",
    ]
    cases = []
    for chances in (first, other):

        def after(ids: list[int], chances: Any = chances) -> torch.Tensor:
            nexts = chances[words[ids[-1]]]
            return torch.tensor([nexts.get(w, 0.0) for w in words]).log()

        for k in (1, 2, 3, 4):
            for alpha in (0.0, 0.6, 1.5):
                config = SearchConfig(beam=k, alpha=alpha, nbest=k)
                ended = [
                    (
                        " ".join(words[i] for i in one.ids),
                        one.log_probability,
                        one.score,
                    )
                    for one in beam_search(after, 6, config)
                ]
                cases.append(
                    {
                        "chances": chances,
                        "k": k,
                        "alpha": alpha,
                        "ended": ended,
                    }
                )
    return cases


def masks() -> list[dict[str, Any]]:
    """Masks, and by autograd who depends on whom after some layers."""
    rows = torch.arange(6)
    kinds = {
        "none": torch.ones(6, 6, dtype=torch.bool),
        "causal": causal_mask(6),
        "ahead": causal_mask(6).roll(-1, 0) | (rows == 5)[:, None],
        "window": window_mask(6, 3),
        "both": causal_mask(6) & window_mask(6, 3),
    }
    cases = []
    for number, (kind, how, layers, real) in enumerate(
        itertools.product(
            kinds, ("before", "finite", "after"), (1, 2, 4), (4, 6)
        )
    ):
        ids = (rows < real).long()[None]
        allowed = kinds[kind] & padding_mask(ids)[0, 0]
        flipped = [["15"], ["00", "35"], []][number % 3]
        for cell in flipped:
            allowed[int(cell[0]), int(cell[1])] ^= True
        torch.manual_seed(number)
        x = 0.1 * torch.randn(6, 4, dtype=torch.float64)

        def stack(
            x: torch.Tensor,
            allowed: torch.Tensor = allowed,
            how: str = how,
            layers: int = layers,
        ) -> torch.Tensor:
            for _ in range(layers):
                if how == "before":
                    out = attention(x, x, x, allowed)
                else:
                    scores = x @ x.T
                    if how == "finite":
                        scores = scores.masked_fill(~allowed, -10.0)
                    weights = scores.softmax(dim=-1)
                    out = (
                        weights * allowed if how == "after" else weights
                    ) @ x
                x = x + out
            return x

        slopes = torch.autograd.functional.jacobian(stack, x)
        cases.append(
            {
                "kind": kind,
                "how": how,
                "layers": layers,
                "real": real,
                "flipped": flipped,
                "mask": allowed.tolist(),
                "influence": (slopes.abs().sum(dim=(1, 3)) > 0).tolist(),
            }
        )
    return cases


def dials() -> list[dict[str, Any]]:
    """The schedule of the package, step by step."""
    cases = []
    for width, warmup, factor, last, cooldown in (
        (512, 4000, 1.0, 20_000, 0),
        (1024, 250, 2.0, 1000, 500),
        (64, 8000, 0.5, 1000, 1000),
        (128, 500, 4.0, 2000, 1900),
    ):
        steps = range(1, last + 1)
        rates = [
            learning_rate(s, width, warmup, factor)
            * cooldown_factor(s, last, cooldown)
            for s in steps
        ]
        best = max(steps, key=lambda s: rates[s - 1])
        cases.append(
            {
                "width": width,
                "warmup": warmup,
                "factor": factor,
                "last": last,
                "cooldown": cooldown,
                "steps": list(steps)[:: last // 50],
                "rates": rates[:: last // 50],
                "best": (best, rates[best - 1]),
            }
        )
    return cases


def scale() -> list[dict[str, Any]]:
    """A softmax and its Jacobian, by autograd."""
    torch.manual_seed(0)
    cases = []
    for width, factor in itertools.product((1, 16, 1024), (True, False)):
        products = width**0.5 * torch.randn(8, dtype=torch.float64)
        scores = products / width**0.5 if factor else products
        p = scores.softmax(dim=-1)
        slopes = torch.autograd.functional.jacobian(
            lambda s: s.softmax(dim=-1), scores
        )
        cases.append(
            {
                "products": products.tolist(),
                "width": width,
                "factor": factor,
                "weights": p.tolist(),
                "nats": -(p * p.clamp_min(1e-300).log()).sum().item(),
                "norm": slopes.norm().item(),
            }
        )
    return cases


def draw() -> list[dict[str, Any]]:
    """Three pairs of rows: their means apart, and the draws that differ."""
    values = {
        "a": [1.0, 1.5, 0.2],
        "b": [0.5, 0.75, 1.0],
        "c": [3.0, 2.0, 2.5],
    }
    cases = []
    for one, other in itertools.permutations(values, 2):
        found = difference(
            {r: dict(enumerate(v)) for r, v in values.items()}, one, other
        )
        draws = [
            x - y for x, y in itertools.product(values[one], values[other])
        ]
        cases.append(
            {
                "values": values,
                "pair": [one, other],
                "apart": found.mean,
                "share": sum(d * found.mean < 0 for d in draws) / 9,
            }
        )
    return cases


PAPER_COUNTS = {
    "base": 65, "B-dk16": 58, "B-dk32": 60, "C-N2": 36, "C-N4": 50,
    "C-N8": 80, "C-d256": 28, "C-d1024": 168, "C-ff1024": 53,
    "C-ff4096": 90, "big": 213,
}  # fmt: skip


def shape_of(config: TransformerConfig) -> dict[str, int]:
    """A configuration by the names of the figure."""
    shape = {
        "N": config.num_encoder_layers,
        "d": config.d_model,
        "h": config.num_heads,
        "ff": config.d_ff,
        "V": config.src_vocab,
    }
    both = {"dk": config.d_k, "dv": config.d_v}
    return shape | {k: v for k, v in both.items() if v is not None}


def stream() -> dict[str, Any]:
    """Parameters and shapes of models, and the rows of Table 3 that fit."""

    def row(name: str, vocab: int) -> TransformerConfig:
        return RECIPES[f"table3-{name}"].config(vocab, vocab)

    configs = [row(name, 37_000) for name in PAPER_COUNTS]
    configs += [
        TransformerConfig(
            src_vocab=300,
            tgt_vocab=300,
            num_encoder_layers=2,
            num_decoder_layers=2,
            d_model=64,
            d_ff=256,
            num_heads=h,
            d_k=d_k,
            d_v=d_v,
        )
        for h, d_k, d_v in ((1, None, None), (32, None, None), (4, 8, 24))
    ]
    # one small model, block by block
    config = configs[-2]
    model, base = Transformer(config).eval(), shape_of(config)
    first = {"encoder": "norm1 norm2", "decoder": "norm1 norm2 norm3"}
    names = {
        "encoder.attention": "attention",
        "encoder.network": "feed_forward",
        "decoder.attention": "attention",
        "decoder.cross": "cross_attention",
        "decoder.network": "feed_forward",
    }
    modules = {
        key: model.get_submodule(f"{key[:7]}.layers.0.{name}")
        for key, name in names.items()
    }
    norms = sum(
        p.numel()
        for n, p in model.named_parameters()
        if "norm" in n and "layers.0." in n and n.startswith("encoder")
    ) // len(first["encoder"].split())
    blocks = {
        key: sum(p.numel() for p in part.parameters()) + norms
        for key, part in modules.items()
    }
    table = sum(p.numel() for p in model.embeddings.parameters())
    blocks |= {"source": table, "target": 0, "output": 0}
    outs: dict[str, dict[str, Any]] = {}

    def plain(shape: Any) -> str:
        return f"({', '.join(map(str, shape))})"

    def keep(key: str, what: str) -> Any:
        def hook(part: Any, inputs: Any, result: Any) -> None:
            shape = plain(result.shape)
            found = shape if what == "out" else [f"inside {shape}"]
            outs.setdefault(key, {})[what] = found

        return hook

    for key, part in modules.items():
        part.register_forward_hook(keep(key, "out"))
        if key.endswith("network"):
            inner = part.get_submodule("inner")
            inner.register_forward_hook(keep(key, "inside"))
    src, tgt = torch.randint(4, 300, (3, 7)), torch.randint(4, 300, (3, 5))
    maps = model.attention_maps(src, tgt)
    logits = model(src, tgt)
    for key, block in (
        ("encoder.attention", "encoder.0"),
        ("decoder.attention", "decoder.0"),
        ("decoder.cross", "cross.0"),
    ):
        outs[key]["inside"] = [f"weights {plain(maps[block].shape)}"]
    outs |= {
        "source": {"out": plain(model.encode(src).shape)},
        "target": {"out": outs["decoder.network"]["out"]},
        "output": {"out": plain(logits.shape)},
    }
    ranges = {
        name: [
            v
            for v in (36_000, 37_000, 40_000, 41_000, 41_250, 43_000)
            if round(count_parameters(row(name, v)) / 1e6) == stated
        ]
        for name, stated in PAPER_COUNTS.items()
    }
    return {
        "shapes": [
            {"shape": shape_of(c), "whole": count_parameters(c)}
            for c in configs
        ],
        "base": base,
        "blocks": blocks,
        "outs": outs,
        "sizes": {"b": 3, "s": 7, "t": 5},
        "rows": {
            name: {"stated": stated, "shape": shape_of(row(name, 1))}
            for name, stated in PAPER_COUNTS.items()
        },
        "vocabularies": [
            {"V": v, "fit": [n for n, some in ranges.items() if v in some]}
            for v in (36_000, 37_000, 40_000, 41_000, 41_250, 43_000)
        ],
    }


def branches() -> dict[str, Any]:
    """What a model of letters writes when branches add nothing."""
    model = reversal_model()
    for one in model.parameters():  # sharper than as drawn
        one.data += 0.3 * torch.randn_like(one)
    layout, halves = half_weights(model)
    model.half().double().eval()
    for positions in (model.src_positions, model.tgt_positions):
        positions.table = sinusoids(64, 64, torch.float64)
    parts = {
        "encoder.attention": ("encoder.layers.0.attention", "norm1"),
        "encoder.network": ("encoder.layers.0.feed_forward", "norm2"),
        "decoder.attention": ("decoder.layers.0.attention", "norm1"),
        "decoder.cross": ("decoder.layers.0.cross_attention", "norm2"),
        "decoder.network": ("decoder.layers.0.feed_forward", "norm3"),
    }
    cases = []
    for word, off in [
        *itertools.product(
            ("attention", "abc"), [[], *([k] for k in parts)]
        ),
        ("residuals", ["encoder.attention", "decoder.network"]),
    ]:
        hooks = [
            model.get_submodule(parts[key][0]).register_forward_hook(
                lambda part, inputs, result: torch.zeros_like(result)
            )
            for key in off
        ]
        case = {"word": word, "off": off, "text": write(model, word)}
        for hook in hooks:
            hook.remove()
        if not off:
            case["shares"] = shares_of(model, word, case["text"], parts)
        cases.append(case)
    return {
        "config": asdict(model.config),
        "layout": layout,
        "bytes": base64.b64encode(halves).decode(),
        "letters": LETTERS,
        "cases": cases,
    }


def heads() -> dict[str, Any]:
    """How sharp some maps are, and where each row looks."""
    torch.manual_seed(0)
    maps = [
        (3 * torch.randn(rows, columns, dtype=torch.float64)).softmax(-1)
        for rows, columns in ((3, 3), (9, 12), (12, 2))
    ]
    return {
        "maps": [
            {
                "map": one.tolist(),
                "sharp": one.amax(dim=-1).mean().item(),
                "at": one.argmax(dim=-1).tolist(),
            }
            for one in maps
        ]
    }


def shares_of(
    model: Transformer, word: str, text: str, parts: dict[str, Any]
) -> dict[str, float]:
    """The mean length of what a branch adds, as a share of its stream."""
    shares: dict[str, float] = {}
    added: dict[str, torch.Tensor] = {}
    hooks = []
    for key, (name, norm) in parts.items():
        hooks.append(
            model.get_submodule(name).register_forward_hook(
                lambda part, inputs, result, key=key: added.update(
                    {key: result}
                )
            )
        )
        layer = model.get_submodule(name.rpartition(".")[0])

        def of_sum(
            part: Any, inputs: Any, result: Any, key: str = key
        ) -> None:
            branch = added[key]
            stream = inputs[0] - branch
            lengths = branch.norm(dim=-1) / stream.norm(dim=-1)
            shares[key] = lengths.mean().item()

        hooks.append(
            layer.get_submodule(norm).register_forward_hook(of_sum)
        )
    src = torch.tensor([[*letter_ids(word), EOS]])
    signs = [*SPECIALS, *LETTERS]
    ids = [signs.index(x) for x in text]
    # it has read what it wrote, up to the last letter of a cut-off answer
    read = [BOS, *ids] if len(ids) < len(word) + 3 else [BOS, *ids[:-1]]
    with torch.no_grad():
        model(src, torch.tensor([read]))
    for hook in hooks:
        hook.remove()
    return shares


def waves() -> dict[str, Any]:
    table = sinusoids(60, 16, torch.float64).tolist()
    return {"width": 16, "table": table, "offset": 7}


def cost() -> dict[str, Any]:
    runs = []
    for d, layers, vocab, tokens, steps in (
        (512, 6, 37_000, 25_000, 100_000),
        (64, 1, 500, 300, 10),
        (1024, 3, 8000, 1500, 1000),
    ):
        config = TransformerConfig(
            src_vocab=vocab,
            tgt_vocab=vocab,
            num_encoder_layers=layers,
            num_decoder_layers=layers,
            d_model=d,
            d_ff=4 * d,
            num_heads=d // 64,
        )
        run: dict[str, float] = {
            "d": d,
            "layers": layers,
            "vocab": vocab,
            "tokens": tokens,
            "steps": steps,
        }
        runs.append(
            {
                "run": run,
                "count": count_parameters(config),
                "one": costs.forward_flops(config),
                "all": steps * costs.step_flops(config, tokens),
                "bytes": costs.state_bytes(config),
            }
        )
    papers = []
    for size, d in (("base", 512), ("big", 1024)):
        run = {
            "d": d,
            "layers": 6,
            "vocab": 37_000,
            "tokens": 25_000,
            "steps": costs._PAPER_STEPS[size],
            "devices": 8,
            "speed": costs.P100 / 1e12,
            "share": 100 * costs.useful_share(size),
        }
        papers.append({"run": run, "paper": costs.PAPER_HOURS[size]})
    return {"runs": runs, "papers": papers}


def bleu() -> list[dict[str, Any]]:
    """sacreBLEU on words, without smoothing."""
    cases = []
    metric = BLEU(smooth_method="none", tokenize="none")
    for hypotheses, references in (
        (
            ["a dog runs across the grass .", "two men sit on a bench ."],
            ["a dog is running across the grass .", "two men sit here ."],
        ),
        (["the the the the the"], ["the cat is on the mat"]),
        (["a b c d e f g"], ["a b c d e f g"]),
        (["a b"], ["a b c d e f"]),
        (["b c d e a b c d e"], ["a b c d e"]),
    ):
        found = metric.corpus_score(hypotheses, [references])
        cases.append(
            {
                "hypotheses": hypotheses,
                "references": references,
                "counts": found.counts,
                "totals": found.totals,
                "penalty": found.bp,
                "score": found.score,
            }
        )
    return cases


class Recorded(KVCache):
    """A cache that writes down how its rows move, and what it holds."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.moved: list[list[int]] = []
        self.held: list[int] = []

    def next_logits(self, ids: torch.Tensor) -> torch.Tensor:
        logits = super().next_logits(ids)
        numbers = sum(p.k.numel() + p.v.numel() for p in self.past)
        self.held.append(4 * numbers)
        return logits

    def reorder(self, rows: torch.Tensor) -> None:
        super().reorder(rows)
        self.moved.append(rows.tolist())


def cache() -> list[dict[str, Any]]:
    """A search with the cache beside the one of chapter 16."""
    model = small_model("post", "decoder")[0].float()
    config = SearchConfig(beam=3, alpha=0.0)
    src, limit = [4, 7, 5, 9], 8
    source = torch.tensor([[*src, EOS]])
    found: dict[int, list[list[int]]] = {}

    def after(ids: list[int]) -> torch.Tensor:
        found.setdefault(len(ids), []).append(ids)
        return log_p_after(model, source, ids)

    with torch.no_grad():
        beam_search(after, limit, config)
        kept = Recorded(model, source.repeat_interleave(3, dim=0))
        _grow_beams(kept, torch.tensor([limit]), config)
    # in its first step one row counts; then all three come from it
    steps = [[[BOS]] * 3, *list(found.values())[1:]]
    assert len(steps) > 3
    moved = [[0, 0, 0], *kept.moved[1:]]
    size = {"layers": 2, "d": 16}
    return [
        {"steps": steps, "rows": moved, "held": kept.held, "size": size}
    ]


def batches() -> list[dict[str, Any]]:
    """The plans of chapter 11, and what they waste on either side."""
    names: dict[str, Any] = dict(vars(annotated.batches))
    for chapter in read_book(ROOT):
        if chapter.name == "11-batches":
            for cell in chapter.code:
                if re.match(r"def (waste|plan_buckets)\(", cell.source):
                    names["tgt_len"] = np.zeros(1)
                    exec(cell.source.partition("\n\n\n")[0], names)
    draw = np.random.default_rng(0)
    pairs = draw.integers(1, 120, (500, 2))
    pairs[:, 1] = pairs[:, 0] + draw.integers(0, 9, 500)
    # plan_buckets shuffles; the figure takes its pairs as they come
    given = pairs[np.random.default_rng(0).permutation(500)]
    cases = []
    for tokens in (300, 1000, 5000):
        src, tgt = pairs.T
        plans = {
            "at random": cut(np.arange(500), list(given.T + 1), tokens),
            "by target": cut(
                np.arange(500),
                list(given[np.lexsort(given.T)].T + 1),
                tokens,
            ),
            "plan_batches": plan_batches(src, tgt, tokens),
            "buckets": names["plan_buckets"](src, tgt, tokens),
        }
        of = {
            "at random": given,
            "by target": given[np.lexsort(given.T)],
        }
        cases += [
            {
                "plan": name,
                "tokens": tokens,
                "pairs": (given + 1).tolist(),
                "batches": [
                    (of.get(name, pairs)[batch] + 1).tolist()
                    for batch in plan
                ],
                "waste": [
                    names["waste"](plan, of.get(name, pairs)[:, side] + 1)
                    for side in (0, 1)
                ],
            }
            for name, plan in plans.items()
        ]
    return cases


def tree() -> list[dict[str, Any]]:
    """Trees over random tokens, and what the package makes of them."""
    draw = random.Random(0)
    words = ["He", "said", ":", "up", ",", "and", "away", "it", "went", "."]
    kinds = ["S", "NP", "VP", "PRT", "ADVP", "NP-SBJ-1", "TOP", "NP=2", ""]
    marks = [mark + kind for mark in "()" for kind in kinds]
    tags = ["NN", "VBD", "-NONE-", ".", ",", "XX"]
    scored, cases = 0, []
    for size in range(120):
        usual = marks + 9 * tags[: 2 if size % 3 else None]
        gold_tokens = draw.choices(usual, k=size // 2)
        # the same with some moved or lost, or others altogether
        tokens = [x for x in gold_tokens if draw.random() < 0.9]
        if size % 4 == 0:
            tokens = draw.choices(usual, k=size // 2)
        if size % 5 == 0:  # which evalb does not tell apart
            tokens = [x.replace("PRT", "ADVP") for x in tokens]
        gold, guess = (tree_over(words, x) for x in (gold_tokens, tokens))
        score = compare_trees(gold, guess)
        scored += score.matched > 2
        cases.append(
            {
                "words": words,
                "truth": gold_tokens,
                "tokens": tokens,
                "tree": linearise(guess),
                "_spoken": _spoken(guess),
                "counted": score.errors == 0,
                "numbers": [score.matched, score.gold, score.guessed],
                "shares": [score.precision, score.recall, score.f1],
            }
        )
    assert scored > 9 and sum(not one["counted"] for one in cases) > 9
    return cases


def pieces() -> dict[str, Any]:
    """What the plain byte pairs of chapter 10 make of some lines."""
    lines = [
        " ".join(line.split())
        for text in list(topics.values())[:12]
        for line in text.splitlines()
        if line.strip()
    ]
    whole = BytePairs.train(lines, 400)
    texts = [
        "Why do generators interact with rivers?",
        "größte Äpfel, 東京 👩‍👧 e\u0301 x² Ⅷ",
        "it's 1,234 <pad>  two  spaces_and an under_score ",
        "\ttabs",
        "GENERATORS don't",
        "",
    ]
    cases = [
        {"vocab": vocab, "text": text, "ids": plain_pairs.encode(text)}
        for vocab in (260, 300, 400)
        for plain_pairs in [
            BytePairs(dict(list(whole.merges.items())[: vocab - 260]))
        ]
        for text in texts
    ]
    return {
        "merges": list(whole.merges),
        "order": _BYTES,
        "cases": cases,
        "bytes": [list(token) for token in whole.tokens()],
    }


GOLDENS = {
    one.__name__: one
    for one in (
        film,
        lookup,
        engine,
        beam,
        masks,
        dials,
        scale,
        draw,
        stream,
        branches,
        heads,
        waves,
        cost,
        batches,
        bleu,
        cache,
        tree,
        pieces,
    )
}


@pytest.mark.parametrize("name", MODULES)
def test_figures_compute_what_the_package_computes(
    name: str, tmp_path: Path
) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    goldens = tmp_path / "goldens.json"
    make = GOLDENS.get(name)
    goldens.write_text(json.dumps({name: make()} if make else {}))
    done = subprocess.run(
        [node, "--test", f"tests/figures/{name}.test.mjs"],
        cwd=ROOT,
        env=dict(os.environ, GOLDENS=str(goldens)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def moving(**data: Any) -> Any:
    still, axes = plt.subplots(figsize=(1, 1))
    axes.plot([1, 2])
    return figure("film", still, **data)


def test_a_figure_is_a_still_with_its_data_and_script() -> None:
    made = moving(weights=torch.tensor([1 / 3]), text="</script><b>")
    bundle = made._repr_mimebundle_()
    assert set(bundle) == {"image/svg+xml", "text/html"}
    html = bundle["text/html"]
    assert html.count("<svg") == html.count("</figure>") == 1
    data = html.partition('class="moves-data">')[2].partition("</")[0]
    assert "<" not in data
    assert json.loads(data) == {
        "weights": [0.3333],
        "text": "</script><b>",
    }
    assert "moves-large" not in html.partition("<script>\n")[0]
    assert plt.get_fignums() == []  # it is not shown once more


def test_the_same_figure_is_the_same_text() -> None:
    with plt.rc_context({"svg.hashsalt": "annotated"}):
        assert moving(step=1).html() == moving(step=1).html()


def test_an_unknown_figure_is_named() -> None:
    still = plt.figure()
    with pytest.raises(ValueError, match="no figure 'nothing' in book"):
        figure("nothing", still)
    plt.close(still)


def test_numbers_are_rounded_wherever_they_stand() -> None:
    value = {"a": [torch.tensor([0.123456]), (1, 2e-9 / 3)], 7: "x"}
    assert plain(value) == {"a": [[0.1235], [1, 6.667e-10]], "7": "x"}


def trained() -> tuple[dict[str, Any], bytes]:
    """The figure of page 19 as it was executed: its data, its weights."""
    page = ROOT / "build" / "executed" / "19-pocket-german.ipynb"
    if not page.is_file():
        pytest.skip("page 19 has not been executed")
    for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            html = "".join(output.get("data", {}).get("text/html", ""))
            if "moves-translate" in html:
                data = html.partition('moves-data">')[2].partition("</")[0]
                large = html.partition('moves-large">')[2].partition("</")[
                    0
                ]
                return json.loads(data), base64.b64decode(large)
    pytest.skip("page 19 was executed before it had its figure")


@pytest.mark.slow
def test_the_model_of_page_19_translates_as_in_python(
    tmp_path: Path,
) -> None:
    """200 sentences, beams of 20 of them, logits to 2e-3."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    data, halves = trained()
    model = Transformer(TransformerConfig(**data["config"])).eval()
    numbers = np.frombuffer(halves, "<f2").astype("float32")
    for name, shape in data["layout"]:
        one = model.get_parameter(name)
        here, numbers = numbers[: one.numel()], numbers[one.numel() :]
        one.data = torch.from_numpy(here.copy()).reshape(shape)
    assert not len(numbers)
    german = Tokenizer.of_words(data["german"][4:])
    pairs = pocket_pairs(200, "test")
    sentences = german.encode([pair.source for pair in pairs])
    src, tgt = sentences[0], [5, 6, 7]
    both = torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *tgt]])
    with torch.no_grad():
        logits = model(*both)[0].tolist()
    maps = model.attention_maps(*both)
    case = {
        "config": data["config"],
        "layout": data["layout"],
        "bytes": base64.b64encode(halves).decode(),
        "src": src,
        "tgt": tgt,
        "logits": logits,
        "maps": {name: one[0].tolist() for name, one in maps.items()},
        "sentences": translations(model, sentences, 20),
        "most": 2e-3,
        "words": data["german"],
        "text": pairs[0].source,
        "encoded": src,
    }
    goldens = tmp_path / "goldens.json"
    goldens.write_text(json.dumps({"engine": [case]}))
    done = subprocess.run(
        [node, "--test", "tests/figures/engine.test.mjs"],
        cwd=ROOT,
        env=dict(os.environ, GOLDENS=str(goldens)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_no_page_gives_its_figure_another_meaning() -> None:
    """`figure, ax = plt.subplots()` would hide the function."""
    wrong = []
    for chapter in read_book(ROOT):
        code = [cell.source for cell in chapter.code]
        if any("annotated.book.figures import figure" in s for s in code):
            wrong += [
                cell.place
                for cell in chapter.code
                if re.search(
                    r"^\s*figure\s*(?:,.*)?=(?!=)", cell.source, re.M
                )
                and not any(tag.startswith("export") for tag in cell.tags)
            ]
    assert wrong == []
