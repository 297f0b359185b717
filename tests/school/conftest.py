"""What the tests of the school share."""

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Whatever is kept is kept there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANNOTATED_MINE", raising=False)
    return tmp_path
