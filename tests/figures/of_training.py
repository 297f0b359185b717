"""What figures of text, training and costs have to compute, by the package."""

from __future__ import annotations

import itertools
import re
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch

import annotated.batches
from annotated import costs
from annotated.attention import MultiHeadAttention
from annotated.batches import cut, plan_batches
from annotated.layers import EncoderLayer, FeedForward
from annotated.loss import smoothed_loss, smoothed_targets
from annotated.model import (
    TransformerConfig,
    count_parameters,
)
from annotated.schedule import cooldown_factor, learning_rate
from annotated.tokens import (
    _BYTES,
    BytePairs,
)
from annotated.variations import difference
from press.chapters import read_book
from tests.helpers import ROOT


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
    shares = {
        "cpu": costs._SHARES["cpu", "float32"],
        "cuda": costs._SHARES["cuda", "bfloat16"],
    }
    bills = []
    for kind, (one, devices) in itertools.product(
        shares, zip(runs, (1, 8, 3))
    ):
        known, width = shares[kind], one["run"]["d"]
        width = min(known, key=lambda d: abs(d - width))  # as a dry run
        given = {"devices": devices, "watts": 177.0, "speed": 0.22}
        prices = {"rent": 1.46, "kwh": 0.15, "overhead": 1.58}
        of = costs.bill(
            one["all"], 0.22e12, known[width], devices, 177.0, 1.46, 0.15
        )
        bills.append(
            {
                "shares": known,
                "width": width,
                "run": one["run"] | given | prices,
                "bill": dict(
                    zip(("hours", "energy", "rent", "electricity"), of)
                ),
            }
        )
    return {"runs": runs, "papers": papers, "bills": bills}


def ring() -> dict[str, Any]:
    """The all-reduce of page 21, of gradients of ones, round by round,
    and how much faster n devices are with it.
    """
    page = (ROOT / "book" / "21-many-devices.md").read_text("utf-8")
    names: dict[str, Any] = {"torch": torch}
    for name in ("ring", "times_as_fast"):
        cell = page[page.index(f"def {name}(") :]
        exec(cell.partition("\n\n\n")[0], names)
    rings = [
        {
            "n": n,
            "rounds": [
                one.view(n, n).int().tolist()
                for one in names["ring"](torch.ones(n, n))
            ],
        }
        for n in (2, 3, 4, 8)
    ]
    scaling = [
        {
            "n": n,
            "link": link,
            "size": size,
            "alone": alone,
            "times": names["times_as_fast"](n, link, alone, size),
        }
        for n, link, size, alone in (
            (8, 2, 0.26, 3.2),
            (2, 10, 0.26, 0.08),
            (5, 100, 0.85, 0.3),
        )
    ]
    return {"rings": rings, "scaling": scaling}


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


def bytepairs() -> dict[str, Any]:
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


def pieces() -> dict[str, Any]:
    """At which sizes of the vocabulary some texts become shorter."""
    whole = bytepairs()
    merges = [tuple(pair) for pair in whole["merges"]]
    texts = []
    for text in ("generators", "the object", "x", "größer"):
        counts = [
            len(
                BytePairs(
                    dict(zip(merges[:n], range(260, 260 + n)))
                ).encode(text)
            )
            for n in range(len(merges) + 1)
        ]
        at = [
            260 + n
            for n in range(1, len(counts))
            if counts[n] < counts[n - 1]
        ]
        texts.append({"text": text, "at": at})
    return {key: whole[key] for key in ("merges", "order")} | {
        "texts": texts
    }


def neighbours() -> dict[str, Any]:
    """An untrained layer's answers around the letters of some words, each
    head taken away in turn, and how many of them are right.
    """
    torch.manual_seed(0)
    offsets, letters = (-2, -1, 1, 2), torch.randint(3, (40, 7))
    table, read = torch.randn(3, 8), torch.randn(8, 4 * 3)
    layer = EncoderLayer(MultiHeadAttention(8, 2), FeedForward(8, 8))
    asked = torch.stack([letters.roll(-o, dims=1) for o in offsets], -1)
    states, wanted = [], []
    for off in ([], [0], [1], [0, 1]):
        blocks = layer.attention.w_o.weight.data.unflatten(1, (2, -1))
        kept = blocks.clone()
        blocks[:, off] = 0
        with torch.no_grad():
            logits = (layer(table[letters]) @ read).unflatten(-1, (4, 3))
        blocks.copy_(kept)
        sure, said = logits[:, 2:-2].softmax(-1).max(-1)
        right = said == asked[:, 2:-2]
        states.append(
            {
                "off": off,
                "said": [
                    ["".join("abc"[i] for i in row) for row in word]
                    for word in said.tolist()
                ],
                "sure": sure.tolist(),
                "right": right.float().mean(dim=(0, 1)).tolist(),
            }
        )
        wanted.append(
            {
                "of_word": right.sum(dim=-1).tolist(),
                "share": right.float().mean().item(),
            }
        )
    words = ["".join("abc"[i] for i in row) for row in letters.tolist()]
    return {
        "offsets": offsets,
        "words": words,
        "states": states,
        "wanted": wanted,
    }


def depth() -> list[dict[str, Any]]:
    """Sizes and gradients of small stacks, and what a figure says of them."""
    cases = []
    for pre in (False, True):
        torch.manual_seed(0)
        x, sizes, weights = torch.randn(2, 5, 8), [], []
        for _ in range(4):
            layer = EncoderLayer(
                MultiHeadAttention(8, 2), FeedForward(8, 16), pre_norm=pre
            )
            x = layer(x)
            weights.append(layer.feed_forward.outer.weight)
            sizes.append(x.detach().square().mean().sqrt().item())
        slopes = torch.autograd.grad(x.sin().sum(), weights)
        gradient = [slope.norm().item() for slope in slopes]
        growth = torch.tensor(sizes).double()
        steps = growth[1:] / growth[:-1]
        cases.append(
            {
                "stack": {
                    "size": sizes,
                    "alike": [0.0, 0.1, 0.2, 0.3],
                    "gradient": {"4": gradient},
                },
                "size": sizes[-1],
                "ratio": (slopes[0].norm() / slopes[3].norm()).item(),
                "factor": steps.log().mean().exp().item(),
            }
        )
    return cases


def smooth() -> list[dict[str, Any]]:
    """The smoothed loss of a model that gives the label p and shares the
    rest evenly, with the gradient of the label's logit, by autograd, in
    float32, in which the package computes it.
    """
    cases = []
    for p, epsilon, vocab in itertools.product(
        (0.3, 0.9, 0.99), (0.0, 0.1, 0.4), (8, 1000)
    ):
        said = torch.full((1, vocab), (1 - p) / (vocab - 1)).double()
        said[0, 5] = p
        logits, label = said.log().requires_grad_(), torch.tensor([5])
        loss, _ = smoothed_loss(logits, label, epsilon)
        loss.backward()
        asked = smoothed_targets(label, vocab, epsilon).double()[0]
        assert logits.grad is not None
        cases.append(
            {
                "p": p,
                "epsilon": epsilon,
                "vocab": vocab,
                "loss": loss.item(),
                "slope": logits.grad[0, 5].item(),
                "floor": torch.special.entr(asked).sum().item(),
                "target": [asked[5].item(), asked[0].item()],
            }
        )
    return cases
