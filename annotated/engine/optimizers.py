"""Exported from the book; edit the chapter, then run `make export`."""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from annotated.engine.distributed import own_part
from annotated.engine.errors import TrainingError

__all__ = [
    "named_state", "load_named_state", "check_groups", "rehearse",
    "ChainedOptimizer",
]  # fmt: skip


# E5-trainer.md: An optimizer of your own
_Parameters = Mapping[str, nn.Parameter]
_MACHINE = "fused", "foreach", "capturable"  # how to compute, not what


def named_state(
    parameters: _Parameters, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors that an optimizer keeps, as NAME.KEY; and the rest, for
    JSON: its class, its groups with their settings and names, and what it
    keeps of each parameter. TrainingError, naming the class, where that
    is not everything, or more than a checkpoint can hold.
    """
    kind, state, groups = _kind(optimizer), optimizer.state, []
    names: dict[Tensor, str] = {w: n for n, w in parameters.items()}
    for one in _parts(optimizer):
        if type(one).state_dict is not torch.optim.Optimizer.state_dict:
            raise TrainingError(f"{kind} has a state_dict of its own kind")
    for group in optimizer.param_groups:
        learn = [w for w in group["params"] if w.grad is not None]
        without = [w for w in learn if not state.get(w)]
        if 0 < len(without) < len(learn):  # all: SGD may keep nothing
            raise TrainingError(
                f"{kind} has lost its state of {names.get(without[0])}"
            )
    try:
        kept = {names[weight]: values for weight, values in state.items()}
        for group in optimizer.param_groups:
            own = {k: v for k, v in group.items() if k not in _MACHINE}
            own["params"] = [names[weight] for weight in group["params"]]
            groups.append({k: _plain(v) for k, v in own.items()})
    except KeyError:
        raise TrainingError(
            f"{kind} has a state that is of no parameter of the trainer's "
            "model: make it from trainer.model.parameters()"
        ) from None
    try:
        rest, tensors = _take_tensors(kept)
        settings, _ = _take_tensors(groups, "group")
    except TypeError as error:
        what = f"{kind} cannot be saved: in its state, {error}"
        raise TrainingError(what) from None
    return tensors, {"kind": kind, "groups": settings, "kept": rest}


def _take_tensors(
    value: Any, path: str = ""
) -> tuple[Any, dict[str, Tensor]]:
    """A nested value as JSON can hold it, and its tensors, named by their
    paths in it. TypeError, with the path, where neither can hold a part.
    """
    if isinstance(value, Tensor):
        return {"tensor": path}, {path: value}
    if isinstance(value, (list, tuple)):
        parts = {str(i): each for i, each in enumerate(value)}
        rest, tensors = _take_tensors(parts, path)
        return [*rest.values()], tensors
    if value is None or isinstance(value, (bool, int, float, str)):
        return value, {}
    if not isinstance(value, dict) or not all(
        isinstance(key, str) for key in value
    ):
        raise TypeError(f"{path} is a {type(value).__name__}")
    rest, tensors = {}, {}
    for key, each in value.items():
        inner = f"{path}.{key}" if path else key
        rest[key], some = _take_tensors(each, inner)
        tensors |= some
    return rest, tensors


def _put_tensors(rest: Any, tensor: Callable[[str], Tensor]) -> Any:
    """What _take_tensors took apart, with tensor(path) for each tensor; a
    tuple is a list now.
    """
    if isinstance(rest, list):
        return [_put_tensors(each, tensor) for each in rest]
    if not isinstance(rest, dict):
        return rest
    if rest.keys() == {"tensor"} and isinstance(rest["tensor"], str):
        return tensor(rest["tensor"])
    return {key: _put_tensors(each, tensor) for key, each in rest.items()}


def _parts(
    optimizer: torch.optim.Optimizer,
) -> tuple[torch.optim.Optimizer, ...]:
    if isinstance(optimizer, ChainedOptimizer):
        return optimizer.each
    return (optimizer,)


def _kind(optimizer: torch.optim.Optimizer) -> str:
    return " + ".join(type(one).__name__ for one in _parts(optimizer))


def _plain(setting: Any) -> Any:
    if isinstance(setting, (list, tuple)):
        return [_plain(x) for x in setting]
    return setting.tolist() if isinstance(setting, Tensor) else setting


def load_named_state(
    parameters: _Parameters,
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    rest: Mapping[str, Any],
    scheduled: Collection[str] = ("lr",),
) -> None:
    """Give an optimizer what named_state took from another of the same
    class and groups, with the settings in scheduled. TrainingError, with
    nothing changed, where a tensor is missing.
    """
    state: dict[Tensor, dict[str, Any]] = {}
    for group, saved in zip(optimizer.param_groups, rest["groups"]):
        on_device = group.get("fused") or group.get("capturable")
        for name in saved["params"]:
            for key, value in rest["kept"].get(name, {}).items():
                stays = key == "step" and not on_device  # as in PyTorch
                put = partial(_placed, tensors, parameters[name], stays)
                values = state.setdefault(parameters[name], {})
                values[key] = _put_tensors(value, put)
    optimizer.state.clear()
    optimizer.state.update(state)
    for group, saved in zip(optimizer.param_groups, rest["groups"]):
        group.update({k: saved[k] for k in scheduled if k in saved})


def _placed(
    tensors: Mapping[str, Tensor], weight: Tensor, stays: bool, path: str
) -> Tensor:
    """A copy of a tensor, where the weight lies and sharded as it is."""
    if path not in tensors:
        raise TrainingError(f"the checkpoint has no {path}")
    tensor = tensors[path]
    if tensor.shape == weight.shape:
        tensor = own_part(tensor, weight)
    return tensor.to(tensor.device if stays else weight.device, copy=True)


def check_groups(
    saved: Mapping[str, Any],
    here: Mapping[str, Any],
    scheduled: Collection[str] = ("lr",),
) -> None:
    """TrainingError, naming the first difference, unless both, which
    named_state gave, have the same class, groups and settings. Those in
    scheduled may differ: they are set anew for each step.
    """
    groups = saved.get("groups", []), here["groups"]
    facts: list[tuple[str, Any, Any]] = [
        ("class", saved.get("kind"), here["kind"]),
        ("number of groups", len(groups[0]), len(groups[1])),
    ]
    for i, (one, other) in enumerate(zip(*groups), 1):
        for key in sorted(one.keys() & other.keys() - {*scheduled}):
            both = one[key], other[key]
            if key == "params":  # what only one of them has
                sets = set(one[key]), set(other[key])
                both = sorted(sets[0] - sets[1]), sorted(sets[1] - sets[0])
            facts.append((f"{key} of group {i}", *both))
    for name, one, other in facts:
        if one != other:
            raise TrainingError(
                f"the checkpoint's optimizer is not this run's: its {name} "
                f"is {str(one)[:200]}, here {str(other)[:200]}"
            )


@torch.no_grad()
def rehearse(
    parameters: _Parameters,
    optimizer: torch.optim.Optimizer,
    scheduled: Collection[str] = ("lr",),
) -> dict[str, Tensor]:
    """The tensors that an optimizer keeps after a step, as NAME.KEY and
    without their numbers; only .grad is changed. TrainingError, with the
    class, where it cannot take a step, or what it keeps cannot be saved.
    """
    kind, before = _kind(optimizer), _numbers(optimizer)
    with _undone(optimizer) as learn:
        for weight in learn:
            weight.grad = torch.zeros_like(weight)
        try:
            optimizer.step()
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            what = f"{kind} cannot train this model: {reason}"
            raise TrainingError(what) from error
        tensors, _ = named_state(parameters, optimizer)
        after = _numbers(optimizer)
        for weight, values in optimizer.state.items():
            for tensor in _take_tensors(values)[1].values():
                alike = tensor.shape == weight.shape
                if _sharded(weight) and _sharded(tensor) != alike:
                    raise TrainingError(
                        f"{kind} cannot be saved with sharded weights: it "
                        f"keeps {tuple(tensor.shape)} for a weight of "
                        f"{tuple(weight.shape)}"
                    )
    names = (before.keys() | after.keys()) - {*scheduled}
    moved = [k for k in names if before.get(k) != after.get(k)]
    if moved:
        raise TrainingError(
            f"{kind} changes {', '.join(sorted(moved))} as it goes: "
            "settings of its groups that do are to be named in the "
            "trainer's scheduled, and other numbers cannot be saved"
        )
    return {
        n: torch.empty(t.shape, device="meta") for n, t in tensors.items()
    }


def _sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def _numbers(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Settings of the groups and numbers of the optimizer, by name."""
    numbers: dict[str, Any] = {}
    for group in optimizer.param_groups:
        for key, value in group.items():
            if key != "params":
                numbers[key] = [*numbers.get(key, []), _plain(value)]
    for one in _parts(optimizer):
        for key, value in vars(one).items():
            if isinstance(value, (int, float)) and key[0] != "_":
                numbers[f".{key}"] = value
    return numbers


@contextmanager
def _undone(optimizer: torch.optim.Optimizer) -> Iterator[list[Tensor]]:
    """The parameters that learn; afterwards they, the state and the
    settings are what they were.
    """
    groups = optimizer.param_groups
    learn = [w for g in groups for w in g["params"] if w.requires_grad]
    weights = [weight.clone() for weight in learn]
    state = {w: copy.deepcopy(own) for w, own in optimizer.state.items()}
    settings = [dict(group) for group in groups]
    try:
        yield learn
    finally:
        for weight, was in zip(learn, weights):
            weight.copy_(was)
            weight.grad = None
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, own in zip(groups, settings):
            group.clear()
            group.update(own)


class ChainedOptimizer(torch.optim.Optimizer):
    """Several optimizers, each with parameters of its own, used as one."""

    def __init__(self, *each: torch.optim.Optimizer):
        groups = [group for one in each for group in one.param_groups]
        super().__init__(groups, {})
        self.each = each
        for one in each:
            self.state.update(one.state)
        self._share()

    def _share(self) -> None:
        """Let each have the state and its own of the groups."""
        groups = iter(self.param_groups)
        for one in self.each:
            one.state = self.state
            one.param_groups = [next(groups) for _ in one.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise TypeError("ChainedOptimizer takes no closure")
        for one in self.each:
            one.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()
