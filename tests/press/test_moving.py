"""Figures that move, in Chromium: from a folder, as pages and notebooks
carry them, with the keyboard alone, on a phone, and without a script.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch

from annotated.book.example import LETTERS, reversal_model
from annotated.book.example import write as spelt
from annotated.book.figures import (
    MovingFigure,
    figure,
    half_weights,
    script,
)
from annotated.book.look import look
from annotated.model import Transformer, TransformerConfig
from annotated.search import SearchConfig, plain_beam_search
from annotated.tokens import BYTES, SPECIALS

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed"
)

from .test_browser import (  # noqa: E402
    AXE,
    CLIPPED,
    JUDGE,
    browser,
)

__all__ = ["browser"]  # the fixture

FRAMES = [
    {"step": 0, "text": "", "weights": [[0.5, 0.3, 0.2]] * 3},
    {"step": 1, "text": "bb", "weights": [[0.2, 0.6, 0.2]] * 3},
    {
        "step": 2,
        "text": "ba",
        "weights": [[0, 1, 0], [1, 0, 0], [0, 0, 1]],
    },
]


def translator() -> dict[str, Any]:
    """A small model, and a translation that the package says is its own."""
    torch.manual_seed(0)
    config = TransformerConfig(
        src_vocab=8,
        tgt_vocab=7,
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=8,
        d_ff=8,
        num_heads=2,
        dropout=0.0,
        tie="none",
    )
    model = Transformer(config)
    for one in model.parameters():
        one.data += 0.3 * torch.randn_like(one)
    layout, halves = half_weights(model)
    model.half().float()
    src, greedy = [4, 5, 7], SearchConfig(beam=1)
    english = [*SPECIALS, "The", "dog", "barks"]
    ids = plain_beam_search(model, src, greedy)[0].ids
    target = " ".join(english[i] for i in ids)
    return {
        "large": halves,
        "config": asdict(config),
        "layout": layout,
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
    layout, halves = half_weights(model)
    model.half().float()
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


BRANCHES = {
    "encoder.attention": "encoder.layers.0.attention",
    "encoder.network": "encoder.layers.0.feed_forward",
    "decoder.attention": "decoder.layers.0.attention",
    "decoder.cross": "decoder.layers.0.cross_attention",
    "decoder.network": "decoder.layers.0.feed_forward",
}
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
                "devices": 8,
                "speed": 9.5,
                "share": 29.0,
            },
        },
        "paper": 9.51e17,
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
            {"name": name, "line": [3.0, 2.0, 1.0], "dots": [[200, 1.0]]}
            for name in "ABCDEF"
        ],
        "healthy": [3.0, 1.0, 0.5],
        "last": 300,
    },
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
        "order": BYTES,
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


def make(name: str) -> MovingFigure:
    still, axes = plt.subplots(figsize=(2, 1))
    axes.plot([1, 2])
    return figure(name, still, **CASES[name])


def write(folder: Path, name: str, form: str, theme: str) -> str:
    """A page with the figure, as a notebook or a page carries it."""
    made = make(name)
    body = made.html()
    if form == "page":
        data = body.partition('moves-data">')[2].partition("</script>")[0]
        large = ""
        if made.large:
            text = base64.b64encode(made.large).decode()
            (folder / "large.js").write_text(f'movesLarge("{text}");')
            large = (
                '<script type="text/plain" class="moves-large" '
                'data-file="large.js"></script>'
            )
        body = SITE.format(name=name, data=data, large=large)
        (folder / f"{name}.js").write_text(script(name), "utf-8")
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
        self.page.set_default_timeout(60_000)
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


@pytest.fixture
def window(browser: Any) -> Iterator[Window]:
    made = Window(browser)
    yield made
    made.context.close()


@pytest.mark.parametrize("form", ["page", "notebook"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_it_stands_in_the_place_of_its_still(
    window: Window, tmp_path: Path, name: str, form: str
) -> None:
    page = window.open(write(tmp_path, name, form, "light"))
    page.locator(".fx").wait_for()
    assert page.locator(".fx").count() == 1
    still = page.locator(".moves > img, .moves > svg")
    assert still.count() == 1 and not still.is_visible()
    assert window.said() != ""
    assert window.faults == []


@pytest.mark.parametrize("form", ["page", "notebook"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_without_a_script_the_still_remains(
    browser: Any, tmp_path: Path, name: str, form: str
) -> None:
    window = Window(browser, java_script_enabled=False)
    page = window.open(write(tmp_path, name, form, "light"))
    assert page.locator(".moves > img, .moves > svg").is_visible()
    assert page.locator(".fx").count() == 0
    window.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_it_keeps_nobody_out_and_fits_a_phone(
    browser: Any, tmp_path: Path, name: str, theme: str
) -> None:
    window = Window(browser, width=390, bypass_csp=True)
    page = window.open(write(tmp_path, name, "page", theme))
    page.locator(".fx").wait_for()
    page.evaluate(
        "document.querySelectorAll('details').forEach(x => x.open = true)"
    )
    assert page.evaluate(CLIPPED) == []
    page.add_script_tag(path=str(AXE))
    assert page.evaluate(JUDGE) == []
    assert window.faults == []
    window.context.close()


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_film_moves_with_the_keyboard(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "film", "page", "light"))
    assert window.said().startswith(
        "After 0 steps it writes nothing: 0 of 2"
    )
    page.get_by_role("slider").focus()
    press(page, "ArrowRight", "ArrowRight")
    assert window.said() == (
        "After 2 steps it writes “ba”: 2 of 2 letters in the right place, "
        "at a loss of 2.50. 100 % of its attention is on the right letter."
    )
    page.locator("[role=gridcell]").first.focus()
    press(page, "ArrowRight")
    told = "While it writes b, it gives b (place 2) 1.00."
    assert page.get_by_text(told).is_visible()
    page.get_by_role("button", name="Earlier").focus()
    press(page, "Enter")
    assert "“bb”: 1 of 2" in window.said()
    page.wait_for_function("location.hash === '#film:step=1'")
    page.get_by_role("button", name="before step 1").click()
    assert page.get_by_text(
        "Not so: it is right for the first"
    ).is_visible()
    assert window.faults == []


def test_the_address_has_the_state(window: Window, tmp_path: Path) -> None:
    address = write(tmp_path, "film", "page", "light")
    page = window.open(f"{address}#film:step=1")
    page.locator(".fx").wait_for()
    assert window.said().startswith("After 1 steps")


def test_a_notebook_keeps_its_own_address(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "film", "notebook", "light"))
    page.get_by_role("button", name="Later").click()
    page.wait_for_timeout(500)
    assert "#" not in page.url


def test_lookup_answers_the_query(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "lookup", "page", "light"))
    assert window.said() == (
        "The weights are 0.25, 0.50, 0.25, so the output is (30.0, 15.0): "
        "drawn to value 2."
    )
    page.get_by_role("slider", name="sharpness").focus()
    press(page, "Home")
    assert "plain mean" in window.said()
    press(page, "End")
    assert "value 2 itself" in window.said()
    page.get_by_role("button", name="key 3").focus()
    press(page, "Enter")
    page.get_by_role("slider", name="right").focus()
    press(page, "End")
    assert "value 3 itself" in window.said()
    page.wait_for_function("location.hash.includes('k3=2.5%2C0.693')")
    assert window.faults == []


def test_lookup_can_be_dragged(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "lookup", "page", "light"))
    box = page.locator(".fx svg").first.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    unit = box["width"] * 220 / 232 / 5
    page.mouse.move(middle[0] + 1.414 * unit, middle[1])
    page.mouse.down()
    page.mouse.move(middle[0], middle[1] - 2.5 * unit, steps=4)
    page.mouse.up()
    assert "drawn to value 3" in window.said()


@pytest.mark.parametrize("form", ["page", "notebook"])
def test_translate_loads_the_model_when_asked(
    window: Window, tmp_path: Path, form: str
) -> None:
    asked: list[str] = []
    window.page.on("request", lambda r: asked.append(r.url))
    page = window.open(write(tmp_path, "translate", form, "light"))
    source, target, _ = CASES["translate"]["samples"][0]
    assert "Load the model to translate it" in window.said()
    assert not any("large.js" in url for url in asked)
    page.get_by_role("button", name="Load the model, 0.0 MB").focus()
    press(page, "Enter")
    page.get_by_role("button", name="Translate").wait_for()
    assert f"“{source}” becomes “{target}”. That is right." in window.said()
    page.get_by_label("A German sentence").fill("Der Esel.")
    press(page, "Enter")
    assert "“Der Esel .” becomes" in window.said()
    assert "It has never met “Esel”." in window.said()
    for given, reason in {
        " ": "nothing to translate",
        "Hund " * 41: "41 words",
    }.items():
        page.get_by_label("A German sentence").fill(given)
        press(page, "Enter")
        assert reason in window.said()
    page.get_by_label("A German sentence").fill("der Esel.")
    press(page, "Enter")
    assert "“der” (but “Der”), “Esel”." in window.said()
    words = page.get_by_role("group", name="The translation, word by word")
    assert words.get_by_role("button").last.inner_text()[:5] == "(end)"
    words.get_by_role("button").first.click()
    page.locator(".fx-row", has_text="Instead of").get_by_role(
        "button"
    ).first.click()
    assert "You chose its first words" in window.said()
    page.get_by_role("button", name="English at English").click()
    page.get_by_role("group", name="head").get_by_role(
        "button", name="2"
    ).click()
    page.get_by_role("button", name="Silence this head").click()
    assert "Silent: decoder 1.2." in window.said()
    assert window.faults == []


def test_any_run_can_be_looked_into(browser: Any) -> None:
    """The figure of chapter 19, answered by a server of this machine."""
    with look(Path("pocket")) as (server, address):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        window = Window(browser)
        page = window.open(address)
        said = page.locator(".fx-say", has_text="becomes")
        said.wait_for()
        assert "That is right. A beam of 4 finds the same." in window.said()
        page.get_by_label("A source sentence", exact=True).fill(
            "Der Hund bellt ."
        )
        press(page, "Enter")
        page.get_by_text("“Der Hund bellt .” becomes").wait_for()
        words = page.get_by_role(
            "group", name="The translation, word by word"
        )
        assert words.get_by_role("button").last.inner_text()[:5] == "(end)"
        words.get_by_role("button").first.click()
        page.locator(".fx-row", has_text="Instead of").get_by_role(
            "button"
        ).first.click()
        page.get_by_text("You chose its first words").wait_for()
        page.get_by_role("button", name="target at target").click()
        page.get_by_role("group", name="head").get_by_role(
            "button", name="2"
        ).click()
        page.get_by_role("button", name="Silence this head").click()
        page.get_by_text("Silent: decoder 2.2.").wait_for()
        page.get_by_label("A source sentence", exact=True).fill(
            "Hund " * 61
        )
        press(page, "Enter")
        page.get_by_text("does not answer: the sentence has 61").wait_for()
        window.context.close()
        server.shutdown()
        thread.join()
    asked = [fault for fault in window.faults if "asks" in fault]
    assert asked and all(f"asks {address}" in fault for fault in asked)
    refused = [fault for fault in window.faults if fault not in asked]
    assert all("400" in fault for fault in refused) and len(refused) == 1


def test_a_link_to_a_sentence_speaks_of_that_sentence(
    window: Window, tmp_path: Path
) -> None:
    address = write(tmp_path, "translate", "page", "light")
    window.open(f"{address}#translate:text=Der+Hund+%26+%3Cb%3E+50%25")
    window.page.locator(".fx").wait_for()
    assert window.said().endswith(
        "Load the model to translate “Der Hund & <b> 50%”."
    )
    assert window.faults == []


def test_a_broken_address_breaks_no_figure(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(f"{write(tmp_path, 'cost', 'page', 'light')}#50%")
    page.locator(".fx").wait_for()
    assert "takes 12 hours." in window.said()
    assert window.faults == []


def test_a_model_that_is_not_there_is_said_so(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "translate", "page", "light"))
    (tmp_path / "large.js").unlink()
    page.get_by_role("button", name="Load the model").click()
    page.get_by_text(
        "could not be loaded: large.js cannot be read"
    ).wait_for()
    assert page.get_by_role("button", name="Load the model").is_enabled()


def test_stream_finds_the_vocabulary(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "stream", "page", "light"))
    assert window.said() == (
        "This shape has 63.1 million parameters; it is the row “base” of "
        "Table 3, which says 65. With V = 37,000, 0 of the 3 counts fit."
    )
    page.get_by_role("slider", name="vocabulary").focus()
    press(page, *["ArrowRight"] * 16)
    assert "With V = 41,000, 2 of the 3 counts fit, all but big." in (
        window.said()
    )
    press(page, *["ArrowLeft"] * 20)
    assert "With V = 36,000, 1 of the 3 counts fit: big." in window.said()
    page.get_by_role("button", name="big", exact=True).focus()
    press(page, "Enter")
    assert "has 213.2 million parameters; it is the row “big”" in (
        window.said()
    )
    kept = page.evaluate("document.activeElement.dataset.row")
    assert kept == "big"  # the rows are drawn anew, the focus stays
    page.get_by_role("button", name="cross-attention").focus()
    press(page, "Enter")
    told = "weights (b, 16, t, s); gives (b, t, 1024). 4,200,448 parameters"
    assert page.get_by_text(told).is_visible()
    page.wait_for_function("location.hash === '#stream:row=big&V=36000'")
    page.get_by_role("slider", name="heads").focus()
    press(page, "ArrowRight")
    assert "and is no row of Table 3" in window.said()
    page.wait_for_function(
        "location.hash === '#stream:N=6&d=1024&h=32&ff=4096&V=36000'"
    )
    assert window.faults == []


def test_stream_begins_as_the_address_says(
    window: Window, tmp_path: Path
) -> None:
    address = write(tmp_path, "stream", "page", "light")
    window.open(f"{address}#stream:row=B-dk16&V=41000")
    assert "it is the row “B-dk16” of Table 3, which says 58" in (
        window.said()
    )


def test_heads_are_chosen(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "heads", "page", "light"))
    assert window.said().startswith(
        "encoder 1.1: the largest weight of a row is 0.97 on average. Most "
        "of all it looks from “Hunde” at “Hunde” (1.00)."
    )
    page.get_by_role("button", name="cross 1.1").focus()
    press(page, "Enter")
    assert "looks from “<s>” at “Hunde” (0.80)" in window.said()
    assert "without it 50.0 % of the sentences are" in window.said()
    page.locator("[role=gridcell]").first.focus()
    press(page, "ArrowDown", "ArrowRight")
    told = "From “dogs” it gives “bellen” 0.60."
    assert page.get_by_text(told).is_visible()
    page.get_by_role("button", name="the encoder’s own").click()
    assert page.get_by_text("Not so: it is cross 1.1").is_visible()
    page.wait_for_function(
        "location.hash === '#heads:sentence=0&head=cross+1.1'"
    )
    assert window.faults == []


def test_branches_are_switched_off(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "branches", "page", "light"))
    without = CASES["branches"]["without"]
    assert f"With all branches it writes “{without['']}”" in window.said()
    decoder = page.get_by_role("group", name="Decoder")
    decoder.get_by_role("button", name="cross-attention").focus()
    press(page, "Enter")
    told = (
        "Without the decoder’s cross-attention it writes "
        f"“{without['decoder.cross']}”"
    )
    assert told in window.said()
    page.get_by_role("button", name="Load the model").focus()
    press(page, "Enter")
    word = page.get_by_label("A word")
    word.wait_for()
    assert told in window.said()  # the page's model says what Python's did
    decoder.get_by_role("button", name="feed-forward").focus()
    press(page, "Enter")
    assert "cross-attention and the decoder’s feed-forward" in (
        window.said()
    )
    word.fill("residuals")
    assert "residuals →" in page.locator(".fx-mono").inner_text()
    assert "In training every word had 3 letters." in window.said()
    assert window.faults == []


def test_beam_goes_on_a_word_at_a_time(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "beam", "page", "light"))
    assert window.said() == "A beam of 2 is about to choose its first word."
    page.get_by_role("button", name="Next word").focus()
    press(page, "Enter")
    assert window.said() == "Step 1: kept “it”, “the”."
    press(page, "Enter")
    assert "kept “the dog”, “it barks”; dropped “it is”." in window.said()
    press(page, "Enter")
    assert "“the dog” wins with -0.92." in window.said()
    page.get_by_role("slider", name="beam").focus()
    press(page, "ArrowLeft")
    assert "“it barks” wins with -1.20." in window.said()
    page.get_by_role("slider", name="is").focus()
    press(page, "Home")  # “it” after the start
    assert "“the dog” wins with -0.01." in window.said()
    assert window.faults == []


def test_masks_are_edited_with_the_keyboard(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "masks", "page", "light"))
    assert "no position depends on the token" in window.said()
    page.locator("[role=gridcell]").first.focus()
    press(page, *["ArrowDown"], *["ArrowRight"] * 5, "Enter")
    assert page.get_by_text("Query 2 may attend to key 6.").is_visible()
    assert "no position depends" in window.said()
    page.get_by_role("slider", name="layers").focus()
    press(page, "ArrowRight")
    assert "2 of 6 positions depend on the token" in window.said()
    assert "guessing, 2.30, down to 1.54." in window.said()
    page.get_by_role("button", name="−10 before it").focus()
    press(page, "Enter")
    assert "came to 1.50." in window.said()
    page.wait_for_function(
        "location.hash === '#masks:kind=causal&how=finite&real=6"
        "&layers=2&cells=15'"
    )
    assert window.faults == []


def test_masks_begin_as_the_address_says(
    window: Window, tmp_path: Path
) -> None:
    address = write(tmp_path, "masks", "page", "light")
    page = window.open(f"{address}#masks:kind=ahead&real=4&layers=1")
    page.locator(".fx").wait_for()
    assert "3 of 4 positions" in window.said()


def test_dials_are_turned(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "dials", "page", "light"))
    assert window.said() == (
        "The rate is largest in step 4,000, 7.0·10⁻⁴, and 3.1·10⁻⁴ in the "
        "last; 20 % of the run is warm-up."
    )
    page.get_by_role("slider", name="width").focus()
    press(page, "ArrowRight", "ArrowRight")
    assert "step 4,000, 3.5·10⁻⁴" in window.said()
    page.get_by_role("slider", name="cool-down").focus()
    press(page, "End")
    assert "and 7.8·10⁻⁹ in the last" in window.said()
    page.get_by_role("button", name="The paper's").focus()
    press(page, "Enter")
    assert "step 4,000, 7.0·10⁻⁴" in window.said()
    assert window.faults == []


def test_scale_divides(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "scale", "page", "light"))
    assert window.said().startswith(
        "At d_k = 1, divided by its root, the largest weight is 0.73"
    )
    page.get_by_role("slider", name="d_k").focus()
    press(page, "End")
    assert "the largest weight is 0.98" in window.said()
    page.get_by_role("button", name="no", exact=True).focus()
    press(page, "Enter")
    assert "undivided, the largest weight is 1.00" in window.said()
    assert "Jacobian 0.000; over 2 queries it is 0.000." in window.said()
    page.get_by_role("button", name="Another query").focus()
    press(page, "Enter")
    assert page.get_by_role(
        "img", name="key 1 0.00, key 2 1.00"
    ).is_visible()
    assert window.faults == []


def test_a_table_of_single_runs_is_drawn(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "draw", "page", "light"))
    assert window.said().startswith("All seeds: each large dot")
    page.get_by_role("button", name="those with a small").click()
    told = page.get_by_text(
        "1 of 3 can. Their differences are at most 0.10"
    )
    assert told.is_visible()
    again = page.get_by_role("button", name="Train each row once: draw")
    again.focus()
    flipped = []
    for number in range(1, 9):
        press(page, "Enter")
        said = window.said()
        assert said.startswith(f"Draw {number}: ")
        assert said.endswith("and 0.25 in all possible ones.")
        flipped.append("1 of 3 comparisons" in said and "(b > a)" in said)
    assert any(flipped) and not all(flipped)
    mean = sum(flipped) / len(flipped)
    assert f"On average it is {mean:.1f} in your 8 draws" in said
    page.get_by_role("button", name="BLEU", exact=True).focus()
    press(page, "Enter")
    assert ": 0 of 3 comparisons contradict" in window.said()
    page.wait_for_function("location.hash === '#draw:measure=bleu&draw=8'")
    page.get_by_role("button", name="All seeds").focus()
    press(page, "Enter")
    assert window.said().startswith("All seeds")
    assert window.faults == []


def test_waves_turn_alike_everywhere(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "waves", "page", "light"))
    assert window.said() == (
        "From position 3 to 7, columns 8 and 9 turn by 72.5°: "
        "(0.81, 0.58) becomes (0.80, −0.60)."
    )
    page.get_by_role("slider", name="position").focus()
    press(page, "Home")
    assert "turn by 72.5°: (0.00, 1.00) becomes (0.95, 0.30)." in (
        window.said()
    )
    page.get_by_role("slider", name="offset k").focus()
    press(page, "Home")
    assert "From position 0 to −20" in window.said()
    page.get_by_role("button", name="16, 17").focus()
    press(page, "Enter")
    assert "columns 16 and 17 turn by −114.6°" in window.said()
    assert window.faults == []


def test_cost_is_a_link(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "cost", "page", "light"))
    assert window.said() == (
        "This run needs 9.5·10¹⁷ operations, 1.0 times what the paper's "
        "base model needs, and takes 12 hours."
    )
    page.get_by_role("slider", name="steps").focus()
    press(page, "ArrowRight")
    assert "takes 36 hours." in window.said()
    page.get_by_role("slider", name="devices").focus()
    press(page, "Home")
    assert "takes 12 days." in window.said()
    page.wait_for_function("location.hash.includes('devices=1&')")
    link = page.url.replace("vocab=37000", "vocab=36500")
    page.goto("about:blank")
    page.goto(link)
    assert "takes 12 days." in window.said()
    assert page.get_by_text("36,500").is_visible()  # no step of the slider
    page.get_by_role("button", name="base").click()
    assert "takes 12 hours." in window.said()
    assert window.faults == []


def test_bleu_follows_what_is_written(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "bleu", "page", "light"))
    page.get_by_role("button", name="2", exact=True).focus()
    press(page, "Enter")
    assert "Sentence 2 shares 6, 5, 4, 3 runs" in window.said()
    page.get_by_label("The translation").fill("a woman sings in the rain .")
    assert "7, 6, 5, 4 runs" in window.said()
    assert window.said().endswith("the BLEU of all 2 sentences is 100.0.")
    page.get_by_label("The translation").fill("")
    assert "With 4 words for 11" in window.said()
    assert window.said().endswith("is 17.4.")
    page.wait_for_function("location.hash === '#bleu:edit=2&t2='")
    page.get_by_role("button", name="As it was").focus()
    press(page, "Enter")
    assert "6, 5, 4, 3 runs" in window.said()
    assert window.faults == []


def test_batches_are_composed(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "batches", "page", "light"))
    assert window.said() == (
        "8 pairs at random, 60 tokens per batch: 2 steps per epoch, and "
        "padding is 63.6 % of the source's places and 59.2 % of the "
        "target's."
    )
    page.get_by_role("button", name="by target").focus()
    press(page, "Enter")
    assert window.said().startswith("8 pairs sorted by target, 60 tokens")
    page.get_by_role("slider", name="tokens per batch").focus()
    press(page, "Home")
    assert "20 tokens per batch: 6 steps per epoch" in window.said()
    page.wait_for_function(
        "location.hash === '#batches:order=by+target&tokens=20'"
    )
    page.get_by_role("slider", name="look at batch").focus()
    press(page, "Home")
    told = (
        "Batch 1 of 6, by length: 3 pairs. Source: 13 tokens in 15 places."
    )
    assert page.get_by_text(told).is_visible()
    press(page, "End")
    told = "1 pair. Source: 12 tokens in 12 places. Target: 44 tokens in 44"
    assert page.get_by_text(told).is_visible()
    assert window.faults == []


def test_a_tree_is_edited_and_scored(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "tree", "page", "light"))
    assert window.said() == (
        "2 of 2 brackets of the answer are right, and 2 of the truth's 4 "
        "are found: precision 100.0 %, recall 50.0 %, F1 66.7 %."
    )
    page.get_by_role("button", name="the truth").focus()
    press(page, "Enter")
    assert window.said().endswith("recall 100.0 %, F1 100.0 %.")
    tokens = page.get_by_role("group", name="Choose a token")
    tokens.get_by_role("button", name="(VP").focus()
    press(page, "Enter")
    page.get_by_role("button", name="Earlier").focus()
    press(page, "Enter", "Enter", "Enter")
    field = page.get_by_label("The tokens of the answer")
    assert field.input_value().startswith("(S (VP (NP PRP )NP VBD")
    assert "3 of 4 brackets of the answer are right, and 3 of" in (
        window.said()
    )
    assert page.get_by_role("row", name="VP 0–3 She saw boys").is_visible()
    page.get_by_role("button", name="Take out").focus()
    press(page, "Enter")
    assert window.said().startswith("This is no tree over the words, and")
    assert page.get_by_text(
        "As a tree: (S (NP PRP )NP VBD (NP"
    ).is_visible()
    field.fill("(S PRP , NNS")
    assert "evalb leaves the sentence out" in window.said()
    page.wait_for_function(
        "location.hash === '#tree:tokens=%28S+PRP+%2C+NNS'"
    )
    assert window.faults == []


def test_the_cache_moves_its_rows(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "cache", "page", "light"))
    assert window.said().startswith("Step 1: 1 new position is computed")
    page.get_by_role("button", name="Next step").focus()
    press(page, "Enter")
    assert "row 1 from row 0: 1 position of each copied." in window.said()
    press(page, "Enter")
    assert window.said() == (
        "Step 3: row 0 from row 1: 2 positions of each copied. 2 new "
        "positions are computed (framed); without a cache it would be 6."
    )
    assert page.get_by_role("button", name="Next step").is_disabled()
    told = "kept 144 kB, copied 72 kB"
    assert page.get_by_role("img", name=told).is_visible()
    page.get_by_role("slider", name="beam").focus()
    press(page, "ArrowLeft")
    assert window.said().startswith("Step 1: 1 new")
    assert window.faults == []


def test_loops_are_matched(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "loops", "page", "light"))
    assert window.said() == "0 of 6 are right, 6 are open."
    wrong = page.get_by_label("The fault of panel E")
    wrong.focus()
    page.keyboard.type("rate")
    assert page.get_by_text("Not so: close, since both learn").is_visible()
    assert window.said() == "0 of 6 are right, 5 are open."
    for panel, fault in {
        "A": "rate too high",
        "B": "mean of the sentences' means",
        "C": "no shift",
        "D": "validation with dropout",
        "E": "shuffled targets",
        "F": "no causal mask",
    }.items():
        page.get_by_label(f"The fault of panel {panel}").select_option(
            label=fault
        )
    assert window.said().startswith("All six.")
    assert page.get_by_text("Right: ").count() == 6
    assert window.faults == []


def test_pieces_are_merged_one_by_one(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "pieces", "page", "light"))
    assert window.said() == (
        "7 characters are 5 tokens with a vocabulary of 263. The newest "
        "token is “␣the”, of “␣” and “the”; this text has it once."
    )
    page.get_by_role("button", name="One less").focus()
    press(page, "Enter")
    assert "6 tokens with a vocabulary of 262." in window.said()
    page.get_by_role("slider", name="vocabulary").focus()
    press(page, "Home")
    assert "8 tokens" in window.said()
    assert "a token is a byte" in window.said()
    page.get_by_label("Your text").fill("ä")
    assert window.said().startswith("1 character is 3 tokens")
    page.wait_for_function(
        "location.hash === '#pieces:vocab=260&text=%C3%A4'"
    )
    page.get_by_role("button", name="One merge more").focus()
    press(page, "Enter")
    assert "is “th”, of “t” and “h”; this text has it nowhere." in (
        window.said()
    )
    assert window.faults == []
