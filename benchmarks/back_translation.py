"""German captions without their English: what do they teach a translator?

    python benchmarks/back_translation.py --work WORK \\
        --json book/results/back-translation.json

The first captions of Multi30k are the real pairs; of the others the German
side alone is given. A reverse run, German to English, is trained on the real
pairs; annotated data prepare pair --mono --back has it translate the others.
English to German is then trained three times with each seed, one model, for
the same steps, its best checkpoint kept: on the real pairs alone, with the
translations, and, as the most that they could do, with the captions' own
English in their place. ANNOTATED_DATA has multi30k/. One thread; an hour. It
can be stopped, and goes on.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from ledger import annotated, typed, write

from annotated.book.results import entry
from annotated.corpora.pairs import load_pairs
from annotated.corpora.prepare import Prepared

MODEL = [  # as it is fitted to so few pairs and some minutes
    "--num-encoder-layers", "2", "--num-decoder-layers", "2",
    "--d-model", "128", "--d-ff", "512", "--num-heads", "4",
    "--dropout", "0.2", "--batch-tokens", "1500",
]  # fmt: skip
ARMS = "real pairs alone", "with translations", "with real sources"


@dataclass(frozen=True)
class Settings:
    """Write the texts, train, translate back, train again, score."""

    work: Path | None = None  # a folder for texts and runs; again: goes on
    pairs: int = 5000  # real pairs
    mono: int | None = None  # German captions more (unset: all others)
    sentences: int = 1000  # to score
    steps: int = 2500  # of each training
    seeds: int = 3
    weight: int = 2  # how often an epoch has the real pairs
    json: Path | None = None  # the ledger file to write


def files(folder: Path, name: str, sides: list[list[str]]) -> list[str]:
    """Two files, NAME.en and NAME.de: their paths."""
    paths = []
    for language, lines in zip(("en", "de"), sides):
        path = folder / f"{name}.{language}"
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        paths.append(str(path))
    return paths


def train(folder: Path, data: Path, steps: int, seed: int = 0) -> None:
    """Train into a folder, go on in it, or leave it if it is done."""
    if (folder / "summary.json").exists():
        return
    if (folder / "recipe.json").exists():
        annotated("train", "pair", "--out", str(folder), "--resume")
        return
    warmup = steps // 6
    annotated(
        "train", "pair", "--data", str(data), "--out", str(folder), *MODEL,
        "--max-steps", str(steps), "--warmup", str(warmup),
        "--rate", f"{0.034 * warmup**0.5:.3f}",  # the same peak for any steps
        "--cooldown", str(2 * steps // 5), "--save-every", str(steps // 10),
        "--max-minutes", "None", "--seed", str(seed),
    )  # fmt: skip


def prepare(out: Path, src: list[str], tgt: list[str], *more: str) -> None:
    """One line of data prepare pair."""
    annotated(
        "data", "prepare", "pair", "--src", *src, "--tgt", *tgt, *more,
        "--out", str(out), "--json",
    )  # fmt: skip


def main(settings: Settings) -> None:
    work = settings.work or Path("back-work")
    work.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    begin = time.perf_counter()
    en, de = load_pairs("multi30k", "train", "en", "de")
    few = settings.pairs
    end = None if settings.mono is None else few + settings.mono
    real = files(work, "real", [en[:few], de[:few]])
    rest = files(work, "more", [en[few:end], de[few:end]])
    valid, test = (
        files(work, split, [side[: settings.sentences] for side in sides])
        for split in ("valid", "test")
        for sides in [load_pairs("multi30k", split, "en", "de")]
    )

    reverse = work / "reverse"
    held = ["--valid", *valid[::-1], "--test", *test[::-1]]
    prepare(work / "data-reverse", real[1:], real[:1], *held)
    train(reverse, work / "data-reverse", settings.steps)
    back = annotated(
        "evaluate", "--run", str(reverse), "--src", test[1], "--ref", test[0], "--json",
    )  # fmt: skip

    data = {arm: work / f"data-{i}" for i, arm in enumerate(ARMS)}
    held = ["--valid", *valid, "--test", *test]
    weights = ["--weights", str(settings.weight), "1"]
    prepare(data[ARMS[0]], real[:1], real[1:], *held)
    translating = time.perf_counter()
    prepare(
        data[ARMS[1]], real[:1], real[1:], *held, *weights,
        "--mono", rest[1], "--back", str(reverse),
    )  # fmt: skip
    translating = time.perf_counter() - translating
    # the same German, with what people wrote in English
    prepare(
        data[ARMS[2]], [real[0], rest[0]], [real[1], rest[1]],
        *weights, "--hold-out", "100",
    )  # fmt: skip

    scores: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for seed in range(settings.seeds):
        runs = [work / f"run-{i}-{seed}" for i in range(len(ARMS))]
        for arm, run in zip(ARMS, runs):
            train(run, data[arm], settings.steps, seed)
            found = annotated(
                "evaluate", "--run", str(run), "--src", test[0], "--ref", test[1],
                "--against", str(runs[0]), "--json",
            )  # fmt: skip
            each = {name: found[name] for name in ("bleu", "chrf")}
            each |= {
                f"difference_{end}": found["against"]["bleu_difference"][
                    end
                ]
                for end in ("low", "high")
            }
            scores[arm].append(each)
            print(arm, seed, each, flush=True)
    card = Prepared.open(data[ARMS[1]]).manifest["splits"]["train"]
    metrics = {
        "scores": scores,
        "reverse": back["bleu"],
        "translations": sum(p["pairs"] for p in card["parts"] if p["tag"]),
        "dropped": card["dropped"],
        "signature": back["signature"],
    }
    print(metrics, f"translated in {translating:.0f} s")
    if settings.json:
        chosen = {
            "pairs": settings.pairs,
            "mono": len(de[few:end]),
            "sentences": settings.sentences,
            "steps": settings.steps,
            "seeds": settings.seeds,
            "weight": settings.weight,
        }
        command = typed("back_translation.py", settings)
        write(
            settings.json,
            entry(
                "back-translation", command.replace(str(work), "WORK"), metrics,
                threads=1, wall_seconds=time.perf_counter() - begin, settings=chosen,
                packages=("numpy", "tokenizers", "sacrebleu"),
            ),
        )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Settings, description=(__doc__ or "").splitlines()[0]))
