"""The model that stands in the page of chapter 19, beside the package.

    python benchmarks/in_page.py [--sentences 200]

takes the figure out of the executed page (`make book` first), gives its
weights to the package's model, and lets both translate unseen sentences,
greedily and with a beam of 4: node runs the page's own script. It prints
how many answers are equal and how long the page's take (the processor's
time too, for a machine that has other work), and exits with 1 where one
differs.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from annotated.engine.machine import evaluating
from annotated.model import Transformer, TransformerConfig
from annotated.pocket import pocket_pairs
from annotated.search import SearchConfig, plain_beam_search
from annotated.tokens import UNK

ROOT = Path(__file__).resolve().parents[1]
MOVING = ROOT / "annotated" / "book" / "moving"
PAGE = ROOT / "build" / "executed" / "19-pocket-german.ipynb"
SCRIPT = """
import { readFileSync } from "node:fs";
import * as engine from %(engine)s;
import { answer } from %(translate)s;
const { config, layout, german, english, large, texts } =
  JSON.parse(readFileSync(process.argv[2], "utf-8"));
const bytes = new Uint8Array(Buffer.from(large, "base64"));
const net = new engine.Transformer(config, layout, engine.halves(bytes));
const found = texts.map((text) => {
  const start = performance.now(), used = process.cpuUsage();
  const { said, beam, maps } = answer(engine, net, german, english, { text });
  const off = Math.max(...Object.values(maps).flat(2)
    .map((row) => Math.abs(row.reduce((a, b) => a + b, 0) - 1)));
  const { user, system } = process.cpuUsage(used);
  return { said, beam, off, ms: performance.now() - start, cpu: (user + system) / 1000 };
});
console.log(JSON.stringify(found));
"""


def figure_of(page: Path) -> dict[str, Any]:
    """The data of the figure that translates, with its weights."""
    for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            html = "".join(output.get("data", {}).get("text/html", ""))
            if "moves-translate" in html:
                data = re.search(r'moves-data">([^<]*)<', html)
                large = re.search(r'moves-large">([^<]*)<', html)
                assert data and large
                return json.loads(data[1]) | {"large": large[1]}
    raise SystemExit(f"{page} has no figure that translates")


def model_of(figure: dict[str, Any]) -> Transformer:
    """The package's model with the weights of the page."""
    model = Transformer(TransformerConfig(**figure["config"]))
    raw = base64.b64decode(figure["large"])
    numbers = torch.from_numpy(np.frombuffer(raw, "<f2").astype("f4"))
    named, start = dict(model.named_parameters()), 0
    for name, shape in figure["layout"]:
        size = int(np.prod(shape))
        with torch.no_grad():
            named[name].copy_(numbers[start : start + size].view(shape))
        start += size
    return model


def by_python(figure: dict[str, Any], texts: list[str]) -> list[list[str]]:
    """What the package answers, greedily and with a beam of 4."""
    model, found = model_of(figure), []
    german = {word: i for i, word in enumerate(figure["german"])}
    with evaluating(model):
        for text in texts:
            src = [german.get(word, UNK) for word in text.split()]
            found.append(
                [
                    " ".join(figure["english"][i] for i in best.ids)
                    for config in (SearchConfig(beam=1), SearchConfig())
                    for best in plain_beam_search(model, src, config)[:1]
                ]
            )
    return found


def by_node(figure: dict[str, Any], texts: list[str]) -> list[Any]:
    """What the page answers, and the milliseconds that it takes."""
    with tempfile.TemporaryDirectory() as folder:
        given, script = Path(folder, "given.json"), Path(folder, "run.mjs")
        given.write_text(json.dumps(figure | {"texts": texts}))
        places = {
            name: json.dumps((MOVING / f"{name}.mjs").as_uri())
            for name in ("engine", "translate")
        }
        script.write_text(SCRIPT % places, encoding="utf-8")
        done = subprocess.run(
            ["node", script, given],
            capture_output=True,
            check=True,
            text=True,
            encoding="utf-8",
        )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sentences", type=int, default=200)
    count = parser.parse_args().sentences
    figure = figure_of(PAGE)
    texts = [pair.source for pair in pocket_pairs(count, "test")]
    ours, theirs = by_python(figure, texts), by_node(figure, texts)
    greedy = sum(a == b["said"] for (a, _), b in zip(ours, theirs))
    beams = sum(a == b["beam"] for (_, a), b in zip(ours, theirs))
    print(f"greedy: {greedy} of {count} answers equal, beam of 4: {beams}")
    off = max(one["off"] for one in theirs)
    print(f"rows of maps sum to 1 within {off:.0e}")
    for kind, name in (("ms", "clock"), ("cpu", "processor")):
        took = sorted(one[kind] for one in theirs)
        print(
            f"the page's answer, both searches and all maps, by the {name}: "
            f"median {took[count // 2]:.0f} ms, largest {took[-1]:.0f} ms"
        )
    numbers = len(base64.b64decode(figure["large"])) // 2
    print(
        f"{numbers:,} weights, {len(figure['large']) / 1e6:.2f} MB to load"
    )
    sys.exit(greedy + beams < 2 * count)


if __name__ == "__main__":
    main()
