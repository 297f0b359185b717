"""What the tests of the school share: a folder of their own, and the course
that `make classroom` writes, once for all.
"""

import json

import pytest

from press.classroom import classroom
from tests.helpers import ROOT


@pytest.fixture(scope="session")
def course(tmp_path_factory):
    """What `make classroom` writes."""
    pytest.importorskip("pybtex", reason="the press is not installed")
    folder = tmp_path_factory.mktemp("course") / "classroom"
    classroom(ROOT, folder)
    return folder


@pytest.fixture
def given(course):
    return json.loads((course / "source/03/03.ipynb").read_text("utf-8"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Whatever is kept is kept there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANNOTATED_MINE", raising=False)
    return tmp_path
