"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import ast
import inspect
import json
import linecache
import os
import random
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from annotated.book.results import ledger
from annotated.corpora.pairs import parts_of
from annotated.corpora.reading import python_of
from annotated.engine.errors import DataError
from annotated.engine.files import clear, write_json, write_text
from annotated.parsing import linearise, right_branching, tree_over
from annotated.pocket import Pair, pocket_pairs
from annotated.pocket.trees import Tree
from annotated.school.checks import (
    Exercise,
    examine_source,
    exercises,
    run_code,
)

__all__ = [
    "MARK", "book_parts", "Part", "Desk", "redirected", "exported",
    "standing_alone", "source_of", "kept", "assembled", "part_of",
    "equals_torch", "torch_state", "Stepper", "reverses_words", "Learner",
    "copies", "ENOUGH", "Phrasebook", "in_batches", "translates", "said_by",
    "PIECE", "TOKEN", "LEAST", "Cutter", "captions", "captions_translated",
    "written", "parses", "short_tree", "as_tuple", "MILESTONES", "FETCHED",
    "reach",
]  # fmt: skip


# E21-course.md: What is yours
MARK = re.compile(r"^# --- (\d\d-[a-z0-9-]+)$", re.M)


def book_parts() -> dict[str, Exercise]:
    """The exercises of which a Transformer is made, by name."""
    return {n: one for n, one in exercises().items() if one.is_part}


@dataclass(frozen=True)
class Part:
    """A solution that is kept: where it stands, and its code."""

    exercise: str
    path: Path
    line: int  # of its first line in that file, from 1
    code: str


