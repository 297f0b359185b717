"""Train another library's parser on the same trees, score it the same way.

    pip install stanza==1.15.0
    annotated treebank craft.oneline.mrg.xz --out DATA --max-words 40
    python benchmarks/parser_peer.py DATA --json parse-craft-peer.json

Stanza's parser reads the words with a two-way LSTM and builds the tree by
steps, so that nothing but a tree can come out. It starts from random
weights here, without word vectors of others, and reads what ours reads: the
words of DATA, no tags. What benchmarks/parsing.py trains is ours.
"""

from __future__ import annotations

import contextlib
import importlib.util
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any
from unittest import mock

import torch
import tyro
from ledger import typed, write
from parsing import all_and_short, lines

from annotated.book.results import entry
from annotated.corpora.treebanks import read_tree
from annotated.engine.parsing import tree_scores
from annotated.parsing import linearise, tree_over

TAG = "XX"  # over every word: what kind it is, a parser has to find out


@dataclass(frozen=True)
class Settings:
    """Train stanza's constituency parser on a folder of trees."""

    data: Annotated[Path, tyro.conf.Positional]
    """what `annotated treebank` wrote"""
    json: Path | None = None
    """the ledger file to write"""
    minutes: float = 8.0
    """of the processor, to train; validation comes on top"""
    hidden: int = 128
    """width of the LSTMs"""
    words: int = 150
    """width of the words' vectors"""
    batch: int = 30
    """trees in a step"""
    rate: float = 0.002
    """of AdamW at the start; it falls to 0 with the time that is left"""
    piece: int = 2000
    """trees between two looks at validation"""
    valid: int = 200
    """sentences of validation to choose the best moment by"""
    threads: int = 1
    seed: int = 0


def in_brackets(words: str, tokens: str) -> str:
    """A line of DATA as a treebank has it, with one tag for all words."""
    tree = tree_over(words.split(), tokens.split())
    bare = [leaf._replace(label=TAG) for leaf in tree.leaves()]
    return str(tree.over(iter(bare)))


def as_tokens(words: str, tree: Any) -> str:
    """A tree of the library, str() of which is brackets, as a line of
    DATA. ValueError where it stands over other words.
    """
    ours = read_tree(str(tree))
    if ours.words() != words:
        raise ValueError(f"a tree over {ours.words()!r}, not {words!r}")
    return " ".join(linearise(ours)[1:-1])


def scores(
    words: Sequence[str], trees: Sequence[Any], gold: Sequence[str]
) -> dict[str, Any]:
    """What our parser is scored by; the library's scorer needs Java."""
    guesses = [as_tokens(*pair) for pair in zip(words, trees, strict=True)]
    return tree_scores(words, guesses, gold)


class TimeUp(Exception):
    """The minutes are spent."""


class Clock:
    """Stops the training, lowers its rate, and notes how it went."""

    def __init__(self, settings: Settings):
        self.settings, self.spent, self.steps = settings, 0.0, 0
        self.curve: list[tuple[float, float]] = []  # seconds, F1

    def piece(
        self, inner: Any, epoch: int, trainer: Any, *rest: Any
    ) -> Any:
        """A piece of the training, in place of the library's inner."""
        left = 1 - self.spent / (60 * self.settings.minutes)
        if left <= 0:
            raise TimeUp
        for group in trainer.optimizer.param_groups:
            group["lr"] = self.settings.rate * left
        began = time.process_time()
        result = inner(epoch, trainer, *rest)
        self.spent += time.process_time() - began
        self.steps = trainer.batches_trained
        return result

    def process(self, found: Sequence[Any]) -> Any:
        """F1 on validation, in place of the library's scorer."""
        words = [read_tree(str(one.gold)).words() for one in found]
        gold = [as_tokens(*pair) for pair in zip(
            words, (one.gold for one in found), strict=True
        )]  # fmt: skip
        trees = [one.predictions[0].tree for one in found]
        f1 = scores(words, trees, gold)["f1"]
        self.curve.append((self.spent, f1))
        print(f"{self.spent:6.0f} s  F1 {f1:.2f} on validation", flush=True)
        return SimpleNamespace(
            f1=f1, treeF1=[], HasField=lambda name: False
        )


