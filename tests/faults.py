"""What can be interrupted, and what must be left of it: the operations
that tests/engine/test_faults.py interrupts at each of their calls.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import random
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from tqdm import tqdm

from annotated.engine import fit
from tests.system import Fault, Trace, missing, traced

# what is said of a file that could not be written where that is no error
TOLD = "Nothing is remembered", "Not kept"
HOWS = ("once", "full", "gone", "killed")
TRAIN = (
    "train copy --data data --source en --target de --num-encoder-layers 1 "
    "--num-decoder-layers 1 --d-model 8 --d-ff 8 --num-heads 2 --dropout 0.1 "
    "--batch-tokens 40 --cooldown 0 --save-every 3 --keep 1 "
    "--precision float32 --device cpu"
)


def say(line: str) -> None:
    """Obey a command line, as the program annotated does."""
    from annotated import cli

    sys.argv = ["annotated", *shlex.split(line)]
    cli.main()


def tell(act: Callable[[], Any]) -> None:
    """Call what raises errors that a command reports."""
    from annotated import cli

    try:
        act()
    except (OSError, ValueError, SafetensorError) as error:
        cli._complain(str(error))
        sys.exit(2)


def corpus(folder: Path = Path("data")) -> Path:
    draw = random.Random(0)
    folder.mkdir()
    for split, count in (("train", 60), ("valid", 10)):
        lines = [
            " ".join(draw.choices("abcdefgh", k=draw.randrange(1, 7)))
            for _ in range(count)
        ]
        for side in ("en", "de"):
            text = "".join(line + "\n" for line in lines)
            (folder / f"{split}.{side}").write_text(text)
    return folder


@dataclass(frozen=True)
class Operation:
    """In an empty folder: what is there before, and what is done; done
    again, where it has failed.
    """

    before: Callable[[], Any]
    act: Callable[[], Any]
    litter: str = "$^"  # what may be left for ever


def trained(steps: int, more: str = "") -> Callable[[], None]:
    def act() -> None:
        going_on = "--resume" if Path("run/recipe.json").exists() else ""
        say(f"{TRAIN} --out run --max-steps {steps} {more} {going_on}")

    return act


def both(*acts: Callable[[], Any]) -> Callable[[], None]:
    def act() -> None:
        for one in acts:
            one()

    return act


def exporting(form: str) -> Operation:
    return Operation(
        both(corpus, trained(6)),
        lambda: say(f"export --run run --to {form} --out out"),
    )


def desk() -> Any:
    from annotated.school.course import Workspace

    return Workspace(Path("mine"))


def parts() -> list[Any]:
    from annotated.school.course import book_parts

    return list(book_parts().values())


def handed_in() -> None:
    """All parts but the last one are kept."""
    for one in parts()[:-1]:
        desk().keep(one, one.reference)
    desk().remember("02-weights", outcome="passed", checks=3)


def solved() -> None:
    one = parts()[0]
    Path("exercises").mkdir(exist_ok=True)
    Path("exercises", f"{one.name}.py").write_text(one.reference)


def classroom() -> None:
    """Two students have lost the label of a cell."""
    for folder, label in (
        ("release/03", True), ("submitted/ann/03", False),
        ("submitted/bob/03", False),
    ):  # fmt: skip
        about = {"grade_id": "03-causal", "solution": True, "grade": False}
        cell = {
            "cell_type": "code", "execution_count": None, "outputs": [],
            "metadata": {"nbgrader": about} if label else {},
            "source": ["def causal_mask(length, device=None):\n", "    return 1"],
        }  # fmt: skip
        whole = {
            "cells": [cell],
            "metadata": {},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        Path("course", folder).mkdir(parents=True)
        Path("course", folder, "03.ipynb").write_text(json.dumps(whole))


def plain_trainer() -> Any:
    import torch

    from annotated.batches import Corpus, Sentences
    from annotated.model import Transformer, TransformerConfig
    from annotated.training import Trainer, TrainingConfig

    torch.manual_seed(0)
    rows = Sentences.of([[4 + i % 5, 4, 5 + i % 3] for i in range(40)])
    shape = TransformerConfig(
        src_vocab=12, tgt_vocab=12, num_encoder_layers=1,
        num_decoder_layers=1, d_model=8, d_ff=8, num_heads=2,
    )  # fmt: skip
    config = TrainingConfig(batch_tokens=40, max_steps=6)
    return Trainer(Transformer(shape), Corpus(rows, rows), config)


def chapter_15(steps: int) -> None:
    """Train on from the last checkpoint, saving every second step."""
    from annotated.checkpoints import (
        load_checkpoint,
        save_checkpoint,
        save_weights,
    )

    def run() -> None:
        trainer, places = plain_trainer(), Path("checkpoints")
        places.mkdir(exist_ok=True)
        found = sorted(p for p in places.iterdir() if p.name[0] != ".")
        if found:
            load_checkpoint(trainer, found[-1])
        for progress in trainer.steps():
            if progress.step % 2 == 0:
                save_checkpoint(trainer, places)
            if progress.step == steps:
                break
        save_weights(trainer.model, Path("weights.safetensors"))

    tell(run)


def save_again() -> None:
    """A checkpoint takes the place of another of its step."""
    from annotated.engine.checkpoints import write_checkpoint

    trainer, places = plain_trainer(), Path("checkpoints")
    places.mkdir(exist_ok=True)
    next(iter(trainer.steps()))
    state = trainer.weights(), trainer.moments(), trainer.state()
    tell(lambda: write_checkpoint(*state, places / "00000001"))


def treebank() -> None:
    from annotated.pocket import pocket_pairs

    Path("bank").mkdir()
    trees = [str(p.target_tree) for p in pocket_pairs(40)]
    for i in range(20):
        text = "".join(f"( {tree} )\n" for tree in trees[2 * i : 2 * i + 2])
        Path("bank", f"{i:02}.mrg").write_text(text)


def prepared() -> None:
    rng = random.Random(1)
    for name, count in (("a", 120), ("v", 20)):
        lines = [
            " ".join(rng.choices("abcdefgh", k=4)) + "\n"
            for _ in range(count)
        ]
        for side in ("en", "de"):
            Path(f"{name}.{side}").write_text("".join(lines))


PREPARE = (
    "data prepare pair --src a.en --tgt a.de --valid v.en v.de --source en "
    "--target de --vocab 270 --out out"
)
EVALUATE = (
    "evaluate --run run --data data --split valid --keep --device cpu "
    "--precision float32 --workers 1"
)

# the checkpoint before the last, which was to be deleted next
MORE = r"checkpoints/0+\d"

OPERATIONS: dict[str, Operation] = {
    "train": Operation(corpus, trained(6), MORE),
    "train on": Operation(both(corpus, trained(6)), trained(12), MORE),
    "train from another": Operation(
        both(corpus, trained(3), lambda: Path("run").rename("other")),
        trained(3, "--init other"),
    ),
    "save again": Operation(save_again, save_again),
    "average": Operation(
        both(corpus, trained(6)), lambda: say("average --run run --out out")
    ),
    "evaluate": Operation(
        both(corpus, trained(3), lambda: say(EVALUATE)), lambda: say(EVALUATE)
    ),
    "prepare": Operation(prepared, lambda: say(PREPARE)),
    "export safetensors": exporting("safetensors"),
    "export transformers": exporting("transformers"),
    **{
        f"export {form}": exporting(form)
        for form in ("onnx", "ctranslate2")
        if importlib.util.find_spec(form)
    },
    "import": Operation(
        both(
            corpus, trained(3),
            lambda: say("export --run run --to transformers --out hub"),
        ),
        lambda: say("import marian hub --out out"),
    ),
    "treebank": Operation(treebank, lambda: say("treebank bank --out out")),
    "keep": Operation(
        handed_in, lambda: tell(lambda: desk().keep(parts()[-1], parts()[-1].reference))
    ),
    "forget": Operation(
        handed_in, lambda: tell(lambda: desk().forget("02-weights"))
    ),
    "remember": Operation(
        handed_in, lambda: tell(lambda: desk().remember("03-padding", outcome="failed"))
    ),
    "exercises": Operation(
        solved, lambda: say(f"exercises {parts()[0].name}")
    ),
    "repair": Operation(classroom, lambda: say("classroom repair course")),
    # a plain form: its library's helper files stay where it is killed
    "chapter 15": Operation(
        lambda: chapter_15(4), lambda: chapter_15(6), r"(^|/)\.(tmp|weights)"
    ),
}  # fmt: skip


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file below folder, byte for byte; None of a folder."""
    return {
        str(path.relative_to(folder)): None
        if path.is_dir()
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


class Sweep:
    """An operation, and what it does where nothing fails."""

    def __init__(self, root: Path, operation: Operation):
        root = root.resolve()
        self.root, self.operation = root, operation
        root.mkdir()
        os.chdir(root)
        os.environ["ANNOTATED_MEASURED"] = str(root / "measured")
        os.environ["ANNOTATED_MINE"] = "mine"
        self.clock()
        self.place, self.said = root / "place", root / "said"
        self.template = root / "template"
        self.place.mkdir()
        self.warm, self.loaded = False, root / "loaded"
        if self.do(operation.before).code:
            raise AssertionError(self.said.read_text())
        self.place.rename(self.template)
        self.warm_up()
        self.before = tree(self.template)
        self.whole: dict[str, set[bytes | None]] = {
            name: {content} for name, content in self.before.items()
        }
        self.begun: set[str] = set()
        self.fresh()
        self.clean = self.do(operation.act, seen=self.look)
        if self.clean.code:
            raise AssertionError(self.said.read_text())
        self.after = tree(self.place)
        for name in self.before.keys() & self.after.keys():
            self.whole[name].add(self.after[name])
        self.warm_up()
        self.warm = True
        again = self.do(operation.act).code
        self.repeats = again == 0 and not self.unlike(tree(self.place))

    def warm_up(self) -> None:
        """Import here, once, what the operation needs."""
        for name in self.loaded.read_text().splitlines():
            with contextlib.suppress(Exception):
                importlib.import_module(name)

    @staticmethod
    def clock() -> None:
        """Nothing takes any time, so that equal runs have equal bytes."""
        time.perf_counter = lambda: 0.0
        fit.training_speed = lambda *args: (100.0, False)
        tqdm.set_lock(threading.RLock())  # none that a killed one keeps

    def fresh(self) -> None:
        os.chdir(self.root)
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.template, self.place)

    def look(self, call: str, path: str) -> None:
        """Before a call of the clean run: what is whole at this moment."""
        for name in self.before:
            file = self.place / name
            if name not in self.begun and file.is_file():
                self.whole[name].add(file.read_bytes())
        name = os.path.relpath(path, self.place)
        if call.startswith("rename"):
            self.begun.discard(name)
        elif call in ("open", "openat", "write", "ftruncate"):
            self.begun.add(name)

    def do(
        self,
        act: Callable[[], Any],
        fault: Fault | None = None,
        seen: Any = None,
    ) -> Trace:
        os.chdir(self.place)

        def quietly() -> None:
            handle = os.open(
                self.said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            )
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            try:
                act()
            finally:
                if not self.warm:
                    self.loaded.write_text("\n".join(sys.modules))

        return traced(quietly, self.place, fault, seen)

    def strike(self, fault: Fault) -> list[str]:
        """What is wrong after a fault, and after the next try."""
        self.fresh()
        trace = self.do(self.operation.act, fault)
        wrong = []
        said = self.said.read_text(errors="replace")
        last = said.strip().splitlines()[-1:] or [""]
        killed = fault.how == "killed"
        if trace.code not in ((-9,) if killed else (0, 2)):
            wrong.append(f"ends with {trace.code}: {last[0]}")
        elif trace.code == 2 and not last[0].startswith("annotated: "):
            wrong.append(f"says {last[0]}")
        elif "Traceback" in said:
            wrong.append(f"traceback: {last[0]}")
        there = tree(self.place)
        for name in self.before:
            if name not in there:
                gone = self.before[name] not in there.values()
                if name in self.after and gone:
                    wrong.append(f"lost {name}")
            elif not any(
                there[name] == one
                or name.endswith("metrics.jsonl")
                and there[name].startswith(one)
                for one in self.whole[name]
            ):
                wrong.append(f"damaged {name}")
        told = trace.code or any(words in said for words in TOLD)
        if not told:  # it says that all is well
            wrong += [
                f"at once {w}"
                for w in self.unlike(there)
                if not w.startswith("litter") or "/." not in f"/{w[7:]}"
            ]
        if told or self.repeats:
            again = self.do(self.operation.act)
            more = self.said.read_text(errors="replace").strip()
            if again.code and not (
                again.code == 2 and "is not empty" in more
            ):
                wrong.append(
                    f"next try ends with {again.code}: {more[-200:]}"
                )
            wrong += [f"then {w}" for w in self.unlike(tree(self.place))]
        return wrong

    def unlike(self, there: dict[str, bytes | None]) -> list[str]:
        plain = re.compile(r"(?<=\.)\w{8}(?=\..*part)")
        found = []
        for name in sorted(there.keys() | self.after.keys()):
            if name not in there:
                found.append(f"lacks {name}")
            elif name not in self.after:
                empty = not any(n.startswith(f"{name}/") for n in there)
                if empty and name.endswith(".part"):
                    continue  # killed between renaming and tidying up
                if re.search(self.operation.litter, name):
                    continue
                found.append(f"litter {plain.sub('N', name)}")
            elif there[name] != self.after[name]:
                found.append(f"other {name}")
        return found


def strike(say: Any, root: Path, names: list[str], share: int) -> None:
    """In a process of its own: tell what each fault has done wrong."""
    say.send(missing())
    for name in names:
        sweep = Sweep(root / name.replace(" ", "-"), OPERATIONS[name])
        points = sweep.clean.points
        say.send((name, points))
        faults = [
            Fault(n + 1, how) for n in range(len(points)) for how in HOWS
        ]
        for fault in faults[::share]:
            say.send((fault, points[fault.at - 1], sweep.strike(fault)))
    say.send(None)