@dataclass(frozen=True)
class Desk:
    """The folder mine/: solutions that pass, and progress.json."""

    folder: Path

    @classmethod
    def here(cls) -> Desk:
        """mine/ in this folder, or $ANNOTATED_MINE."""
        return cls(Path(os.environ.get("ANNOTATED_MINE", "mine")))

    def parts(self) -> dict[str, Part]:
        """What is yours, by exercise, in the order of the book."""
        found = {}
        for path in sorted(self.folder.glob("*.py")):
            text = python_of(path)
            marks = list(MARK.finditer(text))
            ends = [m.start() for m in marks[1:]] + [len(text)]
            for mark, end in zip(marks, ends):
                line = text.count("\n", 0, mark.end()) + 2
                code = text[mark.end() + 1 : end].rstrip() + "\n"
                found[mark[1]] = Part(mark[1], path, line, code)
        return {name: found[name] for name in book_parts() if name in found}

    def keep(self, exercise: Exercise, code: str) -> None:
        """Put a solution into its module of mine/. OSError where that
        cannot be written.
        """
        codes = {name: part.code for name, part in self.parts().items()}
        self._write(codes | {exercise.name: code})

    def forget(self, name: str) -> None:
        """Take a solution, and what is remembered of it, out again."""
        codes = {n: part.code for n, part in self.parts().items()}
        removed = codes.pop(name, None)
        if codes or removed:  # of what is left, some may still import it
            self._write(codes)
        state = self.state()
        if state.pop(name, None) is not None:
            write_json(self.folder / "progress.json", state)

    def _write(self, codes: dict[str, str]) -> None:
        """Every module that changes: one that gains a part first and one
        that loses a part last, so that at no moment one is imported that
        is not there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        clear(self.folder)
        texts = {"__init__": '"""Your own Transformer."""\n'}
        for name, exercise in book_parts().items():
            if name not in codes:
                continue
            home = f'"""Yours: parts of annotated.{exercise.module}."""\n'
            others = set(codes) - {name}  # its own would import itself
            block = redirected(codes[name], "mine", others)
            texts.setdefault(exercise.module, home)
            texts[exercise.module] += f"\n\n# --- {name}\n{block}"
        files = self.folder.glob("*.py")
        there = {path.stem: python_of(path) for path in files}

        def lost(module: str) -> int:
            before, now = there.get(module, ""), texts.get(module, "")
            return len(MARK.findall(before)) - len(MARK.findall(now))

        ours = {name for name, text in there.items() if MARK.search(text)}
        for module in sorted(sorted({*texts, *ours}), key=lost):
            path, text = self.folder / f"{module}.py", texts.get(module)
            if text is None:
                path.unlink()
            elif text != there.get(module):
                write_text(path, text)

    def state(self) -> dict[str, dict[str, Any]]:
        """What is remembered of each exercise: outcome, hints given."""
        try:
            text = (self.folder / "progress.json").read_text("utf-8")
            return dict(json.loads(text))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except ValueError:  # damaged: the solutions are not in it
            return {}

    def remember(self, name: str, **facts: Any) -> None:
        """Add facts to what is remembered. OSError as keep."""
        state = self.state()
        state[name] = state.get(name, {}) | facts
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "progress.json", state)


def redirected(code: str, package: str, names: set[str]) -> str:
    """code, in which what exercises of these names define is imported
    from package. Lines keep their numbers.
    """
    homes = {
        (f"annotated.{e.module}", e.defines): f"{package}.{e.module}"
        for e in book_parts().values()
        if e.name in names
    }
    code = re.sub(r"\bfrom mine\.", "from annotated.", code)
    lines = code.rstrip("\n").split("\n")
    for node in ast.parse(code).body[::-1]:  # several may share a line
        if not isinstance(node, ast.ImportFrom):
            continue
        module = node.module or ""
        statements: dict[str, list[str]] = {}
        for alias in node.names:
            home = homes.get((module, alias.name), module)
            statements.setdefault(home, []).append(ast.unparse(alias))
        if set(statements) == {module}:
            continue
        text = "; ".join(
            f"from {home} import {', '.join(imported)}"
            for home, imported in statements.items()
        )
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        left = lines[first].encode()[: node.col_offset].decode()
        right = lines[last - 1].encode()[node.end_col_offset :].decode()
        lines[first:last] = [
            left + text + right,
            *[""] * (last - first - 1),
        ]
    return "\n".join(lines) + "\n"


def exported(code: str) -> str:
    """What the press would export of a cell: imports, definitions and
    constants. SyntaxError where it does not parse.
    """
    kept = (
        ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef,
        ast.Assign, ast.AnnAssign,
    )  # fmt: skip
    lines = code.split("\n")
    found: list[str] = []
    for node in ast.parse(code).body:
        if isinstance(node, kept):
            first = node.lineno
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                rows = [d.lineno for d in node.decorator_list]
                first = min([first, *rows])
            gap = "\n\n" if found and not _flat(node) else ""
            found.append(
                gap + "\n".join(lines[first - 1 : node.end_lineno])
            )
    return "\n".join(found) + "\n"


def _flat(node: ast.stmt) -> bool:
    return not isinstance(node, (ast.FunctionDef, ast.ClassDef))


def standing_alone(code: str) -> str | None:
    """What would be kept of a file; None where that is the file itself."""
    kept = exported(code)
    body = ast.parse(code).body
    docs = body and isinstance(body[0], ast.Expr)
    if docs and ast.get_docstring(ast.parse(code)) is not None:
        body = body[1:]
    whole = ast.dump(ast.Module(body=body, type_ignores=[]))
    return None if ast.dump(ast.parse(kept)) == whole else kept


def source_of(thing: Any) -> str | None:
    """The cell, or the file, that defines a function or a class; None
    where it was typed at a prompt.
    """
    thing = inspect.unwrap(thing)  # of torch.no_grad, say
    try:
        methods = inspect.getmembers(thing, inspect.isfunction)
        function = thing if inspect.isfunction(thing) else methods[0][1]
        if inspect.isclass(thing):  # not a method of a base
            own = [
                f
                for _, f in methods
                if f.__qualname__.startswith(thing.__qualname__)
            ]
            function = own[0]
        filename = function.__code__.co_filename
    except (AttributeError, IndexError):
        return None
    lines = linecache.getlines(filename)
    return "".join(lines) or None


def kept(desk: Desk, exercise: Exercise, thing: Any) -> str:
    """Keep what has passed; what there is to say about that."""
    if not exercise.is_part:
        return ""
    source = source_of(thing)
    if source is None:
        return ""
    try:
        code = exported(source)
    except SyntaxError:
        return "Not kept: its cell has lines that are not Python."
    verdict = examine_source(exercise, code, f"<{exercise.name}>")
    if verdict.outcome != "passed":
        return (
            "Not kept: by itself, without what other cells define, it is "
            f"{verdict.text.splitlines()[0]}"
        )
    try:
        desk.keep(exercise, code)
    except OSError as error:
        return f"Not kept: {error}"
    return f"Kept in {desk.folder / exercise.module}.py."


# E21-course.md: A Transformer built from all parts
@contextmanager
def assembled(desk: Desk) -> Iterator[dict[str, Any]]:
    """What every exercise defines, by that name: yours, else ours."""
    mine, names = desk.parts(), set(book_parts())
    modules: dict[str, types.ModuleType] = {}
    found = {}
    try:
        for name, one in book_parts().items():
            home = f"course.{one.module}"
            if home not in modules:
                modules[home] = sys.modules[home] = types.ModuleType(home)
            code, filename, above = one.reference, f"<ours: {name}>", 0
            if name in mine:
                part = mine[name]
                code, filename = part.code, str(part.path)
                above = part.line - 1  # so that a traceback fits the file
            code = redirected(code, "course", names - {name})
            code = "\n" * above + code
            space = modules[home].__dict__
            if name in mine:
                tree = compile(code, filename, "exec", dont_inherit=True)
                exec(tree, space)
            else:
                run_code(code, filename, space)
            found[one.defines] = space[one.defines]
        yield found
    finally:
        for home in modules:
            del sys.modules[home]


def part_of(error: BaseException, desk: Desk) -> str:
    """The last of your parts that a traceback goes through; or ""."""
    found = ""
    for frame, row in traceback.walk_tb(error.__traceback__):
        for name, part in desk.parts().items():
            last = part.line + part.code.count("\n")
            here = frame.f_code.co_filename == str(part.path)
            if here and part.line <= row <= last:
                found = f"{name} ({part.path}, line {row})"
    return found


def equals_torch(course: dict[str, Any]) -> str:
    """Milestone 1: the model equals that of torch.nn; AssertionError
    where its logits are others.
    """
    torch.manual_seed(0)
    model = course["Transformer"](11, 12, 20, 3, 2).double().eval()
    src = torch.tensor([[5, 6, 7, 8], [9, 4, 0, 0]])
    tgt = torch.tensor([[1, 8, 7], [1, 4, 0]])
    shape: dict[str, Any] = {"nhead": 3, "dim_feedforward": 20}
    shape |= {"dropout": 0.0, "batch_first": True}
    shape |= {"dtype": torch.float64}
    memory, x = (
        table[ids] * 12**0.5
        + course["sinusoids"](ids.size(1), 12, torch.float64)
        for ids, table in (
            (src, model.embeddings.source),
            (tgt, model.embeddings.target),
        )
    )
    hidden = src == 0
    for layer in model.encoder:
        theirs = nn.TransformerEncoderLayer(12, **shape)
        theirs.load_state_dict(torch_state(layer.state_dict()))
        memory = theirs(memory, src_key_padding_mask=hidden)
    future = torch.ones(3, 3, dtype=torch.bool).triu(1)
    for layer in model.decoder:
        other = nn.TransformerDecoderLayer(12, **shape)
        other.load_state_dict(torch_state(layer.state_dict()))
        x = other(
            x, memory, tgt_mask=future, memory_key_padding_mask=hidden
        )
    gap = (model(src, tgt) - x @ model.embeddings.output.T).abs().max()
    if not gap < 1e-9:
        raise AssertionError(f"the logits differ by up to {gap:.2g}")
    return f"its logits are those of torch.nn, up to {gap:.0e}"


def torch_state(ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our parameters by torch's names; those of q, k and v joined."""
    names = {
        "cross_attention": "multihead_attn",
        "attention": "self_attn",
        "w_o": "out_proj",
        "w_q.": "in_proj_",
        "w_k.": "in_proj_",
        "w_v.": "in_proj_",
        "feed_forward.inner": "linear1",
        "feed_forward.outer": "linear2",
    }
    found: dict[str, list[Tensor]] = {}
    for name, value in ours.items():
        for our_name, their_name in names.items():
            name = name.replace(our_name, their_name)
        found.setdefault(name, []).append(value)
    return {name: torch.cat(values) for name, values in found.items()}