def arguments(settings: Settings, folder: Path) -> list[str]:
    """Of the library's trainer; the treebank is written into folder."""
    for split, count in (("train", None), ("valid", settings.valid)):
        both = (
            lines(settings.data / f"{split}.{side}")
            for side in ("words", "tree")
        )
        trees = [in_brackets(*pair) for pair in zip(*both, strict=True)]
        step = max(1, len(trees) // count) if count else 1
        text = "\n".join(trees[::step][:count]) + "\n"
        (folder / f"{split}.mrg").write_text(text, "utf-8")
    # it wants vectors: one number for one word, 0, says nothing
    (folder / "none.txt").write_text("1 1\nthe 0\n")
    given = {
        "train_file": folder / "train.mrg",
        "eval_file": folder / "valid.mrg",
        "wordvec_pretrain_file": folder / "none.pt",
        "save_dir": folder,
        "save_name": "best.pt",
        "shorthand": "en_craft",
        "tag_embedding_dim": 0,
        "hidden_size": settings.hidden,
        "delta_embedding_dim": settings.words,
        "train_batch_size": settings.batch,
        "epoch_size": settings.piece,
        "epochs": 1_000_000,  # the clock ends it
        "oracle_initial_epoch": 1_000_000,  # it costs time: no errors
        "optim": "adamw",
        "learning_rate": settings.rate,
        "seed": settings.seed,
    }
    named = [word for k, v in given.items() for word in (f"--{k}", str(v))]
    named += ["--cpu", "--no_checkpoint", "--no_check_valid_states"]
    return [*named, "--no_multistage"]  # AdamW from the start


def train(settings: Settings, folder: Path) -> tuple[Any, Clock]:
    """The library's trainer with the weights that were best on validation."""
    from stanza.models import constituency_parser
    from stanza.models.common.pretrain import Pretrain
    from stanza.models.constituency import parser_training
    from stanza.models.constituency.trainer import Trainer

    named = arguments(settings, folder)
    Pretrain(str(folder / "none.pt"), str(folder / "none.txt")).load()
    random.seed(settings.seed)
    torch.manual_seed(settings.seed)
    clock, inner = Clock(settings), parser_training.train_model_one_epoch

    @contextlib.contextmanager
    def scorer(kbest: int | None = None) -> Iterator[Clock]:
        yield clock

    chosen = constituency_parser.parse_args(named)
    with (
        mock.patch.object(parser_training, "EvaluateParser", scorer),
        mock.patch.object(
            parser_training,
            "train_model_one_epoch",
            lambda *given: clock.piece(inner, *given),
        ),
        # a label that only validation has is an error to it
        mock.patch.object(parser_training, "verify_transitions"),
        contextlib.suppress(TimeUp),
    ):
        parser_training.train(chosen, None, None)
    none = {"wordvec_pretrain_file": str(folder / "none.pt")}
    return Trainer.load(chosen["save_name"], none), clock


def tested(trainer: Any, data: Path) -> dict[str, Any]:
    """Of all test sentences, and of the short ones."""
    words, gold = (
        lines(data / f"test.{side}") for side in ("words", "tree")
    )
    began = time.process_time()
    sentences = [[(word, TAG) for word in line.split()] for line in words]
    trees = trainer.model.parse_tagged_words(sentences, 50)
    seconds = time.process_time() - began
    guesses = [as_tokens(*pair) for pair in zip(words, trees, strict=True)]
    return {
        "search_seconds": seconds,
        **all_and_short("test", words, guesses, gold),
    }


def main(settings: Settings) -> int:
    """Train, score, write; 2 where the library is not installed."""
    if importlib.util.find_spec("stanza") is None:
        print(
            "this needs stanza: pip install stanza==1.15.0", file=sys.stderr
        )
        return 2
    torch.set_num_threads(settings.threads)
    sys.setrecursionlimit(100_000)  # its first trees are very deep
    with tempfile.TemporaryDirectory() as name:
        trainer, clock = train(settings, Path(name))
        told = tested(trainer, settings.data)
    weights = trainer.model.parameters()
    trees = len(lines(settings.data / "train.tree"))
    metrics = {
        "steps": clock.steps,
        "epochs": round(clock.steps * settings.batch / trees, 2),
        "seconds": clock.spent,
        "parameters": sum(w.numel() for w in weights if w.requires_grad),
        "best": max(clock.curve, key=lambda point: point[1])[0],
        "valid_curve": clock.curve,
        **told,
    }
    print(metrics["parameters"], "parameters", told["test"])
    if settings.json:
        given = asdict(settings)
        del given["data"], given["json"]
        told_as = replace(settings, data=Path("DATA"))
        write(
            settings.json,
            entry(
                "stanza constituency parser",
                typed("parser_peer.py", told_as),
                metrics,
                seed=settings.seed,
                settings=given,
                packages=("numpy", "stanza"),
                threads=settings.threads,
                about="another library's parser on the same trees",
            ),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Settings)))
