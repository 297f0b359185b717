"""The files of book/results: where each comes from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from annotated.book.results import hardware
from tests.helpers import ROOT

FILES = sorted((ROOT / "book" / "results").glob("*.json"))


def content(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_run_says_where_it_comes_from(file: Path) -> None:
    run = content(file)
    for commit in run["commit"].split(", "):  # a + would say: and changes
        assert re.fullmatch(r"[0-9a-f]{40}", commit)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", run["date"])
    for name in ("command", "hardware", "recipe"):
        assert run[name], name
    assert run["versions"] or file.stem == "mutation"


# what draws nothing at random, or says its seeds by another name
NO_SEED = {
    "exports",
    "serve",
    "multi30k-baselines",
    "news-commentary-words",
}
NO_SEED |= {"pieces", "mutation", "data-parallel", "first-minute"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_run_says_its_seeds(file: Path) -> None:
    run = content(file)
    told = json.dumps([run["settings"], run["metrics"], run["command"]])
    seeds = run["seed"] is not None or '"seed' in told
    assert seeds or run["recipe"] == "published" or file.stem in NO_SEED


def test_hardware_names_the_device_that_was_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Apple's GPU tells torch no name, and a second GPU is not the first."""
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(name=device, total_memory=2**34),
    )
    assert hardware("mps", 2) == f"Apple's GPU; {hardware(threads=2)}"
    assert hardware("cuda:1").startswith("1 cuda:1, 16 GiB; ")