class Stepper:
    """An optimiser of the function adam_step, with a warm-up; or at the
    rate that it is told.
    """

    def __init__(self, step: Any, parameters: Iterable[nn.Parameter]):
        self.adam_step, self.parameters = step, list(parameters)
        self.states: list[dict[str, Any]] = [{} for _ in self.parameters]
        self.count, self.rate = 0, 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"states": self.states, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.states, self.count = state["states"], state["count"]

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        self.count += 1
        ramp = min(self.count / 100, (100 / self.count) ** 0.5)
        rate = self.rate or 4e-3 * ramp
        for parameter, state in zip(self.parameters, self.states):
            if parameter.grad is not None:
                gradient = parameter.grad
                self.adam_step(parameter.data, gradient, state, rate)


def reverses_words(course: dict[str, Any], steps: int = 500) -> str:
    """Milestone 2: it learns to reverse words; AssertionError where it
    does not.
    """
    torch.manual_seed(0)
    model = course["Transformer"](30, 32, 64, 4, 1)
    optimizer = Stepper(course["adam_step"], model.parameters())

    def draw(count: int) -> tuple[list[list[int]], list[list[int]]]:
        lengths = torch.randint(2, 6, (count,)).tolist()
        words = [torch.randint(4, 30, (n,)).tolist() for n in lengths]
        return words, [word[::-1] for word in words]

    for _ in range(steps):
        batch = course["shift_and_pad"](*draw(64))
        loss = course["train_step"](model, optimizer, *batch, 0.0)
    words, back = draw(200)
    src, _, labels = course["shift_and_pad"](words, back)
    wrote = course["greedy"](model, src, labels.size(1))
    real = labels != 0
    right = ((wrote == labels) | ~real).all(dim=1).float().mean().item()
    if not right > 0.8:
        raise AssertionError(
            f"after {steps} steps the loss is {loss:.2f}, and {right:.0%} "
            "of new words are reversed"
        )
    return f"after {steps} steps it reverses {right:.0%} of new words"


