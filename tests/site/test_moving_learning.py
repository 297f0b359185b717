"""The figures of text, training and costs, moved with the keyboard."""

from pathlib import Path

import pytest

from tests.site.moving import CASES, Window, press, write


def test_dials_are_turned(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "dials", "page", "light"))
    assert window.said() == (
        "The rate is largest in step 4,000, 7.0·10⁻⁴, and 3.1·10⁻⁴ in the "
        "last; 20 % of the run is warm-up."
    )
    page.get_by_role("slider", name="width").focus()
    press(page, "ArrowRight", "ArrowRight")
    assert "step 4,000, 3.5·10⁻⁴" in window.said()
    page.get_by_role("slider", name="cool-down").focus()
    press(page, "End")
    assert "and 7.8·10⁻⁹ in the last" in window.said()
    page.get_by_role("button", name="The paper's").focus()
    press(page, "Enter")
    assert "step 4,000, 7.0·10⁻⁴" in window.said()
    assert window.faults == []


def test_the_curve_itself_is_dragged(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "dials", "page", "light"))
    peak, cool = page.locator(".fx svg circle").all()
    whole = cool.bounding_box()["x"] - peak.bounding_box()["x"]  # 16,000
    for handle, far, told in (
        (peak, whole / 4, "step 8,000, 4.9·10⁻⁴"),
        (cool, -whole / 4, "and 7.8·10⁻⁸ in the last"),
    ):
        box = handle.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + far, y + 30, steps=4)
        page.mouse.up()
        assert told in window.said()
        page.mouse.move(x, y)  # which is held no more
        assert told in window.said()
    warmup = page.get_by_role("slider", name="warm-up")
    assert warmup.get_attribute("aria-valuetext") == "8,000"
    page.wait_for_function("location.hash.includes('cool=20')")
    chart = page.locator(".fx svg[role=img]").first
    assert chart.evaluate("x => x.style.touchAction") == "pan-y"
    assert window.faults == []


def test_the_other_button_of_a_mouse_drags_nothing(
    window: Window, tmp_path: Path
) -> None:
    """It opens a menu, and is released where the page does not hear of it."""
    page = window.open(write(tmp_path, "dials", "page", "light"))
    said, peak = window.said(), page.locator(".fx svg circle").first
    box = peak.bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down(button="right")
    page.mouse.move(box["x"] + 105, box["y"] + 5, steps=4)
    assert window.said() == said
    page.mouse.up(button="right")


def test_a_table_of_single_runs_is_drawn(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "draw", "page", "light"))
    assert window.said().startswith("All seeds: each large dot")
    again = page.get_by_role("button", name="Train each row once: draw")
    again.focus()
    flipped = []
    for number in range(1, 9):
        press(page, "Enter")
        said = window.said()
        assert said.startswith(f"Draw {number}: ")
        assert said.endswith("and 0.25 in all possible ones.")
        flipped.append("1 of 3 comparisons" in said and "(b > a)" in said)
    assert any(flipped) and not all(flipped)
    mean = sum(flipped) / len(flipped)
    assert f"On average it is {mean:.1f} in your 8 draws" in said
    page.get_by_role("button", name="BLEU", exact=True).focus()
    press(page, "Enter")
    assert ": 0 of 3 comparisons contradict" in window.said()
    assert "On average it is 0.0 in your 8 draws" in window.said()
    page.wait_for_function("location.hash === '#draw:measure=bleu&draw=8'")
    page.get_by_role("button", name="All seeds").focus()
    press(page, "Enter")
    assert window.said().startswith("All seeds")
    assert window.faults == []


def test_the_model_itself_is_dragged(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "cost", "page", "light"))
    block = page.locator("[viewBox='0 0 300 150']")
    corner = block.locator("circle").bounding_box()
    unit = block.bounding_box()["width"] / 300  # of the drawing
    x, y = (
        corner["x"] + corner["width"] / 2,
        corner["y"] + corner["height"] / 2,
    )
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 63 * unit, y - 28 * unit, steps=4)
    page.mouse.up()
    page.get_by_text("The run by numbers").click()
    for name, told in (("width", "1,024"), ("layers", "12")):
        slider = page.get_by_role("slider", name=name)
        assert slider.get_attribute("aria-valuetext") == told
    assert block.evaluate("x => x.style.touchAction") == "none"
    page.wait_for_function("location.hash.includes('d=1024&layers=12')")
    told = (
        "29 % of 9.5 TFLOP/s each, an estimate: by the hours at width 512."
    )
    assert page.get_by_text(told).is_visible()
    assert window.faults == []


