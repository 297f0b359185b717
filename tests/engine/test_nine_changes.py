"""Page E32: the nine worked changes, as they stand on the page."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from annotated.batches import Corpus, Sentences
from annotated.engine import parts
from annotated.engine.errors import RunError, UsageError
from annotated.engine.hooks import attention_blocks, used_weights
from annotated.engine.packing import PackedTransformer, unpacked
from annotated.engine.parts import _RelativeBias, register
from annotated.engine.recipes import RECIPES
from annotated.engine.trainer import Trainer
from annotated.model import Transformer
from annotated.since import RMSNorm
from annotated.tokens import PAD
from annotated.training import copy_corpus
from press.chapters import read_book
from tests.engine.folders import TINY
from tests.engine.parts import SRC, TGT, config_of, shaken
from tests.helpers import ROOT

PAGE = next(c for c in read_book(ROOT) if c.path.name.startswith("E32-"))
NINE = {
    "RMSNorm": "packed",
    "Rotary positions": "packed",
    "A relative bias": "packed",
    "A copy mechanism": "padded",
    "Task tags": "packed",
    "A loss of your own": "packed",
    "Muon": "packed",
    "A data loader of your own": "packed",
    "All maps, with gradients": "padded",
}


def cells(heading: str) -> list[str]:
    return [
        c.source
        for c in PAGE.cells
        if c.kind == "code" and c.heading == heading
    ]


def defined(source: str) -> str:
    """A cell without the expression with which it ends."""
    body = ast.parse(source).body
    return "\n".join(source.splitlines()[: body[-1].lineno - 1])


def code_lines(source: str) -> int:
    """The lines of code: no empty ones, no comments."""
    empty = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE)
    empty += (tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in empty:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


@pytest.fixture(scope="module")
def page() -> Any:
    """What the cells define, and by heading what their last line says."""
    registered = dict(parts._REGISTERED)
    names: dict[str, Any] = {}
    exec("import torch\nimport torch.nn.functional as F", names)
    exec("from torch import nn\nfrom annotated.tokens import *", names)
    exec("from annotated.model import Transformer", names)
    said = {}
    for heading in ("Nine changes", *NINE):
        source = cells(heading)[0]
        if heading == "Nine changes":
            exec(source, names)
            continue
        exec(defined(source), names)
        said[heading] = eval(ast.unparse(ast.parse(source).body[-1]), names)
    yield names, said
    parts._REGISTERED.clear()
    parts._REGISTERED.update(registered)


@pytest.mark.parametrize("change", NINE)
def test_a_change_trains(change: str, page: Any) -> None:
    said = page[1][change]
    how, first, last = re.fullmatch(
        r"(\w+): loss (\S+), then (\S+)", said
    ).groups()
    assert how == NINE[change]
    assert float(last) < 0.9 * float(first)


def test_the_table_counts_the_lines() -> None:
    text = PAGE.path.read_text("utf-8")
    rows = re.findall(
        r"^\| \[(.*?)\]\(#.*?\) \| (.*?) \| (.*?) \|", text, re.M
    )
    assert [name for name, *_ in rows] == [*NINE]
    ours = {name: code_lines(defined(cells(name)[0])) for name in NINE}
    assert {name: int(here) for name, here, _ in rows} == ours
    diffs = {
        "RMSNorm": "rmsnorm", "Rotary positions": "rotary",
        "A relative bias": "relative-bias", "A loss of your own": "loss",
        "Muon": "muon", "A data loader of your own": "data-loader",
        "All maps, with gradients": "maps",
    }  # fmt: skip
    there = {name: int(count) for name, _, count in rows}
    for name, file in diffs.items():
        diff = ROOT / "benchmarks" / "changes" / f"{file}.diff"
        added = re.findall(
            r"^\+(?!\+\+ )[ \t]*[^\s#]", diff.read_text(), re.M
        )
        assert there[name] == len(added), name
    shorter = sum(there[name] < ours[name] for name in NINE)
    equal = sum(there[name] == ours[name] for name in NINE)
    assert (shorter, equal) == (5, 2)
    assert "Theirs is shorter in five of nine, and as long in two" in text


# --- each is what it says


def model_with(*names: str, **changes: Any) -> Any:
    config = config_of("none", parts=names, **changes)
    return shaken(config.kind(config)).double().eval()


def test_the_norm_is_chapter_26s(page: Any) -> None:
    mine = page[0]["MyRMSNorm"](config_of("none"))
    x = torch.randn(3, 16)
    torch.testing.assert_close(mine(x), RMSNorm(16)(x))


def test_rotary_scores_depend_on_the_distance_alone(page: Any) -> None:
    block = page[0]["MyRotary"](config_of("none"), 0)
    q, k = torch.randn(2, 1, 1, 1, 4)
    turned = [
        (block.turn(q, 3 + i) * block.turn(k, 1 + i)).sum() for i in (0, 9)
    ]
    torch.testing.assert_close(*turned, rtol=1e-4, atol=1e-4)
    assert abs(turned[0] - (q * k).sum()) > 1e-3


def test_the_bias_is_the_one_of_this_page(page: Any) -> None:
    mine = page[0]["MyBias"](config_of("none"), 0)
    ours = _RelativeBias(4)
    with torch.no_grad():
        mine.table.copy_(ours.table)
    distance = torch.arange(20)[:, None] - torch.arange(20)
    assert torch.equal(mine.bias(distance), ours(distance))
    assert not hasattr(page[0]["MyBias"](config_of("none"), None), "table")


def test_a_copier_says_probabilities_and_can_copy(page: Any) -> None:
    model = model_with("my-copier")
    logits = model(SRC, TGT)[TGT != PAD]
    torch.testing.assert_close(
        logits.exp().sum(-1), torch.ones(len(logits), dtype=logits.dtype)
    )
    with torch.no_grad():
        model.gate.bias.fill_(40.0)  # copy, whatever the model says
    chance = model(SRC, TGT)[0, 0].exp()
    in_source = torch.zeros(12, dtype=bool).scatter(0, SRC[0], True)
    assert chance[in_source].sum().item() == pytest.approx(1.0)


def test_a_tag_stands_before_each_source(page: Any) -> None:
    one = Corpus(Sentences.of([[4, 5]]), Sentences.of([[4, 5]]))
    two = Corpus(Sentences.of([[6]]), Sentences.of([[7]]))
    both = page[0]["tagged"](t18=one, t19=two)
    assert [s.tolist() for s in both.src] == [[18, 4, 5], [19, 6]]
    assert [t.tolist() for t in both.tgt] == [[4, 5], [7]]


def test_the_focal_loss_by_hand(page: Any) -> None:
    logits = torch.tensor([[0.25, 0.75]]).log()
    (loss,) = page[0]["my_focal"](logits, torch.tensor([0]), None)
    assert float(loss) == pytest.approx(0.75**2 * 1.386294)


def test_muon_brings_singular_values_near_to_one(page: Any) -> None:
    p = torch.nn.Parameter(torch.zeros(8, 6))
    p.grad = torch.randn(8, 6)
    page[0]["MyMuon"]([p], {"lr": 1.0}).step()
    values = torch.linalg.svdvals(p.detach()) / (8 / 6) ** 0.5
    assert 0.3 < float(values.min()) <= float(values.max()) < 1.3


def test_each_pair_is_in_one_batch_and_each_epoch_differs(
    page: Any,
) -> None:
    corpus, config = copy_corpus(70), RECIPES["copy"].training
    plans = [page[0]["my_random"](corpus, config, i) for i in (0, 0, 1)]
    for plan in plans:
        assert len(plan) == 3
        assert sorted(np.concatenate(plan)) == [*range(70)]
    one, again, other = (np.concatenate(plan).tolist() for plan in plans)
    assert one == again != other


# --- maps that take part


@pytest.mark.parametrize("part", ["none", "alibi"])
def test_the_maps_are_those_that_were_used(part: str) -> None:
    model = shaken(Transformer(config_of(part, attention_dropout=0.5)))
    block = model.encoder.layers[0].attention
    x = torch.randn(2, 5, 16)
    with used_weights(torch.nn.ModuleDict({"a": block})) as maps:
        found = block(x)
    (weights,) = maps.values()
    assert (weights == 0).any()  # dropped
    heads = (weights @ block.split(block.w_v(x))).transpose(1, 2).flatten(2)
    torch.testing.assert_close(block.w_o(heads), found)


def test_without_dropout_they_are_what_attention_maps_has() -> None:
    model = model_with()
    with used_weights(model) as maps:
        model(SRC, TGT)
    expected = model.attention_maps(SRC, TGT)
    assert maps.keys() == expected.keys() == attention_blocks(model).keys()
    for name, weights in maps.items():
        torch.testing.assert_close(weights, expected[name])
    maps["cross.1"].square().sum().backward()
    assert model.encoder.layers[0].attention.w_q.weight.grad.any()
    assert not model.decoder.layers[1].feed_forward.inner.weight.grad


def test_a_packed_model_has_none_and_its_plain_form_has() -> None:
    fast = PackedTransformer(config_of("rotary"))
    with (
        used_weights(fast),
        pytest.raises(UsageError, match="encoder.0 is packed"),
    ):
        fast(SRC, TGT)
    plain = unpacked(fast)
    assert type(plain) is Transformer
    assert unpacked(plain) is plain
    assert all(
        a is b for a, b in zip(fast.parameters(), plain.parameters())
    )
    with used_weights(plain) as maps:
        plain(SRC, TGT)
    assert len(maps) == 6


def test_a_loss_sends_its_gradient_through_the_maps() -> None:
    def seen(
        logits: Tensor, labels: Tensor, config: Any, maps: Any
    ) -> Tensor:
        assert maps["cross.0"].shape[:2] == (20, 2)
        rows = maps["cross.0"].sum(dim=(1, 3)) / 2
        assert rows.sum().item() == pytest.approx(len(labels))
        assert rows.numel() > len(labels)  # those of padding are zeros
        return maps["cross.0"].square().sum() * torch.ones(len(labels))

    register("loss", "seen")(seen)
    recipe = TINY.changed(loss="seen", batch_tokens=10_000, max_steps=1)
    corpus = copy_corpus(20, vocab=12, length=4)
    model = PackedTransformer(recipe.config(12, 12))
    trainer = Trainer(model, corpus, recipe.training)
    assert trainer.padded == "loss seen takes the maps"
    before = {n: p.clone() for n, p in trainer.parameters().items()}
    assert len([*trainer.steps()]) == 1
    moved = {
        n for n, p in trainer.parameters().items()
        if not torch.equal(p, before[n])
    }  # fmt: skip
    assert any("encoder.layers.0.attention.w_q" in name for name in moved)
    assert not any(
        "decoder.layers.0.feed_forward" in name for name in moved
    )


# --- batches that are none


def test_numbers_of_pairs_may_be_of_any_integer_type() -> None:
    """In eight bits, the number after 255 is 0."""
    tokens = []
    for kind in (np.uint8, np.int64):
        plan = [np.arange(250, 256, dtype=kind)]
        register("batching", "bytes")(lambda *_, plan=plan: plan)
        recipe = TINY.changed(batching="bytes", max_steps=1, cooldown=0)
        model = PackedTransformer(recipe.config(12, 12))
        trainer = Trainer(
            model, copy_corpus(300, vocab=12), recipe.training
        )
        assert len([*trainer.steps()]) == 1
        tokens.append(trainer.tokens)
    assert tokens[0] == tokens[1] > 0


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ([], "epoch 0 has no batch"),
        (
            [[0, 1], []],
            "batch 1 of epoch 0 is not a row of numbers of pairs",
        ),
        ([[0, 200]], "batch 0 of epoch 0 is not .* from 0 to 199"),
        ([[0.5]], "not a row of numbers"),
        ([[-1]], "not a row of numbers"),
        ([3], "not a row of numbers"),
    ],
)
def test_a_batching_that_names_no_pairs_is_refused(
    plan: Any, message: str
) -> None:
    register("batching", "odd")(lambda *_: plan)
    recipe = TINY.changed(batching="odd")
    model = PackedTransformer(recipe.config(12, 12))
    trainer = Trainer(model, copy_corpus(200, vocab=12), recipe.training)
    with pytest.raises(RunError, match=f"batching odd: .*{message}"):
        [*trainer.steps()]
