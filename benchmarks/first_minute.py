"""Someone comes to the site for the first time: what happens, and when?

    make book
    python benchmarks/first_minute.py --json book/results/first-minute.json
    python benchmarks/first_minute.py --browsers "safari=open -a Safari {}"

The first page is served from this machine with a script that does what a
newcomer would: it presses Start as soon as there is such a button, waits
until nearly all new words are written backwards, and until the training is
over; then it types a sentence for the translator, which is loaded for it,
and waits until its translation stands there whole. The page itself tells the
seconds, so that any browser can be asked: Chromium and Firefox are looked for, and run
without a window; others are named, with the command that opens an address,
{}. (WebKit on Linux: --browsers "webkit=xvfb-run -a …/MiniBrowser {}".)
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import tyro
from ledger import typed, write

from annotated.book.results import entry

ROOT = Path(__file__).resolve().parents[1]
SENTENCE = "Where did you put the keys?"
KNOWN = {  # without a window, and in a profile of their own
    "chromium": "--headless=new --user-data-dir=PROFILE {}",
    "firefox": "--headless --no-remote --profile PROFILE {}",
}
NEWCOMER = """
<script type="module">
const now = () => performance.now() / 1000;
const until = async (what) => {
  for (let found; ; await new Promise((go) => setTimeout(go, 20)))
    if ((found = what())) return found;
};
const one = (where) => document.querySelector(where);
const told = { agent: navigator.userAgent };
const go = await until(() => one(".moves-learn[data-live] .ln-go"));
told.ready = now();
go.click();
const word = () => one(".moves-learn .ln-word").textContent;
const first = word();
await until(() => word() !== first);
told.moving = now();
const right = () => one(".moves-learn").textContent
  .match(/([0-9.]+).% of new words right/)?.[1] ?? 0;
await until(() => right() >= 95);
told.learned = now();
await until(() => go.textContent === "Start");
Object.assign(told, { trained: now(), right: +right() });
const box = ".moves-say[data-live]";
const field = await until(() => one(`${box} input[lang=en]`));
field.value = SENTENCE;
const send = () => [...document.querySelectorAll(`${box} button`)]
  .find((button) => button.textContent === "Translate");
const piece = `${box} [aria-label="The translation, piece by piece"]`;
const before = one(piece)?.textContent;
const asked = now();
(await until(send)).click();
await until(() => one(piece) && one(piece).textContent !== before
  && !one(`${piece} .say-waits`));
told.said = one(piece).textContent;
told.translated = now() - asked;
await fetch("/told", { method: "POST", body: JSON.stringify(told) });
</script>
"""


@dataclass(frozen=True)
class Settings:
    """Which browsers, how often."""

    site: Path = ROOT / "site"
    browsers: tuple[str, ...] = ()  # others, each as NAME=COMMAND
    rounds: int = 3
    patience: int = 300  # seconds for a visit
    json: Path | None = None  # the ledger file to write


class _Site(SimpleHTTPRequestHandler):
    """The site, its first page with the script."""

    def __init__(self, told: queue.Queue[Any], *words: Any, **named: Any):
        self.told = told
        super().__init__(*words, **named)

    def do_GET(self) -> None:
        if self.path != "/":
            return super().do_GET()
        page = Path(self.directory, "index.html").read_text("utf-8")
        script = NEWCOMER.replace("SENTENCE", json.dumps(SENTENCE))
        body = page.replace("</body>", f"{script}</body>").encode()
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        self.told.put(json.loads(self.rfile.read(length)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return None


@contextmanager
def served(site: Path) -> Iterator[tuple[str, queue.Queue[Any]]]:
    """The address of a site, and what its visitors tell."""
    told: queue.Queue[Any] = queue.Queue()
    handler = partial(_Site, told, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", told
        server.shutdown()


def found() -> dict[str, str]:
    """The commands of the browsers that are here."""
    programs = {
        "chromium": os.environ.get("CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("google-chrome"),
        "firefox": shutil.which("firefox") or shutil.which("firefox-esr"),
    }
    return {
        name: f"{program} {KNOWN[name]}"
        for name, program in programs.items()
        if program
    }


def visit(command: str, settings: Settings) -> dict[str, Any]:
    """What one browser tells of one visit, with nothing in its cache."""
    with (
        served(settings.site) as (address, told),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    ):
        words = [
            word.replace("PROFILE", profile).replace("{}", address)
            for word in shlex.split(command)
        ]
        if os.name == "posix" and os.geteuid() == 0 and "chrom" in words[0]:
            words.insert(1, "--no-sandbox")  # a container's root has none
        process = subprocess.Popen(
            words,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return told.get(timeout=settings.patience)
        except queue.Empty:
            sys.exit(f"{words[0]} has not come to the end of its visit")
        finally:
            process.terminate()
            process.wait()


def main(settings: Settings) -> None:
    if not (settings.site / "index.html").exists():
        sys.exit(f"{settings.site} has no index.html: make book")
    others = dict(each.split("=", 1) for each in settings.browsers)
    browsers = found() | others
    if not browsers:
        sys.exit("no browser was found: name one with --browsers")
    visits = {
        name: [visit(command, settings) for _ in range(settings.rounds)]
        for name, command in browsers.items()
    }
    times = "ready", "moving", "learned", "trained", "translated"
    metrics = {
        name: {
            "agent": each[0]["agent"],
            "said": each[0]["said"],
            **{t: round(median(one[t] for one in each), 2) for t in times},
        }
        for name, each in visits.items()
    }
    print(json.dumps(metrics, indent=1, ensure_ascii=False))
    if settings.json:
        write(
            settings.json,
            entry(
                "first-minute", typed("first_minute.py", settings), metrics,
                threads=os.cpu_count() or 1, wall_seconds=None,
                settings={"rounds": settings.rounds, "sentence": SENTENCE},
            ),
        )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Settings, description=(__doc__ or "").splitlines()[0]))
