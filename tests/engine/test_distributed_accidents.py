"""Page E4: a process that dies, fails or does something else (gloo, CPU)."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from annotated.batches import Corpus, Sentences
from annotated.engine import distributed
from annotated.engine.distributed import (
    all_gather,
    all_reduce_sum,
    rank,
    rank_zero_first,
    rank_zero_only,
)
from annotated.engine.errors import (
    PeerError,
    TrainingError,
)
from annotated.engine.trainer import Trainer
from tests.engine.groups import (
    CONFIG,
    CORPUS,
    SHARDED_ONLY,
    new_trainer,
    together,
)

# --- accidents ------------------------------------------------------------


def with_other_data() -> None:
    lines = [list(CORPUS.src[i]) for i in range(len(CORPUS))]
    if rank() == 1:
        lines[7][0] = 4 + (lines[7][0] + 1) % 8
    src = Sentences.of(lines)
    new_trainer(corpus=Corpus(src, CORPUS.tgt))


def test_other_data_in_one_process_is_noticed_before_a_step() -> None:
    one, other = together(2, with_other_data)
    assert one[0] is TrainingError
    assert "process 1 differs from process 0 in its training data" in one[1]
    assert other[0] is PeerError  # one line is enough


def with_other_options() -> None:
    new_trainer(replace(CONFIG, rate=1.0 + rank()))


def with_other_weights() -> None:
    new_trainer(seed=rank())


@pytest.mark.parametrize(
    ("action", "what"),
    [(with_other_options, "settings"), (with_other_weights, "weights")],
)
def test_other_options_and_weights_are_noticed_too(
    action: Callable[[], None], what: str
) -> None:
    one, _ = together(2, action)
    assert f"differs from process 0 in its {what}" in one[1]


def with_a_death() -> None:
    for progress in new_trainer().steps():
        if progress.step == 5 and rank() == 1:
            raise KeyError("its own reason")


def test_a_process_that_is_gone_is_missed_at_once() -> None:
    one, other = together(2, with_a_death)
    assert other[0] is KeyError
    assert one[0] is TrainingError
    assert "another process of this run has died" in one[1]
    assert "--resume" in one[1]


def with_a_silence(folder: str) -> None:
    """Process 1 does not die: it stands still, in the middle of a step,
    until process 0 has complained, or had a minute for it.
    """
    Trainer.step_minutes = 0.02
    complained, patience = Path(folder) / "complained", 6000
    try:
        for progress in new_trainer().steps():
            if progress.step == 5 and rank() == 1:
                while not complained.exists() and (
                    patience := patience - 1
                ):
                    time.sleep(0.01)
    finally:
        complained.touch()


def test_a_step_is_not_waited_for_as_long_as_a_preparation(
    tmp_path: Path,
) -> None:
    # the group itself would wait, and both would go on
    one, other = together(2, with_a_silence, str(tmp_path))
    assert one[0] is TrainingError
    assert "does not respond" in one[1]
    assert other[0] is TrainingError


def with_a_number_that_is_none() -> None:
    trainer = new_trainer()
    for progress in trainer.steps():
        if progress.step == 3 and rank() == 1:
            with torch.no_grad():
                next(trainer.model.parameters()).fill_(torch.nan)


def test_a_number_that_is_none_is_told_by_one_process() -> None:
    one, other = together(2, with_a_number_that_is_none)
    assert one[0] is TrainingError
    assert "step 4 has loss nan" in one[1]
    assert other[0] is PeerError


def failing(who: int) -> Any:
    def act() -> str:
        if rank() == who:
            raise OSError("no space left")
        return f"done by {rank()}"

    if who == 0:
        return rank_zero_only(act)
    return rank_zero_first(act)


@pytest.mark.parametrize("who", [0, 1])
def test_a_failure_of_one_is_everyones(who: int) -> None:
    found = together(3, failing, who)
    assert found[who] == (OSError, "no space left")
    assert all(found[r][0] is PeerError for r in range(3) if r != who)


def talking() -> tuple[Any, ...]:
    return (
        rank_zero_only(rank),
        rank_zero_first(rank),
        all_reduce_sum(torch.tensor([rank() + 1.0])).item(),
        all_gather(rank()),
    )


def test_what_is_said_to_one_and_to_all() -> None:
    rest = 3.0, [0, 1]
    assert together(2, talking) == [(0, 0, *rest), (None, 1, *rest)]


def in_turn(folder: str) -> list[str]:
    """Who has acted before each process does; each can do it once."""

    def act() -> list[str]:
        before = sorted(path.name for path in Path(folder).iterdir())
        Path(folder, str(rank())).touch(exist_ok=False)
        return before

    return rank_zero_first(act)


def test_process_0_is_first_and_then_each_acts_once(tmp_path: Path) -> None:
    first, *others = together(3, in_turn, str(tmp_path))
    assert first == [] and all(seen[0] == "0" for seen in others)
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2"}


def test_alone_nothing_is_said() -> None:
    numbers = torch.tensor([1.0])
    assert all_reduce_sum(numbers) is numbers
    assert talking() == (0, 0, 1.0, [0])


def saved_copies() -> tuple[list[int], list[int]]:
    """How large the tensors are that a process of DDP keeps of a
    checkpoint.
    """
    trainer = new_trainer(replace(CONFIG, max_steps=2))
    list(trainer.steps())
    weights = trainer.weights()
    moments = [
        value.numel()
        for name, value in trainer.moments().items()
        if not name.endswith(".step")
    ]
    return [w.numel() for w in weights.values()], moments


def test_equal_weights_are_copied_by_process_0_alone() -> None:
    """Eight processes of one machine would have eight copies of a model
    and its moments in memory, for one that is written.
    """
    (weights, moments), (none, nothing) = together(2, saved_copies)
    assert min(weights) > 0
    assert sorted(moments) == sorted([*weights, *weights])
    assert set(none) == set(nothing) == {0}


def saved_shards() -> tuple[list[int], list[int], int]:
    """How large the tensors are that a process keeps of a checkpoint, and
    of those that were whole on the way, how many stood at once.
    """
    trainer = new_trainer(replace(CONFIG, max_steps=2), shard=True)
    list(trainer.steps())
    alive, most = 0, 0
    whole = distributed.full_tensor

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal alive, most
        if not hasattr(tensor, "full_tensor"):  # Adam's count of steps
            return whole(tensor)
        full = whole(tensor).clone()
        alive += 1
        most = max(most, alive)

        def gone() -> None:
            nonlocal alive
            alive -= 1

        weakref.finalize(full, gone)
        return full

    distributed.full_tensor = counted
    weights = trainer.weights()
    moments = [
        value.numel()
        for name, value in trainer.moments().items()
        if name.endswith(".exp_avg")
    ]
    return [w.numel() for w in weights.values()], moments, most


@SHARDED_ONLY
def test_whole_tensors_gather_on_process_0_alone() -> None:
    """The moments of all weights at once on each device would be what
    sharding is there to avoid.
    """
    (weights, moments, _), (none, nothing, most) = together(2, saved_shards)
    assert weights == moments
    assert min(weights) > 0
    assert set(none) == set(nothing) == {0}
    assert most == 1
