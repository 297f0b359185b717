"""Page E5: what an optimizer keeps is saved by name, or refused."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from annotated import checkpoints as plain
from annotated import training
from annotated.engine import trainer as engine
from annotated.engine.checkpoints import (
    restore,
    write_checkpoint,
)
from annotated.engine.errors import RunError, TrainingError
from annotated.model import Transformer, TransformerConfig
from tests.engine.groups import (
    SHARDED_ONLY,
    together,
)
from tests.engine.optimizers import (
    CONFIG,
    CORPUS,
    OPTIMIZERS,
    STOP,
    Make,
    decayed,
    differences,
    everything,
    new_trainer,
    run,
    with_optimizer,
)
from tests.helpers import SHAPE

# --- refused before the first step ----------------------------------------


def named(trainer: Any) -> dict[str, nn.Parameter]:
    return dict(trainer.model.named_parameters())


ALL = [
    name
    for name, kind in sorted(vars(torch.optim).items())
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and kind is not torch.optim.Optimizer
]
REFUSED = {  # by torch itself, in a training like ours
    "LBFGS": "closure",
    "SparseAdam": "dense gradients",
    "Muon": "2D",  # that is, with vectors among its parameters
}


def begun(name: str, **more: Any) -> Any:
    def make(named: dict[str, nn.Parameter]) -> Any:
        return getattr(torch.optim, name)(named.values())

    return new_trainer(with_optimizer(make), **more)


@pytest.mark.parametrize("name", ALL)
def test_each_of_pytorchs_optimizers_is_resumed_or_refused(
    name: str, tmp_path: Path
) -> None:
    """There is no third: what is refused is so before the first step."""
    try:
        whole = begun(name)
        before = everything(whole)
        run(whole, 1)
    except (TrainingError, ValueError) as error:
        assert REFUSED[name] in str(error)
        if isinstance(error, TrainingError):
            assert name in str(error) and whole.step == 0
            assert differences(before, everything(whole)) == ""
        return
    run(whole)
    trainer = begun(name)
    run(trainer, STOP)
    place = trainer.save(tmp_path)
    trainer = begun(name)
    restore(trainer, place)
    run(trainer)
    assert differences(everything(whole), everything(trainer)) == ""
    state = [of.optimizer.state for of in (whole, trainer)]
    for one, other in zip(named(whole).values(), named(trainer).values()):
        kinds = [
            {k: (type(v), getattr(v, "dtype", None)) for k, v in s.items()}
            for s in (state[0].get(one, {}), state[1].get(other, {}))
        ]
        assert kinds[0] == kinds[1]


class Odd(torch.optim.Optimizer):
    """An optimizer that keeps one of each kind of thing."""

    def __init__(self, params: Any, kept: Any = None):
        super().__init__(params, {"lr": 0.1})
        self.kept = kept

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state |= {
                        "count": 0,
                        "buffer": None,
                        "norms": [],
                        "pair": [torch.zeros_like(weight), 1.5],
                        "kind": "odd",
                        "bytes": torch.zeros(3, dtype=torch.uint8),
                        "exact": torch.ones((), dtype=torch.float64),
                        "nested": {"a": [None, True]},
                    }
                    if self.kept is not None:
                        state["kept"] = self.kept
                state["count"] += 1
                state["norms"].append(float(weight.grad.norm()))
                state["pair"][0].add_(weight.grad, alpha=0.5)
                state["bytes"] += 1
                state["exact"] /= 3
                weight.sub_(
                    state["pair"][0] * group["lr"] * state["exact"].float()
                    * state["count"] * state["pair"][1]
                )  # fmt: skip


def test_whatever_is_kept_comes_back_as_it_was(tmp_path: Path) -> None:
    """Numbers, None, words, lists, and tensors of any type."""
    kind = with_optimizer(lambda named: Odd(named.values()))
    trainer = new_trainer(kind)
    run(trainer, STOP)
    later = new_trainer(kind, seed=5)
    restore(later, trainer.save(tmp_path))
    pairs = zip(named(trainer).values(), named(later).values())
    for one, other in pairs:
        state = trainer.optimizer.state[one], later.optimizer.state[other]
        assert state[0].keys() == state[1].keys()
        words = [of.pop("kind") for of in state]
        assert words == ["odd", "odd"]
        torch.testing.assert_close(state[1], state[0], rtol=0, atol=0)
        assert state[1]["bytes"].dtype == torch.uint8
        assert state[1]["exact"].dtype == torch.float64
    whole = new_trainer(kind)
    run(whole)
    run(later)
    assert differences(everything(whole), everything(later)) == ""


class OwnWay(torch.optim.SGD):
    def state_dict(self) -> Any:
        return super().state_dict()


class Counting(torch.optim.SGD):
    steps = 0

    def __init__(self, params: Any):
        super().__init__(params)
        self.steps = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        self.steps += 1


class Scheduled(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for group in self.param_groups:
            group["momentum"] += 0.01


STRANGERS = [nn.Parameter(torch.ones(2, 2))]
CANNOT: dict[str, tuple[Make, str]] = {
    "a state_dict of its own": (
        lambda named: OwnWay(named.values()), "OwnWay has a state_dict"
    ),
    "a number outside of the state": (
        lambda named: Counting(named.values()), "Counting changes .steps"
    ),
    "settings that a step changes": (
        lambda named: Scheduled(named.values()), "Scheduled changes momentum"
    ),
    "a set in the state": (
        lambda named: Odd(named.values(), {1}), "Odd cannot be saved: .* set"
    ),
    "parameters of another model": (
        lambda named: torch.optim.Adam(STRANGERS), "Adam .* no parameter"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CANNOT)
def test_what_cannot_be_kept_is_refused_before_the_first_step(
    what: str,
) -> None:
    make, message = CANNOT[what]
    trainer = new_trainer(with_optimizer(make))
    before = {n: w.clone() for n, w in trainer.weights().items()}
    with pytest.raises(TrainingError, match=message):
        next(trainer.steps())
    assert trainer.step == 0
    assert differences(before, trainer.weights()) == ""


def test_settings_that_a_trainer_schedules_are_not_compared(
    tmp_path: Path,
) -> None:
    """A momentum that rises, for example: it goes on from where it was."""

    def trainer(seed: int = 0) -> Any:
        kind = with_optimizer(
            lambda named: Scheduled(named.values(), momentum=0.5)
        )
        kind.scheduled = "lr", "momentum"
        return new_trainer(kind, seed)

    whole, first, second = trainer(), trainer(), trainer(5)
    run(whole)
    run(first, STOP)
    restore(second, first.save(tmp_path))
    run(second)
    assert second.optimizer.param_groups[0]["momentum"] == pytest.approx(
        0.56
    )
    assert differences(everything(whole), everything(second)) == ""


def refusals() -> dict[str, str]:
    """What is said of optimizers that torch cannot shard."""
    found = {}
    for name in ("Rprop", "Adafactor"):
        trainer = begun(name, shard=True)
        try:
            next(trainer.steps())
        except TrainingError as error:
            found[name] = f"{trainer.step}: {error}"
    return found


@SHARDED_ONLY
def test_what_torch_cannot_shard_is_refused_before_the_first_step() -> None:
    for found in together(2, refusals):
        assert {name: text[:3] for name, text in found.items()} == {
            "Rprop": "0: ", "Adafactor": "0: "
        }  # fmt: skip
        for name, text in found.items():
            assert f"{name} cannot train this model" in text


# --- refused where it is not the same training ----------------------------


DECAYED = OPTIMIZERS["AdamW in two groups"]
OTHERS: dict[str, tuple[Make, str]] = {
    "another class": (
        OPTIMIZERS["SGD with momentum"], "class is AdamW, here SGD"
    ),
    "one group": (
        lambda named: torch.optim.AdamW(named.values()),
        "number of groups is 2, here 1",
    ),
    "another decay": (
        lambda named: torch.optim.AdamW(decayed(named, weight_decay=0.2)),
        "weight_decay of group 1 is 0.1, here 0.2",
    ),
    "other betas": (
        lambda named: torch.optim.AdamW(decayed(named, betas=(0.9, 0.9))),
        r"betas of group 1 is \[0.9, 0.999\], here \[0.9, 0.9\]",
    ),
    "amsgrad": (
        lambda named: torch.optim.AdamW(decayed(named), amsgrad=True),
        "amsgrad of group 1 is False, here True",
    ),
    "another parameter": (
        lambda named: torch.optim.AdamW(moved(decayed(named))),
        r"params of group 1 is \[\], here \['decoder",
    ),
}  # fmt: skip


def moved(groups: list[Any]) -> list[Any]:
    """One vector counts among the matrices."""
    groups[0]["params"].append(groups[1]["params"].pop())
    return groups


@pytest.mark.parametrize("kind", [training.Trainer, engine.Trainer])
@pytest.mark.parametrize("what", OTHERS)
def test_another_optimizer_is_refused_and_says_what_differs(
    what: str, kind: Any, tmp_path: Path
) -> None:
    trainer = new_trainer(with_optimizer(DECAYED, kind))
    run(trainer, STOP)
    place = plain.save_checkpoint(trainer, tmp_path)
    make, message = OTHERS[what]
    other = new_trainer(with_optimizer(make, kind), seed=5)
    before = everything(other)
    with pytest.raises(TrainingError, match=message):
        plain.load_checkpoint(other, place)
    assert other.step == 0
    assert differences(before, everything(other)) == ""


def test_the_order_of_parameters_does_not_matter(tmp_path: Path) -> None:
    """Numbered, as PyTorch has them, each would get another's moments."""

    def trainer(turn: int, seed: int = 0) -> Any:
        def make(named: dict[str, nn.Parameter]) -> Any:
            return torch.optim.Adam([*named.values()][::turn])

        return new_trainer(with_optimizer(make), seed)

    whole, first, second = trainer(1), trainer(1), trainer(-1, 5)
    run(whole)
    run(first, STOP)
    restore(second, first.save(tmp_path))
    run(second)
    assert differences(everything(whole), everything(second)) == ""


