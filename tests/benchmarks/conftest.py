"""The scripts that several files look at."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.helpers import benchmark


@pytest.fixture(scope="module")
def speed() -> Iterator[ModuleType]:
    with benchmark("train_speed") as script:
        yield script
