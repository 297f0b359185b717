"""The course that `make classroom` writes, once for all tests of it."""

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