def test_the_share_is_dragged_along_the_run(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "cost", "page", "light"))
    chart = page.locator(".fx svg[role=img]").first
    dot = chart.locator("circle").last.bounding_box()
    x, y = dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 2000, y + 30, steps=4)
    page.mouse.up()
    assert "at 100 % of the peak, this run takes 3.5 hours" in window.said()
    assert page.get_by_text("each, set by you.").is_visible()
    page.get_by_role("button", name="8 × P100").click()
    assert "at 29 % of the peak, this run takes 12 hours" in window.said()
    assert chart.evaluate("x => x.style.touchAction") == "pan-y"
    assert window.faults == []


def test_cost_is_a_link(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "cost", "page", "light"))
    assert window.said() == (
        "On 8 × P100, at 29 % of the peak, this run takes 12 hours and 27 "
        "kWh, which is $140 to rent or $4.02 of electricity; the paper’s "
        "base model took 12 hours, 27 kWh and $140."
    )
    page.get_by_text("The run by numbers").click()
    page.get_by_role("slider", name="steps").focus()
    press(page, "ArrowRight")
    assert "takes 36 hours and" in window.said()
    page.get_by_role("slider", name="devices").focus()
    press(page, "Home")
    assert window.said().startswith("On 1 × P100, at 29 %")
    assert "takes 12 days and" in window.said()
    page.wait_for_function("location.hash.includes('devices=1&')")
    link = page.url.replace("vocab=37000", "vocab=36500")
    page.goto("about:blank")
    page.goto(link)
    assert "takes 12 days and" in window.said()
    page.get_by_text("The run by numbers").click()
    assert page.get_by_text("36,500").is_visible()  # no step of the slider
    page.get_by_role("button", name="base").click()
    assert "takes 12 hours and" in window.said()
    assert window.faults == []


def test_a_device_of_ones_own_and_its_prices(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "cost", "page", "light"))
    page.get_by_role("button", name="H100").focus()
    press(page, "Enter")
    assert "2.3 hours and 2.5 kWh, which is $9.0" in window.said()
    speed = page.get_by_label("TFLOP/s of one")
    assert speed.is_hidden()
    page.get_by_role("button", name="your own").focus()
    press(page, "Enter")
    assert window.said().startswith("On 1 × a device of your own, at 15 %")
    speed.fill("389.5")
    for label, value in (
        ("watts of one", "350"),
        ("$ per hour of one", "2"),
        ("$ per kWh", "0,30"),
        ("data centre’s factor", "1"),
    ):
        page.get_by_label(label, exact=True).fill(value)
    told = "4.5 hours and 1.6 kWh, which is $9.04 to rent or $0.47 of"
    assert told in window.said()
    page.get_by_label("$ per kWh").fill("much")  # is no price
    assert told in window.said()
    press(page, "Tab")
    assert page.get_by_label("$ per kWh").input_value() == "0.3"
    page.wait_for_function("location.hash.includes('speed=389.5')")
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    assert told in window.said()
    assert window.faults == []


def test_batches_are_composed(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "batches", "page", "light"))
    assert window.said() == (
        "8 pairs at random, 60 tokens per batch: 2 steps per epoch, and "
        "padding is 63.6 % of the source's places and 59.2 % of the "
        "target's."
    )
    page.get_by_role("button", name="by target").focus()
    press(page, "Enter")
    assert window.said().startswith("8 pairs sorted by target, 60 tokens")
    page.get_by_role("slider", name="tokens per batch").focus()
    press(page, "Home")
    assert "20 tokens per batch: 6 steps per epoch" in window.said()
    page.wait_for_function(
        "location.hash === '#batches:order=by+target&tokens=20'"
    )
    page.get_by_role("slider", name="look at batch").focus()
    press(page, "Home")
    told = (
        "Batch 1 of 6, by length: 3 pairs. Source: 13 tokens in 15 places."
    )
    assert page.get_by_text(told).is_visible()
    press(page, "End")
    told = "1 pair. Source: 12 tokens in 12 places. Target: 44 tokens in 44"
    assert page.get_by_text(told).is_visible()
    assert window.faults == []


def test_loops_are_matched(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "loops", "page", "light"))
    assert window.said() == "0 of 6 are right, 6 are open."
    wrong = page.get_by_label("The fault of panel E")
    wrong.focus()
    page.keyboard.type("rate")
    assert page.get_by_text("Not so: close, since both learn").is_visible()
    assert window.said() == "0 of 6 are right, 5 are open."
    for panel, fault in {
        "A": "rate too high",
        "B": "mean of the sentences' means",
        "C": "no shift",
        "D": "validation with dropout",
        "E": "shuffled targets",
        "F": "no causal mask",
    }.items():
        page.get_by_label(f"The fault of panel {panel}").select_option(
            label=fault
        )
    assert window.said().startswith("All six.")
    assert page.get_by_text("Right: ").count() == 6
    assert window.faults == []


