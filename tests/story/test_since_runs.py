"""Chapter 26: what its runs show, and what the page says of them."""

from dataclasses import replace

import pytest
from torch import nn

from annotated.attention import MultiHeadAttention
from annotated.book.results import ledger
from annotated.layers import FeedForward
from annotated.since import DecoderOnly, RMSNorm, SwiGLU, _RotaryGroups
from tests.helpers import benchmark

# --- the runs of the ledger


def test_the_benchmark_makes_every_run_once(tmp_path, capsys):
    with benchmark("since") as script:
        tiny = script.Settings(
            seeds=1, steps=2, pairs=60, depth_steps=1, copy_steps=1
        )
        work = tmp_path / "runs.jsonl"
        script.run(replace(tiny, only="lengths"), work)
        before = work.read_text()
        assert len(script.read(work)) == 8
        script.run(replace(tiny, only="lengths"), work)
        assert work.read_text() == before
        script.run(replace(tiny, only="lengths", first=1), work)
        runs = script.read(work)
        assert [one["seed"] for one in runs] == [0] * 8 + [1] * 8
        made = script.result(replace(tiny, work=work), runs)
    assert made["command"].startswith(
        "python benchmarks/since.py --seeds 1"
    )
    assert "work" not in made["command"]
    assert len(made["metrics"]["lengths"]) == 16
    assert all(
        len(one["right"]) == 18 for one in made["metrics"]["lengths"]
    )


def test_a_model_of_the_benchmark_has_its_parts():
    shape = {"src_vocab": 9, "tgt_vocab": 9, "d_model": 16, "d_ff": 32,
             "num_heads": 4, "num_decoder_layers": 2}  # fmt: skip
    with benchmark("since") as script:
        model = script.make("all, decoder only", 0, **shape)
        one = script.make("1 group", 0, **shape)
    kinds = {type(block) for block in model.modules()}
    assert {DecoderOnly, RMSNorm, SwiGLU, _RotaryGroups} <= kinds
    assert not {nn.LayerNorm, FeedForward, MultiHeadAttention} & kinds
    assert len(model.stack.layers) == 5 and model.config.norm == "pre"
    block = one.encoder.layers[0].attention
    assert block.w_k.out_features == block.d_k == 4


@pytest.fixture(scope="module")
def parts():
    """The ledger's runs on pocket German, by name."""
    found = {}
    for one in ledger()["since-2017"]["metrics"]["parts"]:
        found.setdefault(one["name"], {})[one["seed"]] = one
    return found


def test_every_part_has_been_run_from_a_seed_that_2017_has(parts):
    with benchmark("since") as script:
        assert list(parts) == list(script.PARTS)
    assert len(parts["2017"]) >= 3
    assert all(
        runs.keys() <= parts["2017"].keys() for runs in parts.values()
    )


def mean_of(runs):
    return sum(runs) / len(runs)


def test_the_effects_are_as_the_page_says(parts):
    effect = {
        name: mean_of([one["nll"] - parts["2017"][seed]["nll"]
                       for seed, one in runs.items()])
        for name, runs in parts.items()
    }  # fmt: skip
    for name in ("pre-norm", "GELU", "SwiGLU", "rotary"):
        assert -0.1 < effect[name] < -0.01, name
    assert 0 < effect["RMSNorm"] < 0.05
    assert -0.05 < effect["no biases"] < 0
    ordered = ["no positions", "2 groups", "1 group", "decoder only"]
    assert effect["learned positions"] > 0
    assert sorted(ordered, key=effect.get) == ordered
    assert effect[ordered[0]] > 0
    assert 0 < effect["all of today's"] < effect["all, decoder only"]
    assert effect["all, decoder only"] < effect["decoder only"]


def test_pre_norm_is_deep_without_warm_up_as_the_page_says():
    ends = {}
    for one in ledger()["since-2017"]["metrics"]["depth"]:
        ends.setdefault((one["norm"], one["warmup"]), []).append(
            one["loss"]
        )
    assert len(ends) == 4 and min(map(len, ends.values())) >= 3
    assert max(ends["pre", 100] + ends["pre", 1]) < 1
    assert min(ends["post", 100]) > 2
    assert min(ends["post", 1]) > max(ends["post", 100])


def test_beyond_the_longest_word_is_as_the_page_says():
    right = {}
    for one in ledger()["since-2017"]["metrics"]["lengths"]:
        key = one["kind"], one["stacks"]
        right.setdefault(key, []).append(one["right"])
    assert len(right) == 8

    def at(kind, stacks, length):
        return mean_of([run[length - 1] for run in right[kind, stacks]])

    for kind in ("sinusoidal", "learned"):
        assert at(kind, 2, 9) > 0.97
        assert at(kind, 2, 18) < 0.6 < 0.65 < at("rotary", 2, 18)
    assert 0.85 < at("rotary", 2, 9) < at("sinusoidal", 2, 9)
    assert at("none", 2, 5) < 0.6 and at("none", 2, 18) < 0.2
    others = ("sinusoidal", "learned", "rotary")
    for kind in others:
        assert at("none", 1, 9) < at(kind, 1, 9) <= at("rotary", 1, 9)
        assert at(kind, 1, 18) < at("none", 1, 18)
    assert at("rotary", 1, 18) < 0.2 < 0.8 < at("rotary", 1, 10)
