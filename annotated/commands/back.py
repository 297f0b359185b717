"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from annotated.commands.options import usage_errors
from annotated.commands.translate import SearchOptions
from annotated.corpora.fetch import file_hash
from annotated.corpora.prepare import count_lines
from annotated.corpora.reading import Text, fault, json_of
from annotated.engine.checkpoints import checkpoints
from annotated.engine.errors import RunError, UsageError
from annotated.engine.files import check_new, write_json
from annotated.engine.runs import Run, read_recipe, run_folder
from annotated.engine.search import Sampling
from annotated.search import SearchConfig

__all__ = ["add_back"]


# E8-prepare.md: Text in the target language alone
_CHUNK = 500  # lines that are translated, then written
_UNKNOWN = {"source", "target"}  # languages that have no name


def add_back(
    preparation: Any,
    folder: Path,
    texts: Sequence[Path],
    out: Path,
    *,
    tag: str,
    weights: Sequence[int],
    beam: int | None = None,
    sample: bool = False,
) -> Any:
    """The preparation with texts that the run in folder translates back."""
    source = preparation.source
    _check_direction(folder, source, preparation.target)
    if not (out / "corpus.json").exists():
        check_new(out)
    whole = out if out.name else out.absolute()  # "." has none
    beside = whole.with_name(f"{whole.name}.back")
    pairs = [*zip(_files(texts, beside, source), texts)]
    for parts in preparation.parts.values():
        for part in parts:  # each can be read
            next(part.pairs(strict=False), None)
    with usage_errors():
        added = preparation.with_back(pairs, tag, weights)
    names = "lower", "unescape", "detokenize"
    rules = {name: getattr(preparation.cleaning, name) for name in names}
    with usage_errors():
        search = _search(folder, beam, sample)
    _translate(folder, pairs, preparation.cleaning.line, rules, search)
    return added


def _check_direction(folder: Path, source: str, target: str) -> None:
    """RunError unless a run translates target into source, as far as the
    languages are known.
    """
    recipe = read_recipe(run_folder(folder))
    pairs = (recipe.source, target), (recipe.target, source)
    for has, wanted in pairs:
        if has != wanted and not {has, wanted} & _UNKNOWN:
            raise RunError(
                f"{folder} translates {recipe.source} into "
                f"{recipe.target}, but --back needs a run that translates "
                f"{target} into {source}"
            )


def _files(texts: Sequence[Path], folder: Path, source: str) -> list[Path]:
    """Where the translation of each text is. UsageError if two of them
    have one name.
    """
    files = [folder / f"{text.name}.{source}" for text in texts]
    for i, file in enumerate(files):
        if file in files[:i]:
            raise UsageError(
                f"two files of --mono are called {texts[i].name}: rename "
                "one of them"
            )
    return files


def _search(folder: Path, beam: int | None, sample: bool) -> SearchConfig:
    """How the run searches, or that it draws. UsageError for both."""
    usual = read_recipe(run_folder(folder)).search
    if not sample:
        beam = usual.beam if beam is None else beam
        return dataclasses.replace(usual, beam=beam, nbest=1)
    if beam is not None:
        raise UsageError("--back-sample does not go with --back-beam")
    return Sampling(extra=usual.extra, limit=usual.limit)


def _translate(
    folder: Path,
    texts: Sequence[tuple[Path, Path]],
    clean: Callable[[str], str],
    rules: dict[str, Any],
    search: SearchConfig,
) -> None:
    """Translate texts, the second of each pair of files, cleaned, into the
    first, line by line, with a run; go on where a translation has ended.
    rules are those by which clean cleans. RunError if a file is there
    that was made in another way.
    """
    options = SearchOptions(run=folder)
    made: dict[str, Any] = {"cleaning": rules}
    made["run"] = _weights_hash(run_folder(folder))
    made |= {n: getattr(search, n) for n in ("beam", "alpha", "extra")}
    if isinstance(search, Sampling):
        made["sample"] = True
    run: Run | None = None
    for file, text in texts:
        lines = count_lines(text)
        _begin(file, made | {"text": file_hash(text)})
        done = _whole_lines(file)
        if done == lines:
            continue
        print(
            f"translating {text} with {folder} into {file}: {done:,} of "
            f"{lines:,} lines are there",
            file=sys.stderr,
        )
        run = run or options.open()
        workers = options.processes(run)
        _append(file, text, (done, lines), run, search, workers, clean)


def _append(
    file: Path,
    text: Path,
    span: tuple[int, int],
    run: Run,
    search: SearchConfig,
    workers: int,
    clean: Callable[[str], str],
) -> None:
    """Translate the lines of a text from one to another."""
    rest = islice(Text(text).lines(strict=False), span[0], None)
    with (
        file.open("ab") as out,
        tqdm(total=span[1], initial=span[0], unit=" lines", disable=None)
        as bar,
    ):  # fmt: skip
        while chunk := list(islice(rest, _CHUNK)):
            chunk = ["" if fault(x) else clean(x) for x in chunk]
            found = run.translate(chunk, search, workers=workers)
            said = "".join(f"{best[0].text}\n" for best in found)
            out.write(said.encode("utf-8", "replace"))
            out.flush()
            os.fsync(out.fileno())
            bar.update(len(chunk))


def _begin(file: Path, made: dict[str, Any]) -> None:
    """Note how a translation is made; RunError if there is one that was
    made in another way.
    """
    path = file.with_name(f"{file.name}.json")
    if not path.exists():
        if file.exists():
            raise RunError(
                f"{file} was not made by this command: as a translation of "
                "your own, give it to --src, and its original to --tgt"
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, made)
    was = json_of(path)
    if was != made:
        was = was if isinstance(was, dict) else {}
        unlike = [n for n in made | was if was.get(n) != made.get(n)]
        raise RunError(
            f"{file} was made with another {', '.join(unlike)}: delete it "
            f"and {path.name}, or choose another --out"
        )


def _whole_lines(file: Path) -> int:
    """The lines of a file, which is made where there is none; what a
    killed process has left of one more is cut off.
    """
    lines = end = 0
    with file.open("ab+") as content:
        content.seek(0)
        for line in content:
            if line.endswith(b"\n"):
                lines, end = lines + 1, end + len(line)
        content.truncate(end)
    return lines


def _weights_hash(folder: Path) -> str:
    """The SHA-256 of the weights that Run.open takes."""
    folders = [folder, *checkpoints(folder / "checkpoints")[::-1]]
    files = [f / "model.safetensors" for f in folders]
    for file in files:
        if file.exists():
            return file_hash(file)
    raise RunError(f"{folder} has no weights yet: train it first")