class Learner:
    """A model of the course's parts, trained by its own loop."""

    def __init__(self, course: dict[str, Any], *shape: Any):
        self.course, self.shape = course, shape
        self.model = course["Transformer"](*shape)
        self.optimizer = Stepper(
            course["adam_step"], self.model.parameters()
        )

    def learn(
        self,
        batches: Callable[[int], Iterable[Any]],
        steps: tuple[int, int],
        highest: float,
        smoothing: float = 0.0,
    ) -> float:
        """From the first of steps to before the second, at a rate that
        rises for 100 steps and falls to nothing at the second; the last
        loss.
        """
        first, last = steps

        def rate(number: int) -> float:
            done = first + number - 1
            return highest * min((done + 1) / 100, (last - done) / last)

        def step(batch: Any, rate: float) -> float:
            self.optimizer.rate = rate
            train_step = self.course["train_step"]
            return train_step(self.model, self.optimizer, *batch, smoothing)

        losses, _ = self.course["train"](
            step, batches, rate, last - first, last, lambda: 0.0
        )
        return losses[-1]


def copies(course: dict[str, Any], steps: int = 800) -> str:
    """Milestone 3: it copies what it reads, without a mistake;
    AssertionError where it does not, or does not survive a stop.
    """
    torch.manual_seed(0)
    shape = 20, 48, 96, 4, 1

    def draw(count: int, seed: int) -> Any:
        source = torch.Generator().manual_seed(seed)
        lengths = torch.randint(1, 9, (count,), generator=source).tolist()
        rows = [
            torch.randint(4, 20, (n,), generator=source).tolist()
            for n in lengths
        ]
        return course["shift_and_pad"](rows, rows)

    half, learner = steps // 2, Learner(course, *shape)
    highest = 4e-3
    learner.learn(lambda e: [draw(64, e)], (0, half), highest)
    with TemporaryDirectory() as folder:
        kept = course["Checkpoint"](Path(folder) / "run.pt")
        kept.save(learner.model, learner.optimizer, half)
        learner = Learner(course, *shape)
        found = kept.load(learner.model, learner.optimizer)
    if found != half:
        raise AssertionError(f"stopped after {half} steps, read {found}")
    loss = learner.learn(
        lambda e: [draw(64, half + e)], (half, steps), highest
    )
    src, _, labels = draw(200, 10**6)
    wrote = course["greedy"](learner.model, src, labels.size(1))
    right = ((wrote == labels) | (labels == 0)).all(dim=1).sum().item()
    if right < 200:
        raise AssertionError(
            f"after {steps} steps the loss is {loss:.3f}, and {right} of "
            "200 new rows are copied"
        )
    return f"after {steps} steps, one stop among them, it copies 200 of 200"


