"""The press makes everything that is derived from the chapters in book/."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from press.chapters import PressError

ROOT = Path(__file__).resolve().parent.parent
Options = argparse.Namespace
JOBS = "pages at a time; default: the cores"
ALONE = "set these alone, as build/draft/site/"
RELEASE = "make the sources those of a version, and what is made of them"

# Each command imports what it needs: Jupyter and Sphinx start slowly.


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    options.root = options.root.resolve()
    if not (options.root / "pyproject.toml").is_file():
        print(
            f"--root {options.root}: is no folder of the book: it has no "
            "pyproject.toml",
            file=sys.stderr,
        )
        return 2
    try:
        status = int(options.run(options))
        sys.stdout.flush()  # here, where it is known who reads no more
        return status
    except PressError as error:
        for line in error.problems:
            print(line, file=sys.stderr)
        return 2
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # what a shell says of a program that this has ended
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        print(f"{named}{error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.stderr.flush()
        os._exit(130)  # kernels follow; their threads would be waited for


def _export(options: Options) -> int:
    from press.export import export

    return _report(export(options.root, options.check), options.check)


def _notebooks(options: Options) -> int:
    from press.notebooks import notebooks

    return _report(notebooks(options.root, options.check), options.check)


def _format(options: Options) -> int:
    from press.format import format_book

    return _report(format_book(options.root), False)


def _release(options: Options) -> int:
    from datetime import date

    from press.export import export
    from press.notebooks import notebooks
    from press.release import release

    written = release(options.root, options.version, date.today())
    made = [*export(options.root), *notebooks(options.root)]
    return _report([*written, *made], False)


def _samples(options: Options) -> int:
    from press.checks import samples

    return _report(samples(options.root, options.check), options.check)


def _check(options: Options) -> int:
    from press.checks import check
    from press.rules import check_rules

    drifted = check(options.root)
    if drifted:
        drifted.append("mend it with `make export notebooks`, and commit")
    return _report([*drifted, *check_rules(options.root)], True)


def _rules(options: Options) -> int:
    from press.rules import check_rules

    return _report(check_rules(options.root, options.pages), True)


def _proof(options: Options) -> int:
    from press.site import proof

    proof(options.root)
    return 0


def _minutes(options: Options) -> int:
    from press.rules import minutes

    return _report(minutes(options.root), False)


def _mutants(options: Options) -> int:
    from press.mutants import mutants

    return _report(mutants(options.root, options.exercises, _say), True)


def _classroom(options: Options) -> int:
    from press.classroom import classroom

    out = options.out or options.root / "classroom"
    return _report(classroom(options.root, out, options.seed), False)


def _slides(options: Options) -> int:
    from press.slides import slides

    out = options.out or options.root / "dist" / "slides"
    return _report(slides(options.root, options.chapters, out), False)


def _report(lines: list[str], check: bool) -> int:
    for line in lines:
        print(line, file=sys.stderr if check else sys.stdout)
    return 1 if check and lines else 0


def _execute(options: Options) -> int:
    from press.execute import execute

    problems = execute(
        options.root, options.chapters, options.jobs, options.force, _say
    )
    return _report(problems, True)


def _shake(options: Options) -> int:
    from press.shake import shake

    return _report(shake(options.root, options.chapters, _say), True)


def _worlds(options: Options) -> int:
    from press.worlds import worlds

    chosen = options.world, options.chapters
    return _report(worlds(options.root, *chosen, say=_say), True)


def _site(options: Options) -> int:
    from press.site import draft, site

    if options.only:
        _say(draft(options.root, options.only))
    else:
        _say(site(options.root))
    return 0


def _book(options: Options) -> int:
    """All of it in one process, which starts once."""
    from press.execute import execute
    from press.export import export
    from press.notebooks import notebooks
    from press.site import site

    _report([*export(options.root), *notebooks(options.root)], False)
    problems = execute(options.root, None, options.jobs, say=_say)
    if problems:
        return _report(problems, True)
    _say(site(options.root))
    page = options.root / "site" / "index.html"
    _say(f"\nThe book: open {page.as_uri()}\n      or run `make serve`")
    return 0


def _epub(options: Options) -> int:
    from press.epub import epub

    _say(epub(options.root, _taken(options, "epub")))
    return 0


def _pdf(options: Options) -> int:
    from press.pdf import pdf

    _say(pdf(options.root, _taken(options, "pdf")))
    return 0


def _zip(options: Options) -> int:
    from press.archive import archive

    _say(archive(options.root, _taken(options, "zip")))
    return 0


def _transformer(options: Options) -> int:
    from press.one_file import FILE, write_one_file

    out = options.out or options.root / "dist" / FILE
    _say(write_one_file(options.root, out))
    return 0


def _taken(options: Options, kind: str) -> Path:
    from press.project import NAME

    path: Path = options.out or options.root / "dist" / f"{NAME}.{kind}"
    return path


def _serve(options: Options) -> int:
    from press.serve import serve

    serve(options.root, options.port)
    return 0


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no whole number from 1"
        )
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no port: it is a number up to 65535"
        )
    return int(text)


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m press", description=__doc__
    )
    where = "the repository's folder"
    parser.add_argument("--root", type=Path, default=ROOT, help=where)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[Options], int], what: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=what, description=what)
        command.set_defaults(run=run)
        return command

    for name, run, what in [
        ("export", _export, "write annotated/ from the tagged cells"),
        ("notebooks", _notebooks, "write book/notebooks/*.ipynb"),
        ("samples", _samples, "write data/pocket/*.tsv"),
    ]:
        add(name, run, what).add_argument(
            "--check", action="store_true", help="only compare, exit 1"
        )
    add("format", _format, "format the exported cells of the chapters")
    add("release", _release, RELEASE).add_argument("version")
    add("check", _check, "say what has drifted, and which rules are broken")
    rules = add("rules", _rules, "say which rules the pages break")
    rules.add_argument("pages", nargs="*", metavar="PAGE")
    add("proof", _proof, "say what is wrong with the pages, unexecuted")
    add("minutes", _minutes, "say how long each page takes to read")
    killed = add("mutants", _mutants, "try the checks of the exercises")
    killed.add_argument("exercises", nargs="*", metavar="EXERCISE")
    course = add("classroom", _classroom, "write a course for nbgrader")
    course.add_argument("--out", type=Path, help="default: classroom/")
    course.add_argument("--seed", default="", help="of the hidden checks")
    decks = add("slides", _slides, "set executed chapters as slides")
    decks.add_argument("--out", type=Path, help="default: dist/slides/")
    execute = add("execute", _execute, "run the chapters that are stale")
    execute.add_argument("--force", action="store_true", help="run all")
    shake = add("shake", _shake, "try what pages say on false results")
    worlds = add("worlds", _worlds, "execute in the next other world")
    worlds.add_argument("--world", help="this one, and not the next")
    for command in (decks, execute, shake, worlds):
        command.add_argument("chapters", nargs="*", metavar="CHAPTER")
    pages = add("site", _site, "set the executed chapters as site/")
    pages.add_argument("--only", nargs="+", metavar="CHAPTER", help=ALONE)
    book = add("book", _book, "export, notebooks, execute and site")
    for command in (execute, book):
        command.add_argument("--jobs", type=_jobs, help=JOBS)
    for name, run, what in [
        ("epub", _epub, "set the executed story as an EPUB"),
        ("pdf", _pdf, "print the executed story as a PDF"),
        ("zip", _zip, "put site/ and the notebooks into one file"),
        ("transformer", _transformer, "write the model as one program"),
    ]:
        taken = add(name, run, what)
        taken.add_argument("--out", type=Path, help="default: in dist/")
    serve = add("serve", _serve, "show site/ in the browser")
    serve.add_argument("--port", type=_port, default=8000)
    return parser


if __name__ == "__main__":
    sys.exit(main())
