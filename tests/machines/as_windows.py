"""What a user of Windows does, in the current, empty folder."""

import contextlib
import io
import sys
from pathlib import Path

from tests.machines import windows

windows.install()

from annotated import cli  # noqa: E402
from annotated.engine import files  # noqa: E402
from annotated.school.exercises import exercises  # noqa: E402


def annotated(*line: str, stdin: bytes = b"", code: int = 0) -> str:
    """One command line; how it ends, and what it says."""
    out, err = io.TextIOWrapper(io.BytesIO(), "cp1252"), io.StringIO()
    sys.argv = ["annotated", *line]
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin)))
    real, ended = sys.stdout, 0
    try:
        sys.stdout = out
        with contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as stop:
        ended = int(stop.code or 0)
    finally:
        sys.stdout = real
    assert ended == code, (line, ended, err.getvalue())
    out.flush()
    return out.buffer.getvalue().decode("utf-8", "replace")


if __name__ == "__main__":
    small = ("--train-pairs", "300", "--precision", "float32")
    short = ("--max-steps", "4", "--save-every", "2", "--keep", "1")
    annotated("train", "copy", "--out", "c", *short, *small)
    annotated("train", "copy", "--out", "c", "--max-steps", "8", "--resume")
    annotated("average", "--run", "c", "--out", "avg", "--last", "1")
    annotated("train", "copy", "--out", "d", "--init", "c", *short, *small)
    annotated("report", "--run", "pocket", "--out", "r.html")
    annotated("export", "--run", "c", "--to", "safetensors", "--out", "e")
    for side in ("de", "en"):
        lines = (f"Wort {i} ist {i * 7 % 13} .\r\n" for i in range(600))
        Path(f"t.{side}").write_bytes("".join(lines).encode())
    pair = (
        "--src",
        "t.de",
        "--tgt",
        "t.en",
        "--out",
        "prep",
        "--vocab",
        "400",
    )
    for _ in range(2):  # the second finds the first's
        annotated("data", "prepare", "pair", *pair, "--hold-out", "20")
    tokens = ("--batch-tokens", "500", "--precision", "float32")
    annotated(
        "train", "pair", "--data", "prep", "--out", "p", *short, *tokens
    )
    annotated("train", "pair", "--data", "prep", "--out", "p", "--resume",
              "--max-steps", "6")  # fmt: skip
    said = annotated(
        "translate", "--run", "pocket", "Die Ärztin ist müde ."
    )
    assert said == "The doctor is tired .\n", said
    said = annotated(
        "translate", "--run", "pocket", stdin=b"Anna sieht den Hund .\r\n"
    )
    assert said == "Anna sees the dog .\n", said
    assert annotated("doctor").endswith("in the way.\n")
    annotated("exercises", "02-weights", code=1)
    answer = Path("exercises/02-weights.py")
    answer.write_text(exercises()["02-weights"].reference, "utf-8")
    annotated("exercises", "02-weights")
    loop = "def attention_weights(*a, **k):\n    while True: pass\n"
    answer.write_text(loop, "utf-8")
    annotated("exercises", "02-weights", code=1)
    annotated("train", "nothing", "--out", "x", code=2)

    # a second trainer waits for the lock when the first one ends
    with files.locked(Path("p")):
        waiting = (Path("p") / ".lock").open(encoding="utf-8")
    waiting.close()
    print("done")