ENOUGH = 0.85  # of new sentences; ours got 0.92 or more from four seeds


@dataclass(frozen=True)
class Phrasebook:
    """Short pairs of Pocket German, and the numbers of their words."""

    pairs: list[tuple[list[str], list[str]]]
    numbers: dict[str, int]

    @classmethod
    def of(cls, count: int, split: str) -> Phrasebook:
        """Those of the first count pairs with at most ten words."""
        return cls.over(
            [
                (pair.source.split(), pair.target.split())
                for pair in pocket_pairs(count, split)
                if max(pair.lengths) <= 10
            ]
        )

    @classmethod
    def over(cls, pairs: list[tuple[list[str], list[str]]]) -> Phrasebook:
        """Of any pairs, each of their words with a number."""
        words = dict.fromkeys(w for both in pairs for s in both for w in s)
        return cls(pairs, {w: i for i, w in enumerate(words, 4)})

    def ids(self, words: list[str]) -> list[int]:
        """Their numbers; 3 for a word that is not in the book."""
        return [self.numbers.get(word, 3) for word in words]

    def batches(self, seed: int, size: int = 64) -> Iterator[list[Any]]:
        """Sources and targets as ids, in batches of similar length."""
        pairs = [(self.ids(s), self.ids(t)) for s, t in self.pairs]
        return in_batches(pairs, seed, size)


def in_batches(
    pairs: Iterable[tuple[list[int], list[int]]], seed: int, size: int
) -> Iterator[list[Any]]:
    """Sources and targets: pairs of similar length together, in a random
    order.
    """
    draw, pairs = random.Random(seed), list(pairs)
    draw.shuffle(pairs)
    for start in range(0, len(pairs), 20 * size):
        some = sorted(
            pairs[start : start + 20 * size],
            key=lambda pair: (len(pair[1]), len(pair[0])),
        )
        cells = [some[i : i + size] for i in range(0, len(some), size)]
        draw.shuffle(cells)
        yield from ([list(side) for side in zip(*c)] for c in cells)


def translates(
    course: dict[str, Any], steps: int = 1000, seed: int = 0
) -> str:
    """Milestone 4: it translates sentences of Pocket German that it has
    not seen; AssertionError where it does not.
    """
    book = Phrasebook.of(40_000, "train")
    new = Phrasebook.of(600, "test").pairs[:200]
    torch.manual_seed(seed)
    learner = Learner(course, len(book.numbers) + 4, 96, 192, 4, 2)
    pad = course["shift_and_pad"]
    loss = learner.learn(
        lambda epoch: (pad(*b) for b in book.batches(100 * seed + epoch)),
        (0, steps),
        3e-3,
    )
    src, _, labels = pad(
        [book.ids(source) for source, _ in new],
        [book.ids(target) for _, target in new],
    )
    wrote = course["greedy"](learner.model, src, labels.size(1))
    same = ((wrote == labels) | (labels == 0)).all(dim=1)
    right = same.float().mean().item()
    if not right >= ENOUGH:
        raise AssertionError(
            f"after {steps} steps the loss is {loss:.2f}, and {right:.0%} "
            f"of new sentences are right, not {ENOUGH:.0%}"
        )
    german = new[0][0]
    english = said_by(course, learner.model, book, german)
    return (
        f"after {steps} steps {right:.0%} of new sentences are right; "
        f"“{' '.join(german)}” becomes “{english}”"
    )


