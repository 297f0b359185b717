"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import json
import sys
from pathlib import Path

import tyro

from annotated.commands.translate import SearchOptions, arriving
from annotated.corpora.treebanks import TreeOptions, prepare_trees
from annotated.engine.errors import UsageError
from annotated.engine.parsing import parse_lines

__all__ = ["Treebank", "Parse"]


# E12-command-line.md: Trees
@dataclasses.dataclass(frozen=True, kw_only=True)
class Treebank:
    """Split a treebank by article, into sentences and their trees."""

    # a folder of .mrg files, one per article, or one file and its index
    bank: tyro.conf.Positional[Path]
    out: Path  # the folder to create
    options: tyro.conf.OmitArgPrefixes[TreeOptions] = TreeOptions()

    def act(self) -> None:
        print(json.dumps(prepare_trees(self.bank, self.out, self.options)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parse(SearchOptions):
    """Parse sentences of space-separated words, and write their trees."""

    def act(self) -> None:
        """Write one tree per line of standard input."""
        run = self.open()
        if run.recipe.target != "tree":
            raise UsageError(
                f"{self.run} was trained to write {run.recipe.target}, "
                "not trees"
            )
        search, workers = self.search(run), self.processes(run)
        for lines in arriving():
            for tree in parse_lines(run, lines, search, workers):
                sys.stdout.buffer.write(f"{tree or ''}\n".encode())
            sys.stdout.buffer.flush()
