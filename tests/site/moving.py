"""Figures that move, with small data: pages that carry them, and a window."""

import base64
import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

from annotated.book.example import LETTERS, reversal_model
from annotated.book.example import write as spelt
from annotated.book.figures import (
    MovingFigure,
    figure,
    half_weights,
)
from annotated.book.scripts import script
from annotated.model import Transformer, TransformerConfig
from annotated.search import SearchConfig, plain_beam_search
from annotated.tokens import _BYTES, SPECIALS
from tests.figures.of_paths import small_layer
from tests.figures.of_translating import grammar
from tests.helpers import SHAPE

FRAMES = [
    {"step": 0, "text": "", "weights": [[0.5, 0.3, 0.2]] * 3},
    {"step": 1, "text": "bb", "weights": [[0.2, 0.6, 0.2]] * 3},
    {
        "step": 2,
        "text": "ba",
        "weights": [[0, 1, 0], [1, 0, 0], [0, 0, 1]],
    },
]


def untrained(seed: int, noise: float, **fields: Any) -> Transformer:
    """A small model that has learned nothing, and never says the same."""
    torch.manual_seed(seed)
    shape = SHAPE | {"d_model": 8, "d_ff": 8, "dropout": 0.0} | fields
    model = Transformer(TransformerConfig(**shape))
    for one in model.parameters():
        one.data += noise * torch.randn_like(one)
    return model


def in_halves(model: Transformer) -> tuple[Any, bytes]:
    """The layout and the weights that a page gets, which model gets, too."""
    layout, halves = half_weights(model)
    model.half().float()
    return layout, halves


def translator() -> dict[str, Any]:
    """A small model, and a translation that the package says is its own."""
    model = untrained(0, 0.3, src_vocab=8, tgt_vocab=7, tie="none")
    layout, halves = in_halves(model)
    src, greedy = [4, 5, 7], SearchConfig(beam=1)
    english = [*SPECIALS, "The", "dog", "barks"]
    ids = plain_beam_search(model, src, greedy)[0].ids
    target = " ".join(english[i] for i in ids)
    return {
        "large": halves,
        "config": asdict(model.config),
        "layout": layout,
        "grammar": grammar(),
        "german": [*SPECIALS, "Der", "Hund", "bellt", "."],
        "english": english,
        "seen": torch.full((len(ids) + 1, 4), 0.25),
        "samples": [
            ("Der Hund .", target, ((0, 0), (1, 1))),
            ("Hund bellt . " * 5, "dog barks", ()),
        ],
    }


def speller() -> dict[str, Any]:
    """A model of letters that has learned nothing, and its answers."""
    model = reversal_model(d_model=8, d_ff=8)
    layout, halves = in_halves(model)
    without = {"": spelt(model, "abc")}
    for key, name in BRANCHES.items():
        hook = model.get_submodule(name).register_forward_hook(
            lambda part, inputs, added: 0 * added
        )
        without[key] = spelt(model, "abc")
        hook.remove()
    return {
        "large": halves,
        "config": asdict(model.config),
        "layout": layout,
        "letters": LETTERS,
        "word": "abc",
        "without": without,
    }


def sayer() -> dict[str, Any]:
    """A model of bytes that has learned nothing, whose every token is an
    ASCII character, and in `answers` what the package makes of some texts.
    """
    model = untrained(1, 0.5, src_vocab=260, tgt_vocab=260, norm="pre")
    layout, halves = in_halves(model)
    order = [b if 32 <= b < 127 else 97 + b % 26 for b in _BYTES]
    last = {byte: i + 4 for i, byte in enumerate(order)}
    search = SearchConfig(beam=4, alpha=1.0, extra=6)

    def answer(text: str) -> str:
        src = [last[byte] for byte in f" {text}".encode()]
        [best, *_] = plain_beam_search(model, src, search)
        return (
            bytes(order[i - 4] for i in best.ids if i > 3)
            .decode()
            .removeprefix(" ")
        )

    words = "\n".join(["do", "know", "Tom", "you", ""])
    more = json.dumps({"merges": [], "words": words}).encode()
    texts = "Do you know Tom?", "Do you know Zorro?", "I know."
    german = {
        "config": asdict(model.config),
        "layout": layout,
        "order": order,
        "search": asdict(search),
        "size": len(halves + more),
        "sample": {
            "text": "Who is it?",
            "source": [" Who", " is", " it", "?"],
            "target": ["Wer", " ist", " es", "?"],
            "weights": torch.eye(4) * 0.9,
            "said": "Wer ist es?",
        },
    }
    spanish = german | {
        "sample": german["sample"]
        | {"target": ["¿Quién", " es", " él", "?"], "said": "¿Quién es él?"}
    }
    return {
        "large": {"de": halves + more, "es": halves + more},
        "into": {"de": german, "es": spanish},
        "samples": ["Do you know Tom?"],
        "answers": {text: answer(text) for text in texts},
    }


