"""Every mistake of a user is answered with one line and exit code 2."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from annotated.cli import main
from annotated.engine.recipes import RECIPES
from tests.helpers import content
from tests.lines import words


def command(line: str) -> int:
    """Give a command line to main; its exit code."""
    argv, stdin = sys.argv, sys.stdin
    sys.argv = ["annotated", *words(line)]
    sys.stdin = io.TextIOWrapper(io.BytesIO(b"a b\n"))
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv, sys.stdin = argv, stdin
    return 0


@pytest.fixture(scope="module")
def place(
    finished: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A folder with a run, and with many things that are none."""
    folder = tmp_path_factory.mktemp("mistakes")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ANNOTATED_DATA", str(folder / "data"))
        patch.setattr("annotated.corpora.fetch._PAUSES", ())
        shutil.copytree(finished, "run")
        recipe = json.loads(Path("run/recipe.json").read_text())
        for name, text in {
            "begun/recipe.json": json.dumps(recipe),
            "broken/recipe.json": json.dumps(recipe)[:100],
            "other/recipe.json": json.dumps({"a": 1}),
            "list/recipe.json": "[]",
            "short.txt": "a b\nb c\n",
            "text.txt": "".join(f"word{i} a b\n" for i in range(300)),
            "empty": "",
            "pair/train.de": "eins zwei\n" * 30,
            "pair/train.en": "one two\n" * 30,
            "pair/valid.de": "eins\n",
            "pair/valid.en": "one\n",
            "unlike/train.de": "eins\n" * 3,
            "unlike/train.en": "one\n" * 2,
            "some/train.de": "eins\n",
            "prepared/corpus.json": "{}",
            "bank/a.mrg": "(S (NP (NN it)))",
            "open.mrg": "(S (NP (NN it))",
        }.items():
            path = Path(name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        for name in ("source.json", "target.json"):
            Path("begun", name).write_bytes(Path("run", name).read_bytes())
        Path("folder").mkdir()
        Path("binary").write_bytes(b"a\n\xff\xfe\0\n")
        yield folder


WRONG = {  # for each field of a recipe, a value that it cannot have
    "vocab": "0", "train-pairs": "-1", "valid-pairs": "0",
    "tokenizer": "x", "num-encoder-layers": "0", "num-decoder-layers": "1.5",
    "d-model": "wide", "d-ff": "''", "num-heads": "nan", "d-k": "0",
    "d-v": "x", "dropout": "1", "attention-dropout": "nan",
    "activation": "tanh", "activation-dropout": "-0.1", "norm": "mid", "positions": "''",
    "tie": "3", "window": "0", "max-len": "1e3", "batch-tokens": "0",
    "max-steps": "-1", "warmup": "0", "rate": "inf", "cooldown": "-1",
    "label-smoothing": "1", "clip": "0", "seed": "-1", "micro-tokens": "0",
    "precision": "float8", "max-minutes": "nan", "curriculum": "-1",
    "save-every": "0", "save-minutes": "-2", "keep": "0", "beam": "0",
    "alpha": "-1", "extra": "x", "nbest": "0", "limit": "0",
    "init": "nowhere", "freeze": "heads", "old-data": "nowhere --train-pairs 99",
    "loss": "none", "schedule": "none", "optimizer": "none", "parts": "nowhere.py", "batching": "none", "approximate": "erf",
    "windows": "-1", "bpe-dropout": "1", "num-kv-heads": "0", "norm-kind": "batch",
}  # fmt: skip
LINES = [
    "trane", "recipes copy", "recipes --x",
    # data
    "data", "data fetch", "data list x", "data show", "data show nowhere",
    "data show folder", "data show short.txt", "data show prepared",
    "data prepare", "data prepare nowhere --out o",
    "data prepare folder --out o", "data prepare pocket",
    "data prepare short.txt --out o",
    "data prepare folder --source de --target en --out o",
    "data prepare some --source de --target en --out o",
    "data prepare unlike --source de --target en --out o",
    "data prepare pair --source de --target xx --out o",
    "data prepare pair --out o",
    "data prepare pair --src short.txt --out o",
    "data prepare pair --src nowhere --tgt short.txt --out o",
    "data prepare pair --src short.txt --tgt nowhere --out o",
    "data prepare pair --src folder --tgt short.txt --out o",
    "data prepare pair --src empty --tgt short.txt --out o",
    "data prepare pair --src binary --tgt short.txt --out o",
    "data prepare pair --src text.txt --tgt short.txt --out o",
    "data prepare pair --src text.txt --tgt text.txt --out run",
    "data prepare pair --src text.txt --tgt text.txt --out short.txt",
    "data prepare pair --src text.txt --tgt text.txt --out short.txt/o",
    "data prepare pair --src text.txt --tgt text.txt --out o --valid a",
    "data prepare pair --src text.txt --tgt text.txt --out o --valid a b",
    *(
        f"data prepare pair --src text.txt --tgt text.txt --out o --{wrong}"
        for wrong in (
            "vocab 0", "vocab -1", "vocab 100", "vocab x", "vocab-pairs 0",
            "vocab-pairs -3", "vocab-pairs x", "min-words -1",
            "min-words 0", "min-words 9", "max-words 0", "max-words x",
            "ratio 0", "ratio -1", "ratio nan", "ratio x", "hold-out 0",
            "hold-out 2", "hold-out -5", "hold-out x", "hold-out 100000",
            "tokenizer cap", "lower 3", "source ''", "target ..",
            "target a/b", "vocba 100",
        )
    ),
    *(
        f"data prepare pair --src text.txt --tgt text.txt --source a --target b --out o --{wrong}"
        for wrong in (
            "mono text.txt", "back run", "back-tag x", "mono text.txt --back nowhere",
            "mono nowhere --back run", "mono text.txt --back begun",
            "mono binary --back run", "mono text.txt text.txt --back run",
            "mono text.txt --back run --weights 1",
            "mono text.txt --back run --back-tag x",
            "mono text.txt --back run --back-beam 0",
        )
    ),
    # train
    "train cpoy --out o", "train copy", "train copy --out",
    "train copy --out o y", "train copy --out o --layers 3",
    "train copy --out short.txt", "train copy --out run",
    "train copy --out short.txt/o", "train copy --out o --data nowhere",
    "train copy --out o --data short.txt", "train copy --out o --data ''",
    "train copy --out o --data folder", "train copy --out o --data pair",
    "train copy --out o --data prepared", "train pair --out o",
    "train pair --out o --data some --source de --target en",
    "train pair --out o --data unlike --source de --target en",
    "train pair --out o --data pair --source de --target en --vocab 100",
    "train pair --out o --data pair --source de --target fr",
    "train multi30k --out o", "train wmt14-en-de-base --out o",
    "train parse-wsj --out o", "train pocket --out o --source fr",
    "train copy --out o --source de",
    "train pocket --out o --vocab 3 --train-pairs 300",
    "train copy --out folder --resume", "train copy --out nowhere --resume",
    "train copy --out broken --resume", "train copy --out other --resume",
    "train copy --out list --resume", "train copy --out short.txt --resume",
    "train reverse --out run --resume", "train copy --resume",
    "train copy --out run --resume --d-model 32",
    "train copy --out o --device tpu", "train copy --out o --device ''",
    "train copy --out o --device cpu:9:9", "train copy --out o --shard",
    "train copy --out o --device cuda:99", "train copy --out o --resum",
    "train copy --out o --dry-run 3", "train copy --out o --d-model 7",
    "train copy --out o --seed 9223372036854775808",
    "train copy --out o --fit about", "train copy --out o --about",
    "train copy --out o --nbest 5 --beam 4", "train copy --dry-run --shape",
    "train pair --data pair --source de --target en --out o --tie x",
    "train copy --out o --positions learned --max-len 3 --train-pairs 99",
    *(
        f"train copy --out o --{name} {wrong}"
        for name, wrong in WRONG.items()
    ),
    # translate, evaluate, parse
    *(
        f"{name} --run {run} {rest}"
        for name, rest in (
            ("translate", ""), ("evaluate", "--split test"), ("parse", ""),
            ("average", "--out o"), ("export", "--to onnx --out o"),
        )
        for run in (
            "nowhere", "folder", "short.txt", "broken", "other", "list",
            "begun", "''",
        )
    ),
    "translate", "evaluate", "parse", "average", "export",
    "evaluate --run run", "parse --run run",
    *(
        f"translate --run run --{wrong}"
        for wrong in (
            "beam 0", "beam x", "alpha nan", "alpha -1", "extra 0",
            "extra x", "device tpu", "precision float8", "workers 0",
            "workers -1", "workers x", "workers 1.5", "nbest 0", "nbest 9",
            "batch-tokens 0", "batch-tokens x", "ensemble nowhere",
            "ensemble folder", "ensemble broken", "jsno", "rum x",
        )
    ),
    *(
        f"evaluate --run run --{wrong}"
        for wrong in (
            "split foo", "split trian", "split ''", "src short.txt",
            "ref short.txt", "split test --ref short.txt",
            "src nowhere --ref short.txt", "src short.txt --ref nowhere",
            "src folder --ref short.txt", "src empty --ref empty",
            "src binary --ref short.txt", "src short.txt --ref text.txt",
            "split test --against nowhere", "split test --against folder",
            "split test --against short.txt", "split test --beam 0",
            "split test --save short.txt/x", "split test --save folder",
        )
    ),
    "score", "score --run run", "score --run nowhere --src text.txt",
    *(
        f"score --run run --{wrong}"
        for wrong in (
            "src short.txt", "src nowhere --tgt short.txt",
            "src short.txt --tgt text.txt", "src empty --tgt empty",
            "src binary --tgt binary", "src folder --tgt short.txt",
            "src short.txt --tgt short.txt --beam 2",
            "src short.txt --tgt short.txt --alpha -1",
            "src short.txt --tgt short.txt --batch-tokens 0",
            "src short.txt --tgt short.txt --columns 1 2",
            "src short.txt --columns 1 9", "src short.txt --columns x y",
            "src short.txt --tgt short.txt --tag x",
            "src short.txt --tgt short.txt --ensemble nowhere",
        )
    ),
    "serve", "serve --run nowhere --port 0", "serve --run run --text x",
    *(
        f"serve --run run --{wrong}"
        for wrong in (
            "port x", "port 99999", "port 0 --nbest 9", "port 0 --wait -1",
            "port 0 --batch-tokens 0", "port 0 --workers 2", "port 0 --host 192.0.2.1",
        )
    ),
    "adapt", "adapt --src text.txt --tgt text.txt --out o",
    *(
        f"adapt --src text.txt --tgt text.txt --out o --{wrong}"
        for wrong in (
            "run nowhere", "run broken", "run run --published folder",
            "published folder", "run run --minutes x", "run run --to pdf",
            "run run --hold-out 0", "run run --valid a",
        )
    ),
    # average, export
    "average --run run --out o --last 0", "average --run run --out o --best x",
    "average --run run --out o --last 9", "average --run run --out run",
    "average --run run --out o --last 1 --best 1",
    "average --run run --out short.txt", "average --run run --out short.txt/o",
    "export --run run --to pdf --out o", "export --run run --to onnx",
    "export --run run --to safetensors --out run",
    "export --run run --to safetensors --out short.txt",
    "export --run run --to safetensors --out short.txt/o",
    # sweep, treebank
    "sweep", "sweep table3", "sweep --minutes x", "sweep --minutes 0",
    "sweep --minutes -1", "sweep --minutes nan",
    "sweep --minutes 1 --only nothing", "sweep --minutes 1 --out short.txt",
    "sweep --minutes 1 --seeds 0", "sweep --minutes 1 --steps 0",
    "sweep --minutes 1 --first-seed -1", "sweep --minutes 1 --device tpu",
    "treebank", "treebank nowhere --out o", "treebank folder --out o",
    "treebank short.txt --out o", "treebank binary --out o",
    "treebank empty --out o", "treebank open.mrg --out o",
    "treebank bank --out o", "treebank bank", "treebank bank --out run",
    "treebank bank --out short.txt",
    *(
        f"treebank bank --out o --{wrong}"
        for wrong in (
            "vocab 0", "vocab -1", "vocab x", "max-words 0", "max-words -1",
            "withhold 2", "withhold -1", "withhold nan", "withhold x",
            "silver nowhere", "silver folder", "silver short.txt",
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_wrong_line_is_answered_with_one_line_and_code_2(
    place: Path, capfd: pytest.CaptureFixture[str], line: str
) -> None:
    before = content(place)
    code = command(line)
    said = capfd.readouterr()
    assert (code, said.out) == (2, ""), said
    *notes, complaint = said.err.splitlines()
    assert complaint.startswith("annotated: "), said.err
    assert len(complaint) < 400, complaint
    # what is measured before, or typed by adapt, has a line of its own
    told = ("precision ", "searching in ", "annotated ")
    assert all(note.startswith(told) for note in notes), notes
    assert content(place) == before


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("trian copy", "did you mean train or treebank?"),
        ("translate", "translate: missing: --run"),
        ("train cpoy --out o", "did you mean copy?"),
        ("train multi3k --out o", "did you mean multi30k?"),
        ("train copy --out o --data pokcet", "did you mean pocket?"),
        ("data show iwslt", "did you mean iwslt"),
        ("data prepare multi30 --out o", "did you mean multi30k?"),
        ("train copy --out o --d-modle 3", "did you mean --d-model?"),
        ("translate --run run --jsno", "did you mean --json"),
        ("data prepare pair --vocba 3", "did you mean --vocab"),
        ("evaluate --run run --split trian", "it has train, valid, test"),
        ("data lst", "did you mean list?"),
        ("data fetch", "use list, show, prepare"),
        ("data", "data: give one of list, show, prepare"),
        ("train copy --out o --d-model wide", "--d-model: invalid int"),
        ("train copy --out", "argument --out: expected one argument"),
        ("exercises --form x", "did you mean --from?"),
        ("export --run x --out y --to pdf", "choose from"),
        (
            "data prepare pair --src a --tgt b --src=c --out o",
            "data: --src is given twice: write --src A B",
        ),
        (
            "train copy --out o --max-steps 1 --max_steps=2",
            "train copy: --max-steps is given twice: omit one",
        ),
        ("translate --run a --json --json", "--json is given twice: omit"),
        ("train xyz --out o", "annotated recipes lists them"),
        ("data show xyz", "annotated data list lists them"),
    ],
)
def test_what_may_have_been_meant_is_said(
    place: Path, capfd: pytest.CaptureFixture[str], line: str, meant: str
) -> None:
    assert command(line) == 2
    assert meant in capfd.readouterr().err


def test_each_field_of_a_recipe_has_a_wrong_value() -> None:
    names = {name.replace("_", "-") for name in RECIPES["copy"].flat()}
    free = {"about", "data", "source", "target", "fit", "compile"}
    free |= {"output-bias", "qk-norm", "gated"}  # switches, as compile is
    assert WRONG.keys() == names - free