def test_pieces_are_merged_one_by_one(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "pieces", "page", "light"))
    assert window.said() == (
        "7 characters are 5 tokens with a vocabulary of 263. The newest "
        "token is “␣the”, of “␣” and “the”; this text has it once."
    )
    page.get_by_role("button", name="One less").focus()
    press(page, "Enter")
    assert "6 tokens with a vocabulary of 262." in window.said()
    page.get_by_role("slider", name="vocabulary").focus()
    press(page, "Home")
    assert "8 tokens" in window.said()
    assert "a token is a byte" in window.said()
    page.get_by_label("Your text").fill("ä")
    assert window.said().startswith("1 character is 3 tokens")
    page.wait_for_function(
        "location.hash === '#pieces:vocab=260&text=%C3%A4'"
    )
    page.get_by_role("button", name="One merge more").focus()
    press(page, "Enter")
    assert "is “th”, of “t” and “h”; this text has it nowhere." in (
        window.said()
    )
    assert window.faults == []


def test_pieces_go_to_the_next_merge_that_the_text_has(
    window: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"merges": [[87, 75], [260, 72], [224, 261], [92, 93], [68, 87]]}
    monkeypatch.setitem(CASES, "pieces", CASES["pieces"] | more)
    page = window.open(write(tmp_path, "pieces", "page", "light"))
    page.get_by_role("slider", name="vocabulary").focus()
    press(page, "Home")
    page.get_by_label("Your text").fill("bat")
    here = page.get_by_role("button", name="Next merge in this text")
    here.focus()
    press(page, "Enter")
    assert window.said() == (
        "3 characters are 3 tokens with a vocabulary of 265. The newest "
        "token is “at”, of “a” and “t”; this text has it once."
    )
    assert here.is_disabled()
    page.wait_for_function("location.hash.includes('vocab=265')")
    assert window.faults == []


def test_a_ring_passes_its_chunks_on(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "ring", "page", "light"))
    assert window.said() == (
        "After 0 of 6 rounds 0 of 16 chunks are complete; each device has "
        "sent 0 MB of 390 MB, in 0 ms of 195 ms. If nothing overlaps, 4 "
        "P100s are 3.2 times as fast as one."
    )
    page.get_by_role("button", name="Next round").focus()
    press(page, "Enter", "Enter", "Enter")
    assert (
        "After 3 of 6 rounds 4 of 16 chunks are complete" in window.said()
    )
    page.locator("[role=gridcell]").first.focus()
    press(page, "ArrowDown")
    assert page.get_by_text(
        "2 gradients in chunk a of rank 1."
    ).is_visible()
    page.get_by_role("slider", name="each link").focus()
    press(page, "ArrowRight", "ArrowRight")
    assert "98 ms of 98 ms" not in window.said()
    assert "in 20 ms of 39 ms" in window.said()
    page.get_by_role("button", name="H100", exact=True).focus()
    press(page, "Enter")
    assert "4 H100s are 1.4 times as fast as one." in window.said()
    page.wait_for_function(
        "location.hash === '#ring:n=4&link=10&size=0.26&kind=H100&round=3'"
    )
    page.get_by_role("slider", name="devices").focus()
    press(page, "End")
    assert window.said().startswith("After 0 of 14 rounds 0 of 64")
    assert page.locator("[role=gridcell]").count() == 64
    assert window.faults == []


def test_a_smoothed_label_punishes_the_sure(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "smooth", "page", "light"))
    assert window.said() == (
        "With ε = 0 and 1,000 words the loss is 0.693 at 0.500, and at best "
        "0.000, which takes a probability of 1. Each other word should get "
        "0. The gradient of the label’s logit is −0.500: a step makes the "
        "model surer."
    )
    page.get_by_role("slider", name="ε", exact=True).focus()
    press(page, *["ArrowRight"] * 4)
    page.get_by_role("slider", name="label’s probability").focus()
    press(page, "End")
    assert window.said().endswith(
        "at best 1.015, where the label has 0.900. Each other word should "
        "get 1.0·10⁻⁴. The gradient of the label’s logit is +0.099: a step "
        "makes the model less sure."
    )
    page.get_by_role("button", name="8", exact=True).focus()
    press(page, "Enter")
    assert "at best 0.467, where the label has 0.912" in window.said()
    dot = page.locator(".fx svg circle").bounding_box()
    x, y = dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 1000, y, steps=4)
    page.mouse.up()
    assert "at 0.300, and at best" in window.said()
    page.wait_for_function(
        "location.hash === '#smooth:epsilon=0.1&vocab=8&p=0.3'"
    )
    assert window.faults == []