BRANCHES = {
    "encoder.attention": "encoder.layers.0.attention",
    "encoder.network": "encoder.layers.0.feed_forward",
    "decoder.attention": "decoder.layers.0.attention",
    "decoder.cross": "decoder.layers.0.cross_attention",
    "decoder.network": "decoder.layers.0.feed_forward",
}


def neighbours(word: str = "reading") -> dict[str, Any]:
    """A layer whose head i alone answers question i of four, if it has
    one: where nobody does, it says “z”, and is right once in ten times.
    """
    offsets = (-2, -1, 1, 2)
    runs: dict[int, Any] = {}
    for heads in (1, 2, 4):
        states = {}
        for size in range(heads + 1):
            for off in itertools.combinations(range(heads), size):
                heard = [q < heads and q not in off for q in range(4)]
                states["".join(map(str, off))] = {
                    "right": [0.9 if h else 0.1 for h in heard],
                    "sure": [[0.8 if h else 0.3 for h in heard]] * 3,
                    "said": [
                        "".join(
                            word[at + offset] if h else "z"
                            for offset, h in zip(offsets, heard)
                        )
                        for at in (2, 3, 4)
                    ],
                }
        maps = torch.zeros(heads, 7, 7)
        for head in range(heads):
            maps[head] = torch.eye(7).roll(offsets[head], dims=1)
        runs[heads] = {
            "states": states,
            "maps": maps,
            "losses": [3.0, 2.0 / heads, 1.0 / heads],
        }
    return {"word": word, "offsets": offsets, "every": 20, "runs": runs}


def depth() -> dict[str, Any]:
    """Stacks whose size each layer multiplies, whose positions are alike
    at once or never, and a gradient that follows the size.
    """
    stacks = {
        name: {
            "size": [factor**layer for layer in range(24)],
            "alike": [alike] * 24,
            "gradient": {
                many: [factor ** (many - layer) for layer in range(many)]
                for many in (1, 2, 24)
            },
        }
        for name, factor, alike in (
            ("post", 1.0, 0.9),
            ("pre", 1.1, 0.2),
            ("none", 1.5, 0.9),
            ("post-bare", 1.0, 1.0),
            ("pre-bare", 1.0, 1.0),
            ("none-bare", 0.5, 1.0),
        )
    }
    run = {"layers": 2, "norm": "none", "sums": True}
    return {"stacks": stacks, "learned": [{**run, "exact": [0.985, 0, 1]}]}


