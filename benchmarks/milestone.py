"""Milestone 5 on the book's own solutions: python benchmarks/milestone.py

It trains for some minutes and needs Multi30k. Writes
book/results/milestone-captions.json.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from annotated.book.results import entry
from annotated.engine.files import write_json
from annotated.school.course import Workspace
from annotated.school.milestones import assembled, captions_translated

OUT = Path(__file__).resolve().parents[1] / "book/results"


def main() -> None:
    torch.set_num_threads(1)
    before, wall = time.process_time(), time.perf_counter()
    with assembled(Workspace(Path("nobody"))) as course:
        said = captions_translated(course)
    seconds = round(time.process_time() - before, 1)
    run = entry(
        "milestone",
        "python benchmarks/milestone.py",
        {"said": said, "seconds": seconds},
        seed=0,
        wall_seconds=time.perf_counter() - wall,
        threads=1,
    )
    write_json(OUT / "milestone-captions.json", run)
    print(said)


if __name__ == "__main__":
    main()
