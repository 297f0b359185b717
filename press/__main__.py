"""python -m press COMMAND: see `python -m press --help`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from press.chapters import PressError

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except PressError as error:
        for line in error.problems:
            print(line, file=sys.stderr)
        return 2


def _export(options: argparse.Namespace) -> int:
    from press.export import export

    return _report(export(options.root, options.check), options.check)


def _notebooks(options: argparse.Namespace) -> int:
    from press.notebooks import notebooks

    return _report(notebooks(options.root, options.check), options.check)


def _execute(options: argparse.Namespace) -> int:
    from press.execute import execute

    def say(line: str) -> None:
        print(line, flush=True)

    problems = execute(
        options.root, options.chapters, options.jobs, options.force, say
    )
    for line in problems:
        print(line, file=sys.stderr)
    return 1 if problems else 0


def _site(options: argparse.Namespace) -> int:
    from press.site import site

    print(site(options.root))
    return 0


def _report(lines: list[str], check: bool) -> int:
    for line in lines:
        print(line, file=sys.stderr if check else sys.stdout)
    return 1 if check and lines else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="press", description=__doc__)
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the repository's folder"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    for name, run, what in [
        ("export", _export, "write annotated/"),
        ("notebooks", _notebooks, "write book/notebooks/"),
    ]:
        command = commands.add_parser(name, help=what)
        command.add_argument(
            "--check", action="store_true", help="only compare, exit 1"
        )
        command.set_defaults(run=run)
    execute = commands.add_parser("execute", help="run the chapters")
    execute.add_argument("chapters", nargs="*", metavar="CHAPTER")
    execute.add_argument("--jobs", type=int, help="default: the cores")
    execute.add_argument("--force", action="store_true", help="run all")
    execute.set_defaults(run=_execute)
    page = commands.add_parser("site", help="set the pages as site/")
    page.set_defaults(run=_site)
    return parser


if __name__ == "__main__":
    sys.exit(main())