CASES: dict[str, dict[str, Any]] = {
    "branches": speller(),
    "heads": {
        "samples": [
            {
                "source": ["Hunde", "bellen", "</s>"],
                "target": ["<s>", "dogs"],
                "maps": {
                    "encoder": [[[[1, 0, 0], [0, 0.9, 0.1], [0, 1, 0]]]],
                    "decoder": [[[[1, 0], [0.3, 0.7]]]],
                    "cross": [[[[0.8, 0.1, 0.1], [0.2, 0.6, 0.2]]]],
                },
            }
        ],
        "heads": [
            {
                "kind": kind,
                "layer": 0,
                "head": 0,
                "job": f"the {kind}’s",
                "score": 0.5,
                "base": 0.25,
                "lost": lost,
            }
            for kind, lost in (
                ("encoder", 0.01),
                ("decoder", 0.0),
                ("cross", 0.5),
            )
        ],
    },
    "stream": {
        "V": 37_000,
        "rows": {
            "base": {"stated": 65, "N": 6, "d": 512, "h": 8, "ff": 2048},
            "B-dk16": {
                "stated": 58,
                "N": 6,
                "d": 512,
                "h": 8,
                "ff": 2048,
                "dk": 16,
            },
            "big": {"stated": 213, "N": 6, "d": 1024, "h": 16, "ff": 4096},
        },
    },
    "beam": {
        "chances": {
            "<s>": {"it": 0.6, "the": 0.4},
            "it": {"barks": 0.5, "is": 0.5},
            "the": {"dog": 1.0},
            "dog": {"</s>": 1.0},
            "is": {"</s>": 1.0},
            "barks": {"</s>": 1.0},
        }
    },
    "translate": translator(),
    "say": sayer(),
    "depth": depth(),
    "neighbours": neighbours(),
    "masks": {"words": 10, "trained": {"finite": 1.5, "after": 2.0}},
    "dials": {"paper": {"width": 512, "warmup": 4000, "last": 20_000}},
    "draw": {
        "measures": {
            "loss": {
                "name": "loss",
                "unit": "nats",
                "digits": 2,
                "values": {
                    "a": [1.0, 1.2],
                    "b": [1.3, 1.1],
                    "c": [3.0, 4.0],
                },
            },
            "bleu": {
                "name": "BLEU",
                "unit": "points",
                "digits": 1,
                "values": {
                    "a": [2.0, 2.0],
                    "b": [1.0, 1.0],
                    "c": [0.0, 0.5],
                },
            },
        },
        "pairs": [["b", "a"], ["c", "a"], ["c", "b"]],
    },
    "ring": {"alone": {"P100": 3.2, "H100": 0.08}},
    "sample": {
        "follows": {
            "^^s": {"a": 6, "e": 3, "o": 1},
            "^sa": {"y": 4, "d": 2},
            "^se": {"e": 2, "a": 1},
            "^so": {"$": 1},
            "sea": {"$": 1},
            "see": {"$": 2},
        },
        "words": ["say", "see", "so"],
        "begin": "s",
    },
    "scale": {
        "widths": [1, 4, 16],
        "products": [
            [[1.0, 0.0], [4.0, 0.0], [16.0, 0.0]],
            [[0.0, 1.0], [0.0, 4.0], [0.0, 16.0]],
        ],
    },
    "cost": {
        "presets": {
            "base": {
                "d": 512,
                "layers": 6,
                "vocab": 37_000,
                "tokens": 25_000,
                "steps": 100_000,
                "device": "8 × P100",
            },
        },
        "devices": {
            "8 × P100": {
                "count": 8,
                "speed": 9.5,
                "how": "by the hours",
                "shares": {512: 0.29},
                "watts": 177.0,
                "rent": 1.46,
            },
            "H100": {
                "count": 1,
                "speed": 779.0,
                "how": "measured",
                "shares": {512: 0.15},
                "watts": 700.0,
                "rent": 3.99,
            },
        },
        "papers": {
            "base": {
                "needs": 9.51e17,
                "paid": 3.28e18,
                "hours": 12.0,
                "kwh": 26.84,
                "rent": 140.2,
            }
        },
        "prices": {"kwh": 0.15, "overhead": 1.58},
    },
    "bleu": {
        "hypotheses": ["a dog runs .", "the woman sings in the rain ."],
        "references": ["a dog runs .", "a woman sings in the rain ."],
    },
    "batches": {
        "source": [3, 5, 9, 3, 40, 9, 12, 5],
        "target": [4, 5, 30, 8, 9, 10, 44, 5],
        "sizes": [20, 60, 200],
        "tokens": 60,
        "reach": 50,
    },
    "cache": {
        "words": ["<s>", "a", "b"],
        "searches": {
            "1": [[[0]], [[0, 1]]],
            "2": [[[0]], [[0, 1], [0, 2]], [[0, 2, 1], [0, 2, 2]]],
        },
        "size": {"layers": 6, "d": 512},
    },
    "loops": {
        "panels": [
            {
                "name": name,
                "line": [3.0, 2.0, 1.0] if name != "B" else [3, 1.05, 0.5],
                "dots": [[200, 1.0 if name != "B" else 0.98]],
            }
            for name in "ABCDEF"
        ],
        "healthy": [3.0, 1.0, 0.5],
        "last": 300,
    },
    "smooth": {"epsilon": 0.0, "vocab": 1000},
    "path": {"words": ["attention", "misunderstandings"]},
    "switches": small_layer(),
    "table1": {"start": {"n": 1024, "d": 512, "k": 3, "r": 33}},
    "tree": {
        "words": ["She", "saw", "boys"],
        "truth": "(S (NP PRP )NP (VP VBD (NP NNS )NP )VP )S",
        "answers": [
            ["flat", "(S (NP PRP )NP VBD NNS )S"],
            ["the truth", "(S (NP PRP )NP (VP VBD (NP NNS )NP )VP )S"],
        ],
    },
    "pieces": {
        "merges": [[87, 75], [260, 72], [224, 261]],
        "order": _BYTES,
        "text": "the hat",
    },
    "waves": {"width": 64, "columns": [0, 8, 16]},
    "film": {
        "frames": FRAMES,
        "losses": [3.0, 2.0],
        "rows": ["b", "a", "end"],
        "columns": ["a", "b", "end"],
        "source": "ab",
        "target": "ba",
        "things": "letters",
        "path": [[0, 1], [1, 0]],
        "share": "on the right letter",
        "map": "Written and read",
        "act": "While it writes",
        "question": "When?",
    },
    "learn": {"word": "attention", "losses": [3.0, 2.0, 0.5]},
    "lookup": {
        "query": [1.41421, 0.0],
        "keys": [[0.0, 0.0], [0.693147, 0.0], [0.0, 0.693147]],
        "values": [[0, 60], [60, 0], [0, 0]],
    },
}
PAGE = """<!doctype html><html lang="en" data-theme="{theme}"><head>
<meta charset="utf-8"><title>t</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{{margin:1rem;background:{ground};color:{ink}}}
figure{{margin:0}} svg,img{{max-width:100%}}</style></head>
<body><main class="bd-article"><h1>A page</h1>
{body}</main></body></html>"""
SITE = """<figure class="moves moves-{name}">
<script type="application/json" class="moves-data">{data}</script>
{large}<script defer src="{name}.js"></script>
<img src="still.svg" alt="a line"><figcaption>A line.</figcaption></figure>
"""


