"""What is known of a run before it begins: a dry run (chapter 22)."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
import torch

from annotated import cli, costs
from annotated.book.results import ledger
from annotated.costs import dry_run, kept_bytes, state_bytes, step_flops
from annotated.engine import data
from annotated.engine.recipes import RECIPES, Recipe
from annotated.engine.trainer import RunConfig
from annotated.model import TransformerConfig, count_parameters
from tests.engine.groups import in_processes

OURS = ("annotated", "float32"), ("annotated, bfloat16", "bfloat16")


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a dry run asked for data")

    for name in ("load_pairs", "synthetic_pairs"):
        monkeypatch.setattr(data, name, refuse)
    monkeypatch.setattr(costs, "matmul_speed", lambda *_: 1e12)
    monkeypatch.setattr(costs, "step_seconds", lambda *_: (2.0, [56, 224]))


def said_of(recipe: Recipe) -> str:
    config = recipe.config()
    return dry_run(config, recipe.training, "cpu")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_dry_run_without_data(
    name: str, no_data: None
) -> None:
    recipe = RECIPES[name]
    count = count_parameters(recipe.config())
    said = said_of(recipe)
    assert f" {count:,} parameters\n" in said
    assert f" in {recipe.training.max_steps:,} steps\n" in said


def test_a_dry_run_of_the_papers_models_gives_the_papers_hours(
    no_data: None,
) -> None:
    base = said_of(RECIPES["wmt14-en-de-base"])
    big = said_of(RECIPES["wmt14-en-de-big"])
    assert "hours, 8 × P100 12," in base
    assert "3.3e+18" in base
    assert "hours, 8 × P100 84," in big
    assert "2.3e+19" in big
    # 9.5e17 operations at 1 TFLOP/s are 264 hours, 100,000 steps of 2 s 56
    assert "a step here     2.0 s, measured: the fastest of some" in base
    assert "with 56 and 224 tokens, made up, in " in base
    assert "time here       56 h at this pace; 56 h at full speed\n" in base


def test_a_pace_stands_beside_the_time_at_full_speed(
    no_data: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 steps of 13.5 seconds, of 9.5 at 1 TFLOP/s."""
    asked = []

    def timed(*given: Any) -> tuple[float, list[int]]:
        asked.append(given[-1])
        return 13.5, [25_000]

    monkeypatch.setattr(costs, "step_seconds", timed)
    recipe = RECIPES["wmt14-en-de-base"].changed(max_steps=1000)
    said = said_of(recipe)
    assert "time here       3.8 h at this pace; 2.6 h at full speed" in said
    # as many tokens as take 0.15 seconds at full speed
    each = step_flops(recipe.config(), 1)
    assert asked == [pytest.approx(0.15 * 1e12 / each)]
    config = recipe.config()
    need = state_bytes(config) + 100 * kept_bytes(config)
    monkeypatch.setattr(costs, "memory_bytes", lambda _: 1.5 * need)
    assert "at this pace" in said_of(recipe.changed(precision="float32"))
    assert asked[1] == pytest.approx(100)  # as many as fit
    monkeypatch.setattr(costs, "memory_bytes", lambda _: 1e9)
    said = said_of(recipe)
    assert len(asked) == 2  # the model alone does not fit
    assert "measured:" not in said and "at full speed" in said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.00123, "1.2 ms"),
        (0.24, "240 ms"),
        (0.996, "1.0 s"),
        (59.9, "1.0 min"),
        (3599, "1.0 h"),
        (3.6e7, "10,000 h"),
    ],
)
def test_a_time_has_two_digits_and_a_unit(
    seconds: float, said: str
) -> None:
    assert costs._span(seconds) == said


@pytest.mark.parametrize(
    ("minutes", "some"), [(0.5, "15"), (9.0, "200"), (None, "")]
)
def test_a_dry_run_says_how_far_the_minutes_go(
    no_data: None, minutes: float | None, some: str
) -> None:
    """200 steps of 2 seconds take seven minutes."""
    recipe = RECIPES["wmt14-en-de-base"].changed(
        max_steps=200, max_minutes=minutes, cooldown=0, warmup=10
    )
    said = said_of(recipe)
    assert " in 200 steps\n" in said
    row = (
        f"max_minutes     {minutes:g}, enough for {some} of 200 steps\n"
        if (minutes)
        else "max_minutes"
    )
    assert (row in said) == bool(minutes)


def test_without_a_pace_full_speed_bounds_the_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(costs, "matmul_speed", lambda *_: 1e12)
    monkeypatch.setattr(costs, "memory_bytes", lambda _: 80 * 2.0**30)
    monkeypatch.setattr(costs, "_at_hand", lambda _: False)
    recipe = RECIPES["wmt14-en-de-base"].changed(
        max_steps=200, max_minutes=1.0, cooldown=0, precision="float16"
    )
    config, training = recipe.config(), recipe.training
    seconds = step_flops(config, training.batch_tokens) / 1e12
    assert (
        f"max_minutes     1, enough for {round(60 / seconds)} of 200 steps "
        "at full speed\n"
    ) in dry_run(config, training, "cuda")


