"""Is a run still itself when it has left, and how fast is it there?

    pip install onnx onnxscript onnxruntime ctranslate2 transformers
    python benchmarks/exports.py --json book/results/exports.json   # a minute

A run is written in each form that annotated export has, and translates the
same sentences there, greedily, in one thread: by its own search, by ONNX
Runtime with chapter 16's loop, by CTranslate2, and by transformers' generate.
What is not installed is left out, and said.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import tyro
from ledger import write

from annotated.book.results import entry
from annotated.corpora.sentencepieces import vocabulary
from annotated.engine.data import open_data
from annotated.engine.runs import Run
from annotated.exchange.export import export_run
from annotated.tokens import BOS, EOS

NEEDS = {
    "safetensors": (),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "ctranslate2": ("ctranslate2",),
    "transformers": ("transformers",),
}
Ids = list[list[int]]


def as_run(run: Run, folder: Path) -> Callable[[Ids], Ids]:
    again = Run.open(folder)
    search = replace(run.recipe.search, beam=1)

    def translate(sources: Ids) -> Ids:
        lines = run.source.decode(sources)
        found = again.translate(lines, search)
        return again.target.encode([best[0].text for best in found])

    return translate


def by_graphs(run: Run, folder: Path) -> Callable[[Ids], Ids]:
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = 1
    encoder, decoder = (
        InferenceSession(str(folder / f"{name}.onnx"), options)
        for name in ("encoder", "decoder")
    )

    def one(source: list[int]) -> list[int]:
        src = torch.tensor([[*source, EOS]]).numpy()
        memory, ids = encoder.run(None, {"src": src})[0], [BOS]
        while ids[-1] != EOS and len(ids) <= len(source) + 50:
            tgt = torch.tensor([ids]).numpy()
            feed = {"tgt": tgt, "memory": memory, "src": src}
            logits = decoder.run(None, feed)[0][0]
            ids.append(int(logits.argmax()))
        return ids[1:-1]

    return lambda sources: [one(source) for source in sources]


def by_engine(run: Run, folder: Path) -> Callable[[Ids], Ids]:
    import ctranslate2

    engine = ctranslate2.Translator(
        str(folder), device="cpu", intra_threads=1, inter_threads=1
    )
    names, words = vocabulary(run.source), vocabulary(run.target)
    place = {word: i for i, word in enumerate(words)}

    def translate(sources: Ids) -> Ids:
        found = engine.translate_batch(
            [[names[i] for i in ids] for ids in sources],
            beam_size=1, max_batch_size=64,
        )  # fmt: skip
        return [[place[w] for w in one.hypotheses[0]] for one in found]

    return translate


def by_generate(run: Run, folder: Path) -> Callable[[Ids], Ids]:
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()

    def translate(sources: Ids) -> Ids:
        made = []
        for first in range(0, len(sources), 64):
            part = [[*ids, EOS] for ids in sources[first : first + 64]]
            width = max(map(len, part))
            src = torch.tensor([p + [0] * (width - len(p)) for p in part])
            with torch.no_grad():
                out = model.generate(
                    input_ids=src, attention_mask=(src != 0).long(),
                    num_beams=1, do_sample=False,
                )  # fmt: skip
            for row in out.tolist():
                ends = row.index(EOS) if EOS in row else len(row)
                made.append(row[1:ends])
        return made

    return translate


HOW = dict(zip(NEEDS, (as_run, by_graphs, by_engine, by_generate)))


def main(
    *, run: Path = Path("pocket"), sentences: int = 300, rounds: int = 3,
    json: Path | None = None,
) -> None:  # fmt: skip
    """Export, translate, compare, time.

    Args:
        run: the run folder, or the name of one that comes with the package
        sentences: of its test set
        rounds: in which all take turns; the fastest counts
        json: the ledger file to write
    """
    torch.set_num_threads(1)
    whole = Run.open(run)
    src, _ = open_data(whole.recipe).text("test")
    src = src[:sentences]
    sources, found = whole.source.encode(src), {}
    work = Path(tempfile.mkdtemp())
    engines: dict[str, Callable[[Ids], Ids]] = {}
    forms: dict[str, dict[str, Any]] = {}
    for form, packages in NEEDS.items():
        missing = [n for n in packages if not importlib.util.find_spec(n)]
        if missing:
            print(f"{form}: not installed: {', '.join(missing)}")
            continue
        export_run(whole, form, work / form)
        engines[form] = HOW[form](whole, work / form)
        files = [p for p in (work / form).rglob("*") if p.is_file()]
        size = sum(p.stat().st_size for p in files) / 1e6
        forms[form] = {"megabytes": size, "seconds": float("inf")}
    for _ in range(rounds):
        for form, translate in engines.items():
            started = time.process_time()
            found[form] = translate(sources)
            spent = time.process_time() - started
            forms[form]["seconds"] = min(forms[form]["seconds"], spent)
    own = whole.target.decode(found["safetensors"])
    for form, rows in found.items():
        texts = whole.target.decode(rows)
        same = sum(a == b for a, b in zip(texts, own, strict=True))
        forms[form]["same"] = same
        forms[form]["per_second"] = len(src) / forms[form]["seconds"]
        print(form, forms[form])
    if json is not None:
        typed = ["python", "benchmarks/exports.py"]
        typed += [] if str(run) == "pocket" else ["--run", "RUN"]
        write(
            json,
            entry(
                "exports",
                " ".join(typed),
                {"forms": forms, "sentences": len(src)},
                threads=1,
                settings={"run": run.name, "beam": 1, "rounds": rounds},
                packages=sum(NEEDS.values(), ("numpy",)),
            ),
        )


if __name__ == "__main__":
    tyro.cli(main, description=(__doc__ or "").splitlines()[0])
