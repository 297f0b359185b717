"""Figures that move: what they compute is what the package computes."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from annotated.book.figures import figure
from annotated.book.results import rounded
from annotated.model import (
    Transformer,
    TransformerConfig,
)
from annotated.pocket import pocket_pairs
from annotated.tokens import (
    BOS,
    EOS,
    Tokenizer,
)
from press.chapters import read_book
from tests.figures import (
    of_paths,
    of_the_model,
    of_training,
    of_translating,
)
from tests.figures.of_the_model import translations
from tests.helpers import ROOT

MODULES = sorted(
    path.name.split(".")[0]
    for path in (ROOT / "tests/figures").glob("*.test.mjs")
)


GOLDENS = {
    name: value
    for group in (of_paths, of_the_model, of_training, of_translating)
    for name, value in vars(group).items()
    if name in MODULES
}


def run_node(name: str, goldens: dict[str, Any], folder: Path) -> None:
    """The tests of a module in Node, over what the package computes."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    path = folder / "goldens.json"
    path.write_text(json.dumps(goldens))
    done = subprocess.run(
        [node, "--test", f"tests/figures/{name}.test.mjs"],
        cwd=ROOT,
        env=dict(os.environ, GOLDENS=str(path)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.parametrize("name", MODULES)
def test_figures_compute_what_the_package_computes(
    name: str, tmp_path: Path
) -> None:
    make = GOLDENS.get(name)
    run_node(name, {name: make()} if make else {}, tmp_path)


@pytest.mark.exhaustive
def test_two_hundred_sentences_become_what_they_become_in_python(
    tmp_path: Path,
) -> None:
    made = of_translating.say(every=1)
    assert {len(one["sentences"]) for one in made.values()} == {200}
    run_node("say", {"say": made}, tmp_path)


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
    with pytest.raises(
        ValueError, match="no figure 'nothing'; there are: batches, "
    ):
        figure("nothing", still)
    plt.close(still)


def test_numbers_are_rounded_wherever_they_stand() -> None:
    value = {"a": [torch.tensor([0.123456]), (1, 2e-9 / 3)], 7: "x"}
    assert rounded(value, 4) == {"a": [[0.1235], [1, 6.667e-10]], "7": "x"}


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
                large = html.partition('class="moves-large"')[2]
                large = large.partition(">")[2].partition("</")[0]
                return json.loads(data), base64.b64decode(large)
    pytest.skip("page 19 was executed before it had its figure")


@pytest.mark.slow
def test_the_model_of_page_19_translates_as_in_python(
    tmp_path: Path,
) -> None:
    """200 sentences, beams of 20 of them, logits to 2e-3."""
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
    run_node("engine", {"engine": [case]}, tmp_path)


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
