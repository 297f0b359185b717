"""The training in the browser (page E30) is the book's: all gradients under
every switch, the first losses, and the bytes of its kernel.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated.book import example
from annotated.model import Transformer
from press.wasm import FIGURES, assemble, module
from tests.helpers import ROOT

Change = Callable[[Transformer], None]
Batch = tuple[Tensor, Tensor, Tensor]

SMALL = {"width": 32, "inner": 128, "words": 32}
TWO = {"num_encoder_layers": 2, "num_decoder_layers": 2}
# what changes in JavaScript, in the configuration, and in the model
SETTINGS: dict[
    str, tuple[dict[str, Any], dict[str, Any], Change | None]
] = {
    "unchanged": ({}, {}, None),
    "1 head": ({"heads": 1}, {"num_heads": 1}, None),
    "2 heads": ({"heads": 2}, {"num_heads": 2}, None),
    "2 layers": ({"layers": 2}, TWO, None),
    "norm before": ({"norm": "pre"}, {"norm": "pre"}, None),
    "no norm": (
        {"norm": "none"},
        {},
        partial(example.without, part="norms"),
    ),
    "no positions": (
        {"positions": 0},
        {},
        partial(example.without, part="positions"),
    ),
    "no mask": ({"mask": 0}, {}, partial(example.without, part="mask")),
    "no residuals": (
        {"residual": 0},
        {},
        partial(example.without, part="residuals"),
    ),
    "no residuals, 2 layers": (
        {"residual": 0, "layers": 2},
        TWO,
        partial(example.without, part="residuals"),
    ),
    "no factor": (
        {"factor": 0},
        {},
        partial(example.without, part="factor"),
    ),
    "no networks": (
        {"network": 0},
        {},
        partial(example.without, part="networks"),
    ),
    "norm before, 2 layers, no networks": (
        {"norm": "pre", "layers": 2, "network": 0},
        {"norm": "pre", **TWO},
        partial(example.without, part="networks"),
    ),
    "small": (SMALL, {"d_model": 32, "d_ff": 128}, None),
}


def build(name: str) -> Transformer:
    _, config, change = SETTINGS[name]
    model = example.reversal_model(**config)
    if change is not None:
        change(model)
    return model


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by their names in the unchanged model."""
    return {
        name.replace("attention.attention.", "attention.").replace(
            "layer.", ""
        ): one
        for name, one in model.named_parameters()
    }


def in_double(model: Transformer) -> Transformer:
    """Positions too, which are not parameters."""
    model.double()
    for positions in (model.src_positions, model.tgt_positions):
        if hasattr(positions, "table"):
            positions.table = positions.table.double()
    return model


def ask(folder: Path, kernel: str, name: str, **more: Any) -> Any:
    """What the engine of the figure makes of these weights."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    weights = named(build(name))
    question = {
        "kernel": kernel,
        "set": SETTINGS[name][0],
        "weights": {n: p.flatten().tolist() for n, p in weights.items()},
        **more,
    }
    given, answer = folder / "in.json", folder / "out.json"
    given.write_text(json.dumps(question))
    done = subprocess.run(
        [node, "tests/figures/learner.mjs", given, answer],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(answer.read_text())


def as_json(batch: Batch) -> dict[str, Any]:
    src, tgt, labels = (x.flatten().tolist() for x in batch)
    return {
        "src": src,
        "tgt": tgt,
        "labels": labels,
        "words": len(batch[0]),
    }


def gap(ours: list[float], theirs: Tensor) -> float:
    """The largest difference, as a part of the largest number, or of 1e-4:
    without residuals some gradients vanish, down to float32's rounding.
    """
    wanted = theirs.detach().flatten()
    difference = (torch.tensor(ours).double() - wanted).abs().max()
    return (difference / wanted.abs().max().clamp(min=1e-4)).item()


KERNELS = [("WebAssembly", name) for name in SETTINGS] + [
    ("JavaScript", "unchanged")
]


@pytest.mark.parametrize(("kernel", "name"), KERNELS)
def test_all_gradients_are_pytorchs(
    kernel: str, name: str, tmp_path: Path
) -> None:
    words = SETTINGS[name][0].get("words", 64)
    draw = torch.Generator().manual_seed(1)
    batch = example.reversal_batch(9, words, draw)
    got = ask(tmp_path, kernel, name, batch=as_json(batch))
    model = in_double(build(name))
    logits = model(batch[0], batch[1])
    loss = F.cross_entropy(logits.flatten(0, 1), batch[2].flatten())
    loss.backward()
    assert gap(got["logits"], logits) < 1e-5
    assert abs(got["loss"] / loss.item() - 1) < 1e-6
    parameters = named(model)
    assert set(got["gradients"]) <= set(parameters)
    learned = {n for n, p in parameters.items() if p.grad is not None}
    assert learned <= set(got["gradients"])
    for one, gradient in got["gradients"].items():
        theirs = parameters[one].grad
        if theirs is None or one.endswith("w_k.bias"):
            # not read, or a bias of all keys alike, which moves no weight
            assert max(map(abs, gradient)) < 1e-5, one
        else:
            assert gap(gradient, theirs) < 1e-5, one


@pytest.mark.parametrize("name", ["unchanged", "norm before", "small"])
def test_ten_steps_are_train_reversals(name: str, tmp_path: Path) -> None:
    words = SETTINGS[name][0].get("words", 64)
    batches: list[Batch] = []

    def draw(*given: Any, **more: Any) -> Batch:
        batches.append(example.reversal_batch(*given, words=words, **more))
        return batches[-1]

    class Enough(Exception):
        """Ten of the 400 steps that make the schedule."""

    losses: list[float] = []

    def stop(step: int) -> None:
        if step == 10:
            raise Enough

    model = in_double(build(name))
    keep = model.register_forward_hook(
        lambda part, inputs, logits: losses.append(
            F.cross_entropy(
                logits.flatten(0, 1), batches[-1][2].flatten()
            ).item()
        )
    )
    with pytest.raises(Enough):
        example.train_reversal(model, batch=draw, watch=stop)
    keep.remove()
    asked = [as_json(batch) for batch in batches]
    got = ask(tmp_path, "WebAssembly", name, batches=asked)["losses"]
    assert len(got) == len(losses) == 10
    assert max(abs(a - b) for a, b in zip(got, losses, strict=True)) < 1e-4


def test_the_bytes_are_those_of_the_text_form() -> None:
    text = (FIGURES / "product.wat").read_text("utf-8")
    assert (FIGURES / "product.mjs").read_text("utf-8") == module(text), (
        "run `python -m press.wasm`"
    )
    assert len(assemble(text)) == 905  # as page E30 says


def test_an_instruction_that_is_not_known_is_named() -> None:
    text = (FIGURES / "product.wat").read_text("utf-8")
    with pytest.raises(ValueError, match="no instruction 'i32.mule'"):
        assemble(text.replace("i32.mul", "i32.mule"))


def test_what_the_page_shows_is_in_the_engine() -> None:
    page = (ROOT / "book" / "E30-learn.md").read_text("utf-8")
    source = "\n".join(
        (FIGURES / name).read_text("utf-8")
        for name in ("kernel.mjs", "tape.mjs", "product.wat")
    )
    shown = re.findall(r"^```(?:js|wat)\n(.*?)^```", page, re.M | re.S)
    assert len(shown) == 4
    for listing in shown[1:]:  # the first is how to use it
        assert " ".join(listing.split()) in " ".join(source.split())
