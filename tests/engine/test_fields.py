"""The check of a configuration's fields: engine.errors, page E3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from annotated.engine.errors import UsageError, check_fields


@dataclass(frozen=True)
class Config:
    """One field of each kind."""

    layers: int = 1
    seed: int = 0
    window: int | None = None
    rate: float = 0.5
    clip: float | None = None
    norm: Literal["post", "pre"] = "post"
    kind: Literal["a", 2] | None = None
    bias: bool = True
    name: str = ""
    places: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, zero=("seed",), positive=("clip",), below=1.0)


INTEGER = "an integer >= 1"
RIGHT: dict[str, list[Any]] = {
    "layers": [1, 2**70],
    "seed": [0, 1],
    "window": [None, 1],
    "rate": [0, 0.0, 0.999],
    "clip": [None, 1e-300, 1, 7.5],
    "norm": ["pre"],
    "kind": [None, "a", 2],
    "bias": [False],
    "name": ["", 5],  # of other kinds anything goes
    "places": [(), (0,), None],
}
WRONG: dict[str, tuple[str, list[Any]]] = {
    "layers": (INTEGER, [0, -1, 1.0, True, None, "1"]),
    "seed": ("an integer >= 0", [-1, 0.0, False, None]),
    "window": (INTEGER, [0, 1.5, True]),
    "rate": (
        "a number in [0, 1)",
        [1, 1.0, -0.1, float("nan"), float("inf"), True, None, "0"],
    ),
    "clip": ("a positive number", [0, 0.0, -1, float("nan"), float("inf")]),
    "norm": ("one of post, pre", ["Post", None, 1]),
    "kind": ("one of a, 2", ["2", 2.0, "b"]),
    "bias": ("one of True, False", [1, 0, None, "True"]),
}


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, some in RIGHT.items() for v in some]
)
def test_what_fits_its_annotation_is_taken(name: str, value: Any) -> None:
    assert getattr(Config(**{name: value}), name) is value


@pytest.mark.parametrize(
    ("name", "value"),
    [(n, v) for n, (_, some) in WRONG.items() for v in some],
)
def test_what_does_not_is_named_with_what_is_wanted(
    name: str, value: Any
) -> None:
    with pytest.raises(UsageError) as error:
        Config(**{name: value})
    wanted = WRONG[name][0]
    assert str(error.value) == f"{name} must be {wanted}, not {value!r}"
