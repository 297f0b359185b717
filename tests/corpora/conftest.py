"""What the tests of prepared corpora share."""

from __future__ import annotations

from pathlib import Path

import pytest

from annotated.corpora import prepare as preparation
from tests.corpora.corpus import put, sentences


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Two files of three hundred lines that translate each other."""
    src, tgt = sentences(300)
    return put(tmp_path / "x.de", src), put(tmp_path / "x.en", tgt)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few lines are more than one chunk."""
    monkeypatch.setattr(preparation, "_CHUNK", 64)
