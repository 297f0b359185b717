"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import json
from pathlib import Path
from typing import Literal

import tyro

from annotated.engine.files import check_new
from annotated.engine.runs import Run, results_of, run_folder
from annotated.exchange.export import export_run
from annotated.exchange.marian import find_published, import_marian
from annotated.model import count_parameters

__all__ = ["Export", "Import"]


# E12-command-line.md: Export, import
@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """Export a run's model for another program."""

    run: Path  # the run folder
    # the format
    to: Literal["safetensors", "onnx", "ctranslate2", "transformers"]
    out: Path  # the folder to write, new or empty

    def act(self) -> None:
        folder = run_folder(self.run)
        run, results = Run.open(folder), results_of(folder)
        export_run(run, self.to, self.out, results)
        names = sorted(path.name for path in self.out.iterdir())
        told = {"to": self.to, "out": f"{self.out}", "files": names}
        print(json.dumps(told))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Import:
    """Make a published model into a run."""

    kind: tyro.conf.Positional[Literal["marian"]]  # the form it is in
    # its folder, or its name on huggingface.co, such as opus-mt-en-de
    name: tyro.conf.Positional[str]
    out: Path  # the run folder to create
    # where a model translates into several: the target, such as deu
    language: str | None = None
    source: str | None = None  # what to call the source language
    target: str | None = None  # what to call the target language
    # of a name: a commit, or a branch; else that of page E25, or the newest
    revision: str | None = None

    def act(self) -> None:
        """Fetch, check, convert, write; print what it is as JSON."""
        check_new(self.out)
        folder, origin = find_published(self.name, self.revision)
        names = self.source, self.target
        run = import_marian(folder, self.out, self.language, names, origin)
        recipe = run.recipe
        print(
            json.dumps(
                {
                    "from": origin,
                    "source": recipe.source,
                    "target": recipe.target,
                    "parameters": count_parameters(run.model.config),
                    "vocabularies": [len(run.source), len(run.target)],
                }
            )
        )
