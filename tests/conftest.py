"""For all tests: Ctrl-C works, also where they run in the background, and
no file leaves its number of threads to the next.
"""

import signal
from collections.abc import Iterator

import pytest
import torch

# a shell without job control switches it off for what it starts with &
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def threads_are_put_back() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