@torch.no_grad()
def said_by(
    course: dict[str, Any], model: Any, book: Phrasebook, words: list[str]
) -> str:
    """What the course's beam search makes of a sentence."""
    src, _, _ = course["shift_and_pad"]([book.ids(words)], [[]])
    names = {number: word for word, number in book.numbers.items()}

    def after(ids: list[int]) -> Tensor:
        logits: Tensor = model(src, torch.tensor([ids]))[0, -1]
        return logits.log_softmax(dim=-1)

    ids, _ = course["beam_search"](after, 4, 2 * len(words) + 5)
    return " ".join(names.get(number, "?") for number in ids)


PIECE = re.compile(r" ?[^ ]+| ")  # what no merge reaches beyond
TOKEN = re.compile(r"\w+|[^\w\s]")  # words and punctuation, for BLEU
LEAST = 10.0  # BLEU; translated word by word it is less


class Cutter:
    """The course's byte pairs, which cut each piece once."""

    def __init__(self, course: dict[str, Any], lines: Any, vocab: int):
        self.pairs = course["BytePairs"].train(lines, vocab)
        self.known: dict[str, list[int]] = {}

    def ids(self, line: str) -> list[int]:
        """The ids of a line."""
        found: list[int] = []
        for piece in PIECE.findall(line):
            if piece not in self.known:
                self.known[piece] = self.pairs.encode(piece)
            found += self.known[piece]
        return found


def captions(split: str) -> list[tuple[str, str]]:
    """English and German lines of Multi30k; DataError where they are not
    here and cannot be downloaded.
    """
    parts = parts_of("multi30k", split, "en", "de")
    return [pair for part in parts for pair in part.pairs()]


def captions_translated(
    course: dict[str, Any],
    steps: int = 1500,
    sample: int = 1000,
    vocab: int = 1200,
    width: int = 64,
) -> str:
    """Milestone 5: it translates captions of Multi30k, with BLEU beside
    the book's; AssertionError where it is too low.
    """
    train, test = captions("train"), captions("test")
    drawn = random.Random(0).sample(train, min(sample, len(train)))
    cutter = Cutter(course, [x for pair in drawn for x in pair], vocab)
    pairs = [(cutter.ids(s), cutter.ids(t)) for s, t in train]
    pad = course["shift_and_pad"]
    torch.manual_seed(0)
    learner = Learner(course, vocab, width, 2 * width, 4, 2)
    learner.learn(
        lambda epoch: (pad(*b) for b in in_batches(pairs, epoch, 64)),
        (0, steps),
        4e-3,
        smoothing=0.1,
    )
    wrote = [
        cutter.pairs.decode(ids)
        for ids in written(
            course, learner.model, [cutter.ids(s) for s, _ in test]
        )
    ]
    hypotheses, references = (
        [TOKEN.findall(line) for line in lines]
        for lines in (wrote, [target for _, target in test])
    )
    bleu = course["bleu"](hypotheses, references)
    book = ledger()["multi30k-cpu"]["metrics"]
    told = (
        f"after {steps:,} steps BLEU is {bleu:.1f} on {len(test):,} new "
        f"captions, and the book's after {book['steps']:,} was "
        f"{book['test']['bleu']:.1f}"
    )
    if not bleu >= LEAST:
        raise AssertionError(f"{told}; it should be at least {LEAST:g}")
    return f"{told}; “{test[0][0]}” becomes “{wrote[0]}”"


