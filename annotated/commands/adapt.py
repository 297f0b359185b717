"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import json
import shlex
import shutil
import sys
from collections import deque
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from annotated.cli import dispatch
from annotated.commands.options import Flag
from annotated.corpora.fetch import file_hash
from annotated.corpora.pairs import TextPair
from annotated.corpora.reading import json_of
from annotated.engine.errors import DataError, UsageError
from annotated.engine.files import write_json
from annotated.engine.runs import read_recipe, run_folder

__all__ = ["Adapt"]


# E38-adapt.md: The steps
@dataclasses.dataclass(frozen=True, kw_only=True)
class Adapt:
    """Train a translator further on your own text, score it beside what
    it was, and export it.
    """

    src: Path  # your sentences
    tgt: Path  # their translations
    out: Path  # the folder of all that is made
    run: Path | None = None  # the run to begin with
    published: str | None = None  # or a published model, as import takes it
    minutes: float = 10.0  # of training
    # two files for validation (unset: hold out part of src)
    valid: tuple[Path, Path] | None = None
    # two files for the test (unset: hold out part of src)
    test: tuple[Path, Path] | None = None
    hold_out: int = 20  # hold out one in this many sentences, for each
    # a text of the old kind and its translation: what is forgotten?
    old: tuple[Path, Path] | None = None
    nothing: Flag = False  # train from nothing, too, for the same minutes
    # the form to export
    to: Literal["safetensors", "onnx", "ctranslate2", "transformers"] = (
        "safetensors"
    )
    json: Flag = False  # print the scores as JSON, on one line

    def act(self) -> None:
        """Do what has not been done, step by step."""
        if (self.run is None) == (self.published is None):
            raise UsageError("adapt: give one of --run and --published")
        if not self.minutes > 0:
            raise UsageError("adapt: --minutes must be more than 0")
        # here, because --help does without
        from annotated.exchange.export import check_installed

        check_installed(self.to)
        first = self.out / "first"
        if self.published is not None:
            self._do("import", "marian", self.published, "--out", first)
        else:
            first = run_folder(Path(self.run or ""))
        scores = self._scores(first)
        self._do(
            "export", "--run", self.out / "run", "--to", self.to,
            "--out", self.out / self.to,
        )  # fmt: skip
        print(json.dumps(scores) if self.json else _table(scores))

    def _scores(self, first: Path) -> dict[str, dict[str, Any]]:
        """Prepare, train, and score what there was and what came of it:
        new, the scores on the test set, and old, those on the old text.
        """
        recipe, data = read_recipe(first), self.out / "data"
        if self.old is not None:  # refused before the minutes, not after
            languages = recipe.source, recipe.target
            old_text = TextPair.of_files(*self.old, languages=languages)
            deque(old_text.pairs(), maxlen=0)
        ways = "--source", recipe.source, "--target", recipe.target
        files = ["--src", self.src, "--tgt", self.tgt, *ways]
        for name in ("valid", "test"):
            if pair := getattr(self, name):
                files += [f"--{name}", *pair]
        files += ["--hold-out", self.hold_out, "--json", "--out"]
        prepare = "data", "prepare", "pair", *files
        self._do(*prepare, data, "--tokens", first)
        runs = {"as it was": first, "adapted": self.out / "run"}
        self._train(runs["adapted"], data, "--init", first)
        texts = dict.fromkeys(runs, data)
        if self.nothing:
            name, own = "from nothing", self.out / "nothing"
            runs[name], texts[name] = own / "run", own / "data"
            self._do(*prepare, texts[name])
            self._train(runs[name], texts[name], *ways)
        score = "evaluate", "--json", "--run"
        new = {
            name: self._do(
                *score, run, "--split", "test", "--data", texts[name]
            )
            for name, run in runs.items()
        }
        old: dict[str, Any] = {}
        for src, ref in [self.old] if self.old is not None else []:
            for name in ("as it was", "adapted"):
                text = "--src", src, "--ref", ref
                old[name] = self._do(*score, runs[name], *text)
        lines = {"the source copied": "copied", "nearest": "nearest"}
        same = new["as it was"]
        base = {n: same[k] for n, k in lines.items() if k in same}
        return {"new": base | new, "old": old}

    def _train(self, run: Path, data: Path, *more: Any) -> None:
        """Train into a folder, or go on in it."""
        begun = ["--resume"] * (run / "recipe.json").exists()
        self._do(
            "train", "pair", "--data", data, "--out", run,
            "--max-minutes", self.minutes, *more, then=begun,
        )  # fmt: skip

    def _do(self, *words: Any, then: list[str] | None = None) -> Any:
        """Run a line of the command line, unless it has been run, with
        texts as they are; then are words that make no other step of it.
        Returns its JSON.
        """
        step = shlex.join(map(str, words))
        texts = [self.src, self.tgt]
        texts += [*(self.valid or ()), *(self.test or ())]
        if words[0] == "import":  # which no text changes
            texts = []
        made = [words[i + 1] for i, x in enumerate(words) if x == "--out"]
        read = [x for x in [*texts, *words] if x not in made]
        paths = [x for x in read if isinstance(x, Path)]
        if words[0] in ("evaluate", "export"):  # of what has been trained
            paths += [x / "model.safetensors" for x in paths]
        files = [x for x in dict.fromkeys(paths) if x.is_file()]
        key = " ".join([step, *map(file_hash, files)])
        path = self.out / "steps.json"
        done = json_of(path) if path.exists() else {}
        if not isinstance(done, dict):
            raise DataError(f"{path} has no steps: delete it, begin again")
        if key not in done:
            line = shlex.join([*map(str, words), *(then or [])])
            print(f"annotated {line}", file=sys.stderr, flush=True)
            before = any(k.startswith(step) for k in done)
            if words[0] == "export" and before:
                shutil.rmtree(self.out / self.to, ignore_errors=True)
            with redirect_stdout(StringIO()) as said:
                dispatch([*map(str, words), *(then or [])])
            last = said.getvalue().strip().rpartition("\n")[2]
            self.out.mkdir(parents=True, exist_ok=True)
            done[key] = json.loads(last) if last else {}
            write_json(path, done)
        return done[key]


def _table(scores: dict[str, dict[str, Any]]) -> str:
    """The scores, a system on each line."""
    lines = [f"{'':20}{'BLEU':>8}{'chrF':>8}"]
    for name, each in scores["new"].items():
        lines.append(f"{name:20}{each['bleu']:8.1f}{each['chrf']:8.1f}")
    for name, each in scores["old"].items():
        what = f"old text, {name}"
        lines.append(f"{what:20}{each['bleu']:8.1f}{each['chrf']:8.1f}")
    return "\n".join(lines)
