"""How much memory a process and all that it starts have taken.

    from memory import Watch, held

It reads /proc: on Linux only.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType


def tree(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for one in found:
        for path in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except OSError:
                continue
    return found


def held(pid: int) -> int:
    """Bytes that a process tree holds; shared pages count once."""
    total = 0
    for one in tree(pid):
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
        except OSError:
            continue
        for line in text.splitlines():
            if line.startswith("Pss:"):
                total += 1024 * int(line.split()[1])
    return total


class Watch(threading.Thread):
    """The largest memory of a process tree while the `with` lasts, looked
    at ten times a second.
    """

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self.pid, self.peak = pid, 0
        self.over = threading.Event()

    def run(self) -> None:
        """Look, until it is over."""
        while not self.over.wait(0.1):
            self.peak = max(self.peak, held(self.pid))

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.over.set()
        self.join()
