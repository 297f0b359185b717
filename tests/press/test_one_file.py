"""The model, its training and its search as one file, beside the package."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from annotated.model import Transformer, TransformerConfig
from annotated.search import SearchConfig, plain_beam_search
from annotated.training import Trainer, TrainingConfig, copy_corpus
from press.chapters import PressError
from press.one_file import one_file
from tests.helpers import ROOT, SHAPE

from .conftest import Book, code, exported


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one") / "transformer.py"
    path.write_text(one_file(ROOT), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def alone(path: Path) -> ModuleType:
    """The file, as a module."""
    spec = importlib.util.spec_from_file_location("transformer", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["transformer"] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


def two(alone: ModuleType, **fields: object) -> tuple[Transformer, object]:
    """A model of the package, and the file's with its weights."""
    shape = {**SHAPE, "dropout": 0.0, **fields}
    torch.manual_seed(0)
    ours = Transformer(TransformerConfig(**shape))
    other = alone.Transformer(alone.TransformerConfig(**shape))
    other.load_state_dict(ours.state_dict())
    return ours, other


def test_it_imports_nothing_but_torch_and_what_python_has(path: Path):
    tree = ast.parse(path.read_text("utf-8"))
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module)
    tops = {name.partition(".")[0] for name in modules}
    assert tops - {*sys.stdlib_module_names} == {"torch"}


def test_it_is_short_enough_to_be_read(path: Path):
    """Docstrings, comments and blank lines do not count."""
    text = path.read_text("utf-8")
    told = {
        row
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        for row in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    code = [x for i, x in lines if x and x[0] != "#" and i not in told]
    assert 500 < len(code) < 600


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"norm": "pre", "tie": "none", "output_bias": True},
        {"positions": "learned", "window": 3},
    ],
    ids=["paper", "pre", "learned"],
)
def test_its_logits_are_the_packages(alone: ModuleType, fields):
    ours, other = two(alone, **fields)
    corpus = copy_corpus(9, vocab=12, length=7)
    rows = [(list(s), list(t)) for s, t in zip(corpus.src, corpus.tgt)]
    batch, theirs = corpus.batch(range(9)), alone.make_batch(rows)
    for name in ("src", "tgt", "labels"):
        assert torch.equal(getattr(batch, name), getattr(theirs, name))
    logits = ours(batch.src, batch.tgt)
    assert torch.equal(logits, other(theirs.src, theirs.tgt))


def test_its_losses_are_those_of_the_packages_trainer(alone: ModuleType):
    ours, other = two(alone)
    corpus = copy_corpus(60, vocab=12)
    config = TrainingConfig(
        batch_tokens=100,
        max_steps=6,
        warmup=2,
        rate=0.6,
        cooldown=3,
        clip=0.5,
    )
    trainer = Trainer(ours, corpus, config)
    plans = [*trainer.plan(0), *trainer.plan(1)]
    given = map(corpus.batch, plans)
    losses = alone.train(other, given, 6, 2, rate=0.6, cooldown=3, clip=0.5)
    assert [progress.loss for progress in trainer.steps()] == [*losses]


@pytest.mark.parametrize("width", [1, 3])
def test_its_hypotheses_are_the_packages(alone: ModuleType, width: int):
    ours, other = two(alone)
    fields = {"beam": width, "nbest": width, "limit": 6}
    for src in ([4, 5, 6], [11, 7]):
        found = plain_beam_search(ours, src, SearchConfig(**fields))
        theirs = alone.plain_beam_search(
            other, src, alone.SearchConfig(**fields)
        )
        told = [(h.ids, h.log_probability, h.score) for h in theirs]
        assert told == [(h.ids, h.log_probability, h.score) for h in found]


def test_its_batches_hold_every_pair_once_an_epoch(alone: ModuleType):
    pairs = alone.copy_pairs(50, seed=3)
    given, seen = alone.batches(pairs, batch_tokens=40), []
    while len(seen) < len(pairs):
        batch = next(given)
        assert batch.src.numel() <= 40 or len(batch.src) == 1
        seen += [[i for i in row if i > 2] for row in batch.src.tolist()]
    assert sorted(seen) == sorted(src for src, _ in pairs)


def test_what_needs_more_than_torch_is_refused_by_its_place(book: Book):
    book.chapter(
        "02-one",
        exported(
            "import numpy as np\n\n\ndef mean(x):\n    return np.mean(x)"
        ),
        module="one",
    )
    book.chapter(
        "E33-one-file",
        code(
            "from annotated.one import mean\n\n\ndef main():\n    mean([1])",
            "one-file",
        ),
    )
    with pytest.raises(PressError, match="02-one.*mean needs numpy"):
        one_file(book.root)


@pytest.mark.exhaustive
def test_it_learns_the_copy_task_by_itself(path: Path):
    done = subprocess.run(
        [
            sys.executable,
            "-P" if sys.version_info >= (3, 11) else "-s",
            path,
        ],
        capture_output=True,
        text=True,
        cwd=path.parent,
    )
    assert "100 of 100 unseen sequences copied" in done.stdout, done.stderr
