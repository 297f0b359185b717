"""Does torch.compile learn what it should, in each version of torch?

    python benchmarks/compile_versions.py --out compile-versions.json
    python benchmarks/compile_versions.py --out F --versions 2.11.0 --keep
    python benchmarks/compile_versions.py --out F --python A/bin/python

For each version an environment is made, with pip and in --folder, asked, and
deleted; --python asks environments that are there. A small model of each
kind computes the gradients of all its parameters as it is and compiled, as
annotated train --compile does before its first step (page E2). The file, in
the form of book/results, is written after every answer, and a call that
finds some goes on behind them (of the newest, by its number). --index names where pip looks for torch, such
as https://download.pytorch.org/whl/cpu.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

VERSIONS = "2.3.1", "2.6.0", "2.9.0", "2.11.0", "2.13.0", "newest"
KINDS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "pre-norm": {"norm": "pre", "positions": "learned"},
    "chapter 26's": {
        "positions": "rotary", "num_kv_heads": 2, "qk_norm": True,
        "gated": True, "norm_kind": "rms", "activation": "silu",
    },
    "scores by distance": {"positions": "relative"},
    "windows": {"windows": (4, 0)},
}  # fmt: skip
PRECISIONS = "float32", "bfloat16"


def main(args: list[str] | None = None) -> int:
    """Ask all versions; 1 if one of them is wrong or could not answer."""
    found = parse(args)
    if found.ask:
        return answer(found)
    known = read(found.out)
    for python in found.python:
        put(found, known, version_of(python), python)
    for version in () if found.python else found.versions:
        if complete(known.get(version), found):
            print(f"{version}: known")
            continue
        place = found.folder / version
        try:
            python = environment(place, version, found.index)
            number = version
            if version == "newest":
                number = version_of(python)
                known.pop(version, None)  # what a call before could not do
            put(found, known, number, python)
        except (OSError, subprocess.CalledProcessError) as error:
            known[version] = {"error": trouble(error)}
            save(found, known)
        if not found.keep:
            shutil.rmtree(place, ignore_errors=True)
    for version, told in known.items():
        print(f"{version}: {summary(told)}")
    return int(any(summary(told) != "right" for told in known.values()))


def parse(args: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--versions", nargs="+", default=[*VERSIONS])
    parser.add_argument("--python", nargs="+", default=[])
    parser.add_argument("--kinds", nargs="+", default=[*KINDS])
    parser.add_argument("--precisions", nargs="+", default=[*PRECISIONS])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, default=Path("environments"))
    parser.add_argument("--index", help="where pip looks for torch")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument(
        "--ask", action="store_true", help="here, and print"
    )
    found = parser.parse_args(args)
    if not found.out and not found.ask:
        parser.error("--out is missing")
    return found


def trouble(error: BaseException) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


# --- one version ----------------------------------------------------------


def environment(place: Path, version: str, index: str | None) -> str:
    """The interpreter of a new environment with this torch."""
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = str(
        place / ("Scripts" if os.name == "nt" else "bin") / "python"
    )
    torch = "torch" if version == "newest" else f"torch=={version}"
    old = ["numpy<2"] if version.startswith(("2.3", "2.4")) else []
    pip = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    more = ["--index-url", index] if index else []
    subprocess.run([*pip, torch, *more], check=True)
    subprocess.run([*pip, torch, *old, str(ROOT)], check=True)
    return python


def version_of(python: str) -> str:
    """The version of an interpreter's torch."""
    code = "import torch; print(torch.__version__.partition('+')[0])"
    command = [python, "-c", code]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def put(
    found: argparse.Namespace, known: dict[str, Any], name: str, python: str
) -> None:
    """Let an interpreter answer, and save each of its answers."""
    told = known.setdefault(name, {})
    told.pop("error", None)
    answers = told.setdefault("kinds", {})
    for kind in found.kinds:
        for precision in found.precisions:
            each = answers.setdefault(kind, {})
            if "wrong" in each.get(precision, {}):
                continue
            asked = ask(python, kind, precision, found.device)
            told |= asked.pop("about", {})
            each[precision] = asked
            print(f"{name}, {kind}, {precision}: {asked}", flush=True)
            save(found, known)


def ask(python: str, kind: str, precision: str, device: str) -> Any:
    """What an interpreter answers, in a process of its own."""
    command = [python, __file__, "--ask", "--device", device]
    command += ["--kinds", kind, "--precisions", precision]
    where = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=where
    )
    if done.returncode:
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        return {"error": f"exit code {done.returncode}: {last}"[:300]}
    return json.loads(done.stdout.splitlines()[-1])


def answer(found: argparse.Namespace) -> int:
    """Print which gradients this interpreter's torch gets wrong."""
    import torch

    from annotated.engine.compiler import wrong_gradients
    from annotated.engine.parts import PartsConfig

    config = PartsConfig(
        src_vocab=40, tgt_vocab=40, d_model=64, d_ff=128, num_heads=4,
        **KINDS[found.kinds[0]],
    )  # fmt: skip
    started = time.perf_counter()
    try:
        told: dict[str, Any] = {
            "wrong": wrong_gradients(
                config, found.precisions[0], found.device
            )
        }
    except Exception as error:
        told = {"error": trouble(error)}
    told["seconds"] = round(time.perf_counter() - started, 1)
    told["about"] = {
        "torch": torch.__version__, "python": sys.version.split()[0],
    }  # fmt: skip
    print(json.dumps(told))
    return 0


# --- what is kept ---------------------------------------------------------


def answers(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All that a version has answered."""
    for kind in told.get("kinds", {}).values():
        yield from kind.values()


def complete(told: dict[str, Any] | None, found: Any) -> bool:
    """Whether a version has answered all that is asked."""
    known = told.get("kinds", {}) if told else {}
    return all(
        "wrong" in known.get(kind, {}).get(precision, {})
        for kind in found.kinds
        for precision in found.precisions
    )


def summary(told: dict[str, Any]) -> str:
    """right; wrong, and how often; what it cannot compile, or why it is not
    known.
    """
    if "error" in told:
        return told["error"]
    errors = [one["error"] for one in answers(told) if "error" in one]
    wrong = sum(bool(one.get("wrong")) for one in answers(told))
    if wrong:
        return f"wrong in {wrong} of {len([*answers(told)])}"
    right = len([*answers(told)]) - len(errors)
    return f"right in {right}, else {errors[0]}" if errors else "right"


def read(path: Path) -> dict[str, Any]:
    """What a call before has found, by version."""
    if not path.is_file():
        return {}
    return json.loads(path.read_text("utf-8"))["metrics"]["versions"]


def save(found: argparse.Namespace, known: dict[str, Any]) -> None:
    """Write the ledger file."""
    from ledger import entry, write

    content = entry(
        "compile_versions",
        "python benchmarks/compile_versions.py",
        {"versions": known},
        seed=0,  # wrong_gradients draws with it
        settings={"kinds": KINDS},
        device=found.device,
    )
    write(found.out, content)


if __name__ == "__main__":
    sys.exit(main())
