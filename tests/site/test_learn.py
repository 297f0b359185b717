"""Training in the browser: the figure `learn` in Chromium, from a folder.

The trainings are short: what is tested is the figure, not the model.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.site.moving import CASES, Window, press, write

# a training of a moment, in place of the preface's
QUICK = ("width: 64, inner: 256, heads: 4", "width: 8, inner: 16, heads: 4")
FEW = ("words: 64, steps: 400", "words: 4, steps: 400")
ALL = ("STEPS = 400", "STEPS = 400")
REFUSED = {
    "the Worker": "worker-src 'none'",
    "WebAssembly": "script-src 'unsafe-inline' file: blob:",
    "both": "script-src 'unsafe-inline' file:",
}
WHERE = {
    "the Worker": "WebAssembly, on this page.",
    "WebAssembly": "JavaScript, in a Worker.",
    "both": "JavaScript, on this page.",
}


def quick(
    folder: Path, form: str = "page", theme: str = "light", steps: int = 400
) -> str:
    """A page with the figure, whose model is small."""
    address = write(folder, "learn", form, theme)
    for file in (*folder.glob("*.js"), *folder.glob("*.html")):
        text = file.read_text("utf-8")
        for old, new in (QUICK, FEW, ALL):
            text = text.replace(old, new.replace("400", str(steps)))
        file.write_text(text, "utf-8")
    return address


def end(window: Window, steps: int = 400) -> str:
    """What is said when the training is over."""
    told = window.page.get_by_text(f"{steps} steps took")
    told.wait_for(timeout=600_000)
    return window.said()


@pytest.mark.parametrize("form", ["page", "notebook"])
def test_nothing_runs_before_start(
    window: Window, tmp_path: Path, form: str
) -> None:
    page = window.open(quick(tmp_path, form))
    workers: list[Any] = []
    page.on("worker", lambda one: workers.append(one))
    page.wait_for_timeout(200)
    assert window.said() == "It has not begun." and not workers
    page.get_by_role("button", name="Start").focus()
    press(page, "Enter")
    assert end(window).startswith("“attention” becomes ")
    assert len(workers) == 1
    assert page.get_by_text("WebAssembly, in a Worker.").is_visible()
    assert window.faults == []


def test_a_guess_is_answered_from_the_end(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(quick(tmp_path))
    page.get_by_role("button", name="before step 100").focus()
    press(page, "Enter")
    page.get_by_role("button", name="Start").click()
    page.get_by_text("Step 1").first.wait_for()
    assert window.verdict() == ""  # not before the end
    assert re.search(
        r"and? ?it was never right .* 0 % are right to the last letter\. "
        r"The loss is \d\.\d\d; 400 steps took \d+ s\.$",
        end(window).replace("\xa0", " ").replace("wrong; it", "and it"),
    )
    assert re.match(
        r"Not so: you said “before step 100”\. It was “later, or never”: "
        r"the loss went from 3\.\d\d to \d\.\d\d, new words right from "
        r"none to 0.%, and “attention” was never right\.",
        window.verdict(),
    )
    page.get_by_role("button", name="Another seed").click()
    page.get_by_text("The same with seed 0: 0").wait_for()
    assert window.verdict() == ""  # not of this training
    names = page.locator(".fx .fx-row.fx-soft").inner_text()
    assert "unchanged, seed 0" in names and "unchanged, seed 1" in names
    page.get_by_text("The trainings so far").click()
    assert page.locator(".fx table.fx-plain tbody tr").count() == 2
    page.wait_for_function("location.hash === '#learn:seed=1'")
    assert window.faults == []


def test_the_same_seed_is_the_same_training(
    window: Window, tmp_path: Path
) -> None:
    page, found = window.open(quick(tmp_path)), []
    for _ in range(2):
        page.get_by_role("button", name="Start").click()
        found.append(re.sub(r"took \d+ s", "", end(window)))
        path = page.locator(".fx svg path[style*='var(--data)']").first
        found.append(path.get_attribute("d"))
        page.reload()
    assert found[:2] == found[2:]


def test_an_address_is_an_experiment(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(f"{quick(tmp_path)}#learn:mask=0&seed=3&word=xyz")
    page.locator(".fx").wait_for()
    chosen = page.get_by_label("Experiment").evaluate(
        "x => x.selectedOptions[0].text"
    )
    assert chosen == "3. Mask off"
    assert page.get_by_text("see the one that it is asked").is_visible()
    page.get_by_text("Change a part").click()
    assert not page.get_by_label("causal mask").is_checked()
    assert page.get_by_label("seed", exact=True).input_value() == "3"
    page.get_by_role("button", name="Start").click()
    assert end(window).startswith("“xyz” becomes ")
    assert page.get_by_text("words have nine letters").is_visible()
    assert "no mask, seed 3" in page.locator(".fx").inner_text()


def test_every_part_is_a_switch(window: Window, tmp_path: Path) -> None:
    page = window.open(quick(tmp_path))
    page.get_by_text("Change a part").click()
    for label in ("positions", "residuals", "networks", "warm-up"):
        page.get_by_role("checkbox", name=label).focus()
        press(page, "Space")
    page.get_by_label("heads", exact=True).select_option("2")
    page.get_by_label("norm", exact=True).select_option("none")
    page.get_by_label("rate", exact=True).select_option("0.1")
    page.get_by_label("layers", exact=True).select_option("2")
    page.wait_for_function("location.hash.includes('layers=2&rate=0.1')")
    chosen = "x => x.selectedOptions[0].text"
    experiment = page.get_by_label("Experiment")
    assert experiment.evaluate(chosen) == "Your own"
    page.get_by_role("button", name="Start").click()
    end(window)
    told = (
        "no positions, no residuals, no networks, no warm-up, no norm, "
        "2 heads, 2 + 2 layers, rate × 0.1, seed 0"
    )
    assert told in page.locator(".fx").inner_text()
    experiment.select_option("8. Warm-up off")
    assert page.get_by_role("checkbox", name="positions").is_checked()
    page.wait_for_function("location.hash === '#learn:warmup=0'")
    assert window.faults == []


# the page itself starts, and pauses as soon as it sees a step: a hand, or a key
# that comes from another process, may be slower than the training
START_AND_PAUSE = """() => new Promise((paused) => {
  const [go, bar] = [".ln-go", "progress"].map((x) => document.querySelector(x));
  const look = () => (bar.value ? paused(go.click()) : setTimeout(look));
  go.click();
  look();
})"""


def test_it_pauses_and_goes_on(window: Window, tmp_path: Path) -> None:
    page = window.open(quick(tmp_path, steps=10_000))
    page.evaluate(START_AND_PAUSE)
    page.get_by_role("button", name="Go on").wait_for()
    word = page.get_by_label("your word")
    bar = "document.querySelector('.fx progress').value"
    # answered while it rests, and so after the last step that was under way
    word.fill("Abend")
    page.get_by_text("abend →").wait_for()
    step = page.evaluate(bar)
    assert 0 < step < 10_000
    word.fill("Übung 7")
    page.get_by_text("ubung →").wait_for()
    assert page.evaluate(bar) == step
    page.get_by_role("button", name="Go on").focus()
    press(page, "Enter")
    said = end(window, 10_000)
    assert f"“ubung”, given at step {step}, becomes" in said
    assert window.faults == []


def test_the_map_is_read_with_the_arrow_keys(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(quick(tmp_path))
    page.get_by_role("button", name="Start").click()
    end(window)
    page.locator("[role=gridcell]").first.focus()
    press(page, "ArrowRight")
    told = page.get_by_text(
        re.compile(r"While it writes n, it gives t \(place 2\) 0\.\d\d\.")
    )
    assert told.is_visible()
    heads = page.get_by_role("group", name="head")
    heads.get_by_role("button", name="3").focus()
    press(page, "Enter")
    assert heads.get_by_role("button", name="3").get_attribute(
        "aria-pressed"
    ) == "true"  # fmt: skip
    total = sum(
        float(cell.evaluate("x => x.style.getPropertyValue('--w')"))
        for cell in page.locator("tbody tr").first.locator("td").all()
    )
    assert abs(total - 1) < 0.01


def test_the_head_that_was_chosen_is_shown_of_the_next_training(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(quick(tmp_path, steps=20))
    page.get_by_role("button", name="Start").click()
    end(window, 20)
    third = page.get_by_role("group", name="head").get_by_role(
        "button", name="3"
    )
    third.click()
    map_of = """() => [...document.querySelectorAll(".fx-map td")].map(
      (x) => x.style.getPropertyValue("--w")).join()"""
    shown = page.evaluate(map_of)
    page.get_by_role("button", name="Start").click()  # the same again
    page.get_by_role("button", name="Pause").wait_for()
    end(window, 20)
    assert third.get_attribute("aria-pressed") == "true"
    assert page.evaluate(map_of) == shown


@pytest.mark.parametrize("refused", sorted(REFUSED))
def test_what_a_page_refuses_is_done_without(
    browser: Any, tmp_path: Path, refused: str
) -> None:
    address = quick(tmp_path)
    for file in tmp_path.glob("*.html"):
        rule = f'content="{REFUSED[refused]}"'
        meta = f'<meta http-equiv="Content-Security-Policy" {rule}>'
        text = file.read_text("utf-8")
        file.write_text(text.replace("<title>", f"{meta}<title>"))
    window = Window(browser)
    page = window.open(address)
    page.get_by_role("button", name="Start").click()
    end(window)
    assert page.get_by_text(WHERE[refused]).is_visible()
    window.context.close()


def test_the_preface_s_own_curve_goes_along(
    window: Window, tmp_path: Path
) -> None:
    """Before the start it would give away what is asked."""
    page = window.open(quick(tmp_path))
    own = page.get_by_text("PyTorch, unchanged")
    assert own.count() == 0
    page.get_by_role("button", name="Start").click()
    end(window)
    assert own.is_visible()
    paths = page.locator(".fx svg path").all()
    theirs, ours = [str(path.get_attribute("d")) for path in paths][:2]
    assert theirs.count("L") == len(CASES["learn"]["losses"]) - 1
    assert ours.count("L") == 400 - 1