DRAWN: dict[str, tuple[dict[str, Any], MovingFigure, str, str]] = {}


def make(name: str) -> tuple[MovingFigure, str, str]:
    """A figure, whole as a notebook has it, and its script: drawn once for
    the dozen tests that open it with the same data.
    """
    case = CASES[name]
    if name not in DRAWN or DRAWN[name][0] is not case:
        still, axes = plt.subplots(figsize=(2, 1))
        axes.plot([1, 2])
        made = figure(name, still, **case)
        DRAWN[name] = case, made, made.html(), script(name)
    return DRAWN[name][1:]


def write(folder: Path, name: str, form: str, theme: str) -> str:
    """A page with the figure, as a notebook or a page carries it."""
    made, body, code = make(name)
    if form == "page":
        data = body.partition('moves-data">')[2].partition("</script>")[0]
        large = ""
        for which, loaded in made.large.items():
            text, file = base64.b64encode(loaded).decode(), f"{which}.js"
            (folder / file).write_text(f'movesLarge("{text}");')
            large += (
                '<script type="text/plain" class="moves-large" '
                f'data-name="{which}" data-file="{file}"></script>'
            )
        body = SITE.format(name=name, data=data, large=large)
        (folder / f"{name}.js").write_text(code, "utf-8")
        (folder / "still.svg").write_text(made.still)
    ground, ink = "#fff", "#222"
    if theme == "dark":
        ground, ink = "#16181b", "#ddd"
    page = folder / f"{form}-{theme}.html"
    text = PAGE.format(theme=theme, ground=ground, ink=ink, body=body)
    page.write_text(text, encoding="utf-8")
    return page.as_uri()


class Window:
    """One page, and what went wrong with it."""

    def __init__(self, browser: Any, width: int = 1000, **more: Any):
        self.faults: list[str] = []
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, **more
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(
            120_000
        )  # a busy machine is no failure
        self.page.on("pageerror", lambda e: self.faults.append(str(e)))
        self.page.on(
            "console",
            lambda m: m.type == "error" and self.faults.append(m.text),
        )
        self.page.on(
            "request",
            lambda r: (
                r.url.startswith(("file:", "data:", "blob:"))
                or self.faults.append(f"asks {r.url}")
            ),
        )

    def open(self, address: str) -> Any:
        self.page.goto(address)
        return self.page

    def said(self) -> str:
        return self.page.locator(".fx-say").inner_text()

    def verdict(self) -> str:
        return self.page.locator(".fx-verdict").inner_text()


def stands(window: Window, folder: Path, name: str, form: str) -> Any:
    """The page of a figure, which stands in the place of its still."""
    page = window.open(write(folder, name, form, "light"))
    page.locator(".fx").wait_for()
    assert not page.locator(".moves > img, .moves > svg").is_visible()
    assert window.said() != ""
    assert window.faults == []
    return page


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)