def written(
    course: dict[str, Any], model: Any, sources: list[list[int]]
) -> list[list[int]]:
    """What greedy search writes for each source, up to its end."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    found: dict[int, list[int]] = {}
    for start in range(0, len(order), 100):
        some = order[start : start + 100]
        src, _, _ = course["shift_and_pad"](
            [sources[i] for i in some], [[] for _ in some]
        )
        rows = course["greedy"](model, src, 3 * src.size(1) + 5).tolist()
        for place, row in zip(some, rows):
            end = row.index(2) if 2 in row else len(row)
            found[place] = row[:end]
    return [found[i] for i in range(len(sources))]


def parses(
    course: dict[str, Any], steps: int = 600, least: float = 85.0
) -> str:
    """Milestone 6: it parses sentences of Pocket German that it has not
    seen, scored by your brackets; AssertionError where it does not.
    """
    trees = [short_tree(pair) for pair in pocket_pairs(20_000, "train")]
    read = [(_words(t), linearise(t)) for t in trees if t]
    book = Phrasebook.over(read)
    gold = [
        tree
        for pair in pocket_pairs(1000, "test")
        if (tree := short_tree(pair))
    ][:200]
    torch.manual_seed(0)
    learner = Learner(course, len(book.numbers) + 4, 64, 128, 4, 2)
    pad = course["shift_and_pad"]
    learner.learn(
        lambda epoch: (pad(*b) for b in book.batches(epoch)),
        (0, steps),
        3e-3,
    )
    names = {number: word for word, number in book.numbers.items()}
    rows = written(
        course, learner.model, [book.ids(_words(t)) for t in gold]
    )
    guesses = [
        tree_over(_words(tree), [names.get(i, "XX") for i in row])
        for tree, row in zip(gold, rows)
    ]
    control = [right_branching(_words(tree)) for tree in gold]
    right, plain = (
        course["bracket_f1"](
            [as_tuple(tree) for tree in made],
            [as_tuple(tree) for tree in gold],
        )
        for made in (guesses, control)
    )
    told = (
        f"after {steps} steps F1 is {right:.0f} on {len(gold)} new "
        f"sentences, and that of right-branching trees {plain:.0f}"
    )
    if not right >= least:
        raise AssertionError(f"{told}; it should be at least {least:g}")
    return f"{told}; “{gold[0].words()}” becomes {guesses[0]}"


def short_tree(pair: Pair) -> Tree | None:
    """The tree of a German sentence of at most eight words; or None."""
    return pair.source_tree if pair.lengths[0] <= 8 else None


def _words(tree: Tree) -> list[str]:
    return [leaf.word for leaf in tree.leaves()]


def as_tuple(tree: Tree) -> tuple[Any, ...]:
    """A tree as the exercise has it: a label, and children or a word."""
    if not tree.children:
        return tree.label, tree.word
    return (tree.label, *map(as_tuple, tree.children))


MILESTONES = {
    1: equals_torch, 2: reverses_words, 3: copies, 4: translates,
    5: captions_translated, 6: parses,
}  # fmt: skip
FETCHED = {5: "Multi30k"}  # what a milestone needs from elsewhere


def reach(number: int, desk: Desk) -> str:
    """What there is to say of a milestone. Its parts are checked first,
    so that one that is wrong is named, and not what comes of it.
    """
    mine, every = desk.parts(), book_parts()
    yours = f"{len(mine)} of {len(every)} parts are yours"
    for name, part in mine.items():
        alone = redirected(part.code, "annotated", set())  # beside ours
        verdict = examine_source(every[name], alone, str(part.path))
        if verdict.outcome != "passed":
            return (
                f"not reached · milestone {number}: the part that fails is "
                f"{name}, in {part.path}.\n\n{verdict.text}"
            )
    try:
        with assembled(desk) as course:
            found = MILESTONES[number](course)
    except KeyboardInterrupt:
        raise
    except DataError as error:
        return (
            f"not run · milestone {number} needs {FETCHED[number]}, 29,000 "
            f"captions with their translations. {error}"
        )
    except Exception as error:
        where = part_of(error, desk)
        what = f"{type(error).__name__}: {error}"
        by = f"in {where}, " if where else ""
        return f"not reached · milestone {number}: {by}{what} ({yours})"
    if not mine:
        return (
            f"not reached · milestone {number}: no part is yours yet; of "
            f"the book's it is true that {found}"
        )
    return f"reached · milestone {number}: {found} ({yours})"
