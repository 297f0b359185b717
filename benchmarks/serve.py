"""Is anything lost when many ask at once, and some of them nonsense?

    python benchmarks/serve.py --json book/results/serve.json   # a minute

A real process of annotated serve gets requests of a sentence each from many
clients at once. Every twentieth is broken, every twentieth client leaves
before the answer. Every other answer is compared with what annotated
translate writes for the same sentence.
"""

from __future__ import annotations

import asyncio
import json as coding
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import tyro
from ledger import typed, write

from annotated.book.results import entry
from annotated.engine.machine import cores

BROKEN = (
    b"",
    b"{",
    b'{"text": 5}',
    b'{"text": "\xff"}',
    b'{"text": "a\\u0000"}',
)


@dataclass(frozen=True)
class Settings:
    """Ask, compare, time."""

    run: Path = Path("data/runs/everyday-en-de")  # the run folder
    text: Path = Path("benchmarks/everyday.txt")  # sentences, one per line
    requests: int = 1000
    at_once: int = 50  # clients
    every: int = 20  # request is broken, and as many clients leave
    warm: int = 100  # requests before memory and time are measured
    precision: str = "float32"
    json: Path | None = None  # the ledger file to write


def resident(process: int) -> float:
    """Megabytes of memory that a process holds."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


async def send(
    port: int, body: bytes, leave: bool = False
) -> tuple[int, Any]:
    """The server's answer; 0 where the client leaves before it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    writer.write(
        f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    )
    await writer.drain()
    if leave:
        writer.close()
        return 0, None
    reply = await reader.read()
    writer.close()
    start, _, said = reply.partition(b"\r\n\r\n")
    return int(start.split()[1]), coding.loads(said)


async def ask(
    port: int, lines: Sequence[str], at_once: int, every: int
) -> list[tuple[str, float, Any]]:
    """What became of each request: its kind, its seconds, its answer."""
    found: list[tuple[str, float, Any]] = []
    todo = iter(enumerate(lines))

    async def client() -> None:
        for i, line in todo:
            kind = {1: "broken", 2: "left"}.get(
                i % every if every else 0, "good"
            )
            body = coding.dumps({"text": line}).encode()
            if kind == "broken":
                body = BROKEN[i // every % len(BROKEN)]
            begin = time.perf_counter()
            code, said = await send(port, body, kind == "left")
            answered = {"good": 200, "broken": 400, "left": 0}[kind] == code
            seconds = time.perf_counter() - begin
            found.append(
                (kind if answered else "lost", seconds, (line, said))
            )

    await asyncio.gather(*(client() for _ in range(at_once)))
    return found


def main(settings: Settings) -> None:
    """Start the server, ask, compare."""
    lines = settings.text.read_text("utf-8").splitlines()
    count = settings.requests
    lines = [lines[i % len(lines)] for i in range(count)]
    options = [
        "--run",
        str(settings.run),
        "--precision",
        settings.precision,
    ]
    command = [sys.executable, "-m", "annotated"]
    done = subprocess.run(
        [*command, "translate", *options, *dict.fromkeys(lines)],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    right = dict(
        zip(dict.fromkeys(lines), done.stdout.split("\n"), strict=False)
    )
    server = subprocess.Popen(
        [*command, "serve", *options, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout
    try:
        port = int(server.stdout.readline().rpartition(":")[2])
        at_once, every, warm = (
            settings.at_once,
            settings.every,
            settings.warm,
        )
        asyncio.run(ask(port, lines[:warm], at_once, 0))
        before, begin = resident(server.pid), time.perf_counter()
        found = asyncio.run(ask(port, lines, at_once, every))
        seconds = time.perf_counter() - begin
        after = resident(server.pid)
        with urlopen(f"http://127.0.0.1:{port}/health") as reply:
            health = coding.loads(reply.read())
        begin = time.perf_counter()
        alone = asyncio.run(ask(port, lines[:warm], 1, 0))
        slow = time.perf_counter() - begin
    finally:
        server.terminate()
        server.wait()
    kinds = Counter(kind for kind, *_ in found)
    good = [each for each in found if each[0] == "good"]
    times = [1000 * seconds for _, seconds, _ in good]
    differing = sum(
        said["translations"] != [right[line]]
        for _, _, (line, said) in good + alone
    )
    metrics = {
        "requests": len(found),
        **{
            name: kinds[name] for name in ("good", "broken", "left", "lost")
        },
        "differing": differing,
        "p50_ms": float(np.percentile(times, 50)),
        "p95_ms": float(np.percentile(times, 95)),
        "per_second": len(found) / seconds,
        "alone_per_second": warm / slow,
        "sentences_per_batch": health["sentences"] / health["batches"],
        "waiting_at_the_end": health["waiting_tokens"],
        "memory_before_mb": before,
        "memory_after_mb": after,
        "warm": warm,
        "load": os.getloadavg()[0],  # programs that wanted the cores
        "cores": cores(),
    }
    print(metrics)
    if settings.json:
        chosen = {
            "run": settings.run.name,
            "at_once": at_once,
            "precision": settings.precision,
        }
        write(
            settings.json,
            entry(
                "serve", typed("serve.py", settings), metrics, settings=chosen,
                wall_seconds=seconds, packages=("uvicorn",),
            ),
        )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Settings, description=(__doc__ or "").splitlines()[0]))