def test_a_state_that_is_lost_is_missed_before_anything_is_written(
    tmp_path: Path,
) -> None:
    trainer = new_trainer(engine.Trainer)
    run(trainer, STOP)
    del trainer.optimizer.state[named(trainer)["embeddings.target"]]
    with pytest.raises(TrainingError, match=r"Adam .* embeddings\.target"):
        trainer.save(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_checkpoint_without_a_parameters_state_is_refused(
    tmp_path: Path,
) -> None:
    """As --shard once wrote them: what is expected is the optimizer's."""
    trainer = new_trainer(engine.Trainer)
    run(trainer, STOP)
    name, moments, state = (
        "embeddings.target",
        trainer.moments(),
        trainer.state(),
    )
    less = {n: m for n, m in moments.items() if not n.startswith(name)}
    del state["optimizer"]["kept"][name]
    write_checkpoint(trainer.weights(), less, state, tmp_path / "00000003")
    later = new_trainer(engine.Trainer, seed=5)
    before = everything(later)
    with pytest.raises(RunError, match=f"{name}.* is absent in the file"):
        restore(later, tmp_path / "00000003")
    assert differences(before, everything(later)) == ""


def test_what_begins_to_learn_has_no_state_and_is_refused(
    tmp_path: Path,
) -> None:
    def trainer(*parts: Any) -> Any:
        torch.manual_seed(0)
        model = Transformer(TransformerConfig(**SHAPE))
        return engine.Trainer(model, CORPUS, replace(CONFIG, freeze=parts))

    first = trainer("encoder")
    run(first, STOP)
    place = first.save(tmp_path)
    restore(trainer("encoder"), place)
    with pytest.raises(RunError, match=r"encoder.* absent in the file"):
        restore(trainer(), place)


# --- every place that keeps a state ---------------------------------------


STATE = {
    "save_file", "load_file", "write_tensors", "read_tensors",
    "load_weights", "state_dict", "load_state_dict", "named_state",
    "load_named_state", "write_checkpoint", "torch.save", "torch.load",
    "trainer.load", "trainer.save", "get_rng_state", "set_rng_state",
}  # fmt: skip
# the first eleven have to do with trainings, the others with weights alone
KEEPERS = {
    "checkpoints.save_checkpoint": "the state of a training, plainly",
    "checkpoints.load_checkpoint": "the state of a training, plainly",
    "engine/checkpoints.restore": "the state of a training",
    "engine/checkpoints.write_checkpoint": "the state of a training",
    "engine/optimizers.rehearse": "looks at a state that is undone",
    "engine/parts._tried": "the same weights in two layers, side by side",
    "engine/runner._save": "the state of a training",
    "engine/trainer.Trainer.save": "the state of a training",
    "training.Trainer.check": "compares what was kept",
    "training.Trainer.load": "the only way back into an optimizer",
    "training.Trainer.moments": "the only way out of an optimizer",
    "training.Trainer.state": "the only way out of an optimizer",
    "checkpoints.average_weights": "weights of checkpoints",
    "checkpoints.save_weights": "weights of a model",
    "school/checks.attempt": "the random numbers of a notebook",
    "commands/average.Average.act": "a mean of weights",
    "school/milestones._equals_torch": "layers side by side",
    "exchange/export.export_run": "weights for other programs",
    "exchange/export._write_onnx": "weights for other programs",
    "exchange/marian.import_marian": "published weights",
    "exchange/marian._marian_weights": "weights for other programs",
    "exchange/marian._read_tensors": "published weights",
    "exchange/marian.write_transformers": "weights for other programs",
    "engine/optimizers.ChainedOptimizer.load_state_dict": "PyTorch's own",
    "engine/runner._write_model": "the model of a run",
    "engine/runs.Run.as_begun": "the first weights of a run",
    "engine/runs.Run.begin": "the first weights of a run",
    "engine/runs.Run.open": "the model of a run",
    "engine/start.resume_run": "the first weights of a run",
    "engine/tensors.load_weights": "reads tensors for all of these",
    "engine/tensors.read_tensors": "reads tensors for all of these",
    "engine/tensors.write_tensors": "writes tensors for all of these",
}


def keepers(package: Path) -> dict[str, set[str]]:
    """The functions of a package that call what saves or loads a state."""
    found: dict[str, set[str]] = {}

    def look(node: ast.AST, where: str) -> None:
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.Call):
                call = ast.unparse(inner.func)
                names = {call, call.rpartition(".")[2]}
                names |= {".".join(call.split(".")[-2:])}
                if names & STATE or call == "save":  # safetensors' bytes
                    found.setdefault(where, set()).add(call)
            name = getattr(inner, "name", None)  # of functions, classes
            look(inner, f"{where}.{name}" if name else where)

    for file in package.rglob("*.py"):
        name = file.relative_to(package).with_suffix("").as_posix()
        look(ast.parse(file.read_text("utf-8")), name)
    return found


def test_every_place_that_keeps_a_state_is_known() -> None:
    """A new one belongs to this list, and if it is the state of a training
    it goes through named_state, which refuses what it cannot keep.
    """
    found = keepers(Path(training.__file__).parent)
    assert found.keys() == KEEPERS.keys()
    assert {
        where
        for where, calls in found.items()
        if calls & {"named_state", "load_named_state"}
    } == {
        "engine/optimizers.rehearse",
        *(
            f"training.Trainer.{n}"
            for n in ("check", "load", "moments", "state")
        ),
    }
    assert {
        w for w, calls in found.items() if "state_dict" in " ".join(calls)
    } == {
        "school/milestones._equals_torch",
        "engine/parts._tried",
        "exchange/export._write_onnx",
        "exchange/marian._marian_weights",
        "engine/optimizers.ChainedOptimizer.load_state_dict",
        "engine/start.resume_run",
    }
