"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import json
from pathlib import Path

from annotated.checkpoints import average_weights, choose_checkpoints
from annotated.engine.checkpoints import checkpoints
from annotated.engine.errors import RunError, UsageError
from annotated.engine.files import check_new, new_folder
from annotated.engine.runs import Run, run_folder, validations
from annotated.engine.tensors import write_tensors

__all__ = ["Average"]


# E12-command-line.md: Average
@dataclasses.dataclass(frozen=True, kw_only=True)
class Average:
    """Average checkpoints of a run into a new run folder."""

    run: Path  # the run folder
    out: Path  # the folder to create
    last: int | None = None  # average the last N (unset: all)
    best: int | None = None  # instead, the N with the lowest nll

    def act(self) -> None:
        """Choose, average, write; print the steps as JSON."""
        if self.last is not None and self.best is not None:
            raise UsageError("average: give --last or --best, not both")
        check_new(self.out)
        folder = run_folder(self.run)
        run = Run.as_begun(folder)
        run = dataclasses.replace(run, first="")  # whose file stays there
        places = checkpoints(folder / "checkpoints")
        if not places:
            raise RunError(f"{self.run} has no checkpoints to average")
        if self.best is not None:
            nll = validations(folder)
            chosen = choose_checkpoints(places, self.best, nll)
        else:
            count = len(places) if self.last is None else self.last
            chosen = choose_checkpoints(places, count)
        mean = average_weights([p / "model.safetensors" for p in chosen])
        with new_folder(self.out) as fresh:
            write_tensors(mean, fresh / "model.safetensors")
            run.write(fresh)
        print(json.dumps({"averaged": [int(p.name) for p in chosen]}))
