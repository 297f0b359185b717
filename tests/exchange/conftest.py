"""Published models that the tests of this folder share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def models() -> tuple[bytes, bytes]:
    """The sentencepiece models of German and English."""
    from tests.exchange.published import ENGLISH, GERMAN, spm

    return spm(GERMAN, 110), spm(ENGLISH, 90)


@pytest.fixture(scope="session")
def published(
    tmp_path_factory: pytest.TempPathFactory, models: tuple[bytes, bytes]
) -> Callable[[str], tuple[Path, Any]]:
    """By its kind, a folder as it is published, and its model, each made
    once. Do not touch.
    """
    from tests.exchange.published import KINDS, publish

    there: dict[str, tuple[Path, Any]] = {}

    def make(kind: str) -> tuple[Path, Any]:
        if kind not in there:
            folder = tmp_path_factory.mktemp("hub") / "opus-mt-de-en"
            there[kind] = folder, publish(folder, models, **KINDS[kind])
        return there[kind]

    return make


@pytest.fixture
def folder(
    tmp_path: Path, published: Callable[[str], tuple[Path, Any]]
) -> Path:
    """A copy of the usual one, to do things to."""
    original, _ = published("as most")
    return Path(shutil.copytree(original, tmp_path / original.name))
