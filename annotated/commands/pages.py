"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path

import tyro

from annotated.book.paper import copy_path, excerpt, keep, put_beside
from annotated.corpora.reading import read_lines
from annotated.engine.errors import RunError, UsageError
from annotated.engine.files import write_text

__all__ = ["Report", "Look", "Paper"]


# E12-command-line.md: Pages for the browser
@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Write a run as one page for the browser: curves, translations,
    cost and settings.
    """

    run: Path  # the run folder
    out: Path  # the file to write, new
    # a file of sentences to translate (unset: some of the test set's)
    text: Path | None = None

    def act(self) -> None:
        """Read, draw, write."""
        if self.out.exists():
            raise UsageError(f"{self.out} exists: choose another --out")
        if not self.out.absolute().parent.is_dir():
            raise UsageError(f"there is no folder {self.out.parent}")
        lines = None if self.text is None else read_lines(self.text)
        try:
            from annotated.book.report import report
        except ModuleNotFoundError as error:
            raise RunError(
                f"report draws, and {error.name} is not installed: "
                "python -m pip install matplotlib seaborn"
            ) from None
        write_text(self.out, report(self.run, lines))
        print(self.out.absolute().as_uri())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """Show a run in the browser: sentences of your own, piece by piece,
    with what else it might have written and where its heads look. The
    page comes from this machine and is seen on it alone.
    """

    run: Path  # the run folder
    port: int = 0  # where the page is served (0: any that is free)
    browser: bool = True  # open it there

    def act(self) -> None:
        """Serve until Ctrl-C."""
        try:
            from annotated.book.look import look
        except ModuleNotFoundError as error:
            raise RunError(
                f"look draws, and {error.name} is not installed: "
                "python -m pip install matplotlib seaborn"
            ) from None
        with look(self.run, self.port) as (server, address):
            print(f"{address}\n(Ctrl-C ends it)", flush=True)
            if self.browser:
                webbrowser.open(address)
            with suppress(KeyboardInterrupt):
                server.serve_forever()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paper:
    """Keep your own copy of the paper, and show what it says. It is
    fetched unless it is kept already, or given as a file.
    """

    # what to print: a section (3.2.1), 3.2.1 p4, table 3, fig 2, eq 1, fn 4
    part: tyro.conf.Positional[tuple[str, ...]] = ()
    # the paper as HTML that your browser has saved (unset: fetched)
    file: Path | None = None
    # the folder of the book's pages, whose cards will show its words
    site: Path | None = None

    def act(self) -> None:
        """Keep, put beside the pages, print."""
        place = copy_path()
        if self.file or not place.exists():
            print(f"kept as {keep(self.file)}", file=sys.stderr)
        if self.site:
            print(f"written: {put_beside(self.site)}", file=sys.stderr)
        if self.part:
            print(excerpt(" ".join(self.part)))
        elif not (self.file or self.site):
            print(place)