def test_a_dry_run_says_this_of_the_big_model_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """214 million weights of 18 bytes; 9.67e18 operations at 2e14 a second
    are 13.4 hours; 5,000 tokens keep 570,496 bytes each.
    """
    speeds, room = {("cuda", "bfloat16"): 2e14}, {"cuda": 80 * 2.0**30}
    monkeypatch.setattr(costs, "matmul_speed", lambda *key: speeds[key])
    monkeypatch.setattr(costs, "memory_bytes", room.__getitem__)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    recipe = RECIPES["wmt14-en-de-big"].changed(
        precision="bfloat16", batch_tokens=12_500, max_steps=600_000,
        micro_tokens=5000,
    )  # fmt: skip
    said = dry_run(recipe.config(), recipe.training, "cuda")
    assert said.splitlines() == [
        "model           214,245,376 parameters",
        "step            12,500 source and target tokens",
        "memory          3.6 GiB for weights, gradients and moments,"
        " 2.7 GiB for 5,000 tokens at once, of 80.0 GiB",
        "operations      1.61e+13 per step, 9.67e+18 in 600,000 steps",
        "here            200 TFLOP/s in matrix products on 1 × cuda",
        "time here       90 h, an estimate: at 15% of that speed, as"
        " measured at width 512; 13 h at full speed",
        "hours, 8 × P100 84, if used as efficiently as for the paper's"
        " big model",
        "cost by Table 2 2.3e+19 operations",
    ]


def test_the_shares_of_a_dry_run_are_those_of_the_ledger() -> None:
    """On the GPU batches are counted as full, as the dry run counts them."""
    runs = ledger()
    shares: dict[tuple[str, str], dict[int, float]] = {}
    for name, width in ("train-speed", 256), ("train-speed-base", 512):
        seen = runs[name]["metrics"]["as they come"]["contenders"]
        for mine, precision in OURS:
            known = shares.setdefault(("cpu", precision), {})
            known[width] = round(seen[mine]["peak_share"], 2)
    found = runs["first-peers"]["metrics"]
    config = TransformerConfig.base(src_vocab=37_000, tgt_vocab=37_000)
    seconds = found["contenders"]["annotated"]["step_ms"] / 1000
    share = step_flops(config) / seconds / found["peak_tflops"] / 1e12
    shares["cuda", "bfloat16"] = {512: round(share, 2)}
    assert shares == costs._SHARES


def test_hours_that_nothing_measured_resembles_are_given_as_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(costs, "matmul_speed", lambda *_: 1e14)
    monkeypatch.setattr(costs, "memory_bytes", lambda _: 2.0**34)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    recipe = RECIPES["wmt14-en-de-base"].changed(precision="float16")
    said = dry_run(recipe.config(), recipe.training, "cuda")
    assert "time here       2.6 h at full speed\n" in said


def test_hours_are_as_measured_at_the_nearest_width() -> None:
    for d_model, width in ((320, 256), (448, 512)):
        config = TransformerConfig.base(
            src_vocab=9, tgt_vocab=9, d_model=d_model
        )
        for how in ("float32", "bfloat16"):
            training = RunConfig(max_steps=1, precision=how)
            rows = costs._times(config, training, "cpu", 1e12, None)
            assert f"at width {width};" in rows["time here"]


def test_several_processes_share_the_hours_and_the_batch(
    no_data: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "world_size", lambda: 4)
    said = said_of(RECIPES["wmt14-en-de-base"])
    assert "6,250 tokens at once" in said
    assert "56 h at full speed" in said  # 66, if the pace were not known


def foreseen() -> str:
    """What this process prints, and how often it measured."""
    measured = []

    def measure(*_: Any) -> float:
        measured.append(1)
        return 1e12

    def step(_: Any, training: Any, *__: Any) -> tuple[float, list[int]]:
        measured.append(1)
        return 2.0, [training.batch_tokens // costs.world_size()]

    costs.matmul_speed, costs.step_seconds = measure, step
    with contextlib.redirect_stdout(io.StringIO()) as out:
        cli.dispatch(["train", "copy", "--dry-run", "--device", "cpu"])
    return f"{len(measured)}: {out.getvalue()}"


def test_one_process_of_several_measures_and_speaks() -> None:
    first, second = in_processes(2, foreseen)
    assert first.startswith("2: model ")
    assert "on 2 × cpu" in first
    assert "with 250 tokens" in first
    assert second == "0: "


@pytest.mark.parametrize(
    ("size", "told"),
    [
        (3.6 * 2**30, "3.6 GiB"),
        (0.1 * 2**30, "0.1 GiB"),
        (0.05 * 2**30, "51.2 MiB"),
    ],
)
def test_a_small_model_has_a_size_too(size: float, told: str) -> None:
    assert costs._gib(size) == told
