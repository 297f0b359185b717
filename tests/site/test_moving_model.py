"""The figures of the model, moved with the keyboard."""

from pathlib import Path

from tests.site.moving import CASES, Window, press, write


def test_lookup_answers_the_query(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "lookup", "page", "light"))
    assert window.said() == (
        "The weights are 0.25, 0.50, 0.25, so the output is (30.0, 15.0): "
        "drawn to value 2."
    )
    page.get_by_role("slider", name="sharpness").focus()
    press(page, "Home")
    assert "plain mean" in window.said()
    press(page, "End")
    assert "value 2 itself" in window.said()
    page.get_by_role("button", name="key 3").focus()
    press(page, "Enter")
    page.get_by_role("slider", name="right").focus()
    press(page, "End")
    assert "value 3 itself" in window.said()
    page.wait_for_function("location.hash.includes('k3=2.5%2C0.693')")
    assert window.faults == []


def test_lookup_can_be_dragged(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "lookup", "page", "light"))
    box = page.locator(".fx svg").first.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    unit = box["width"] * 220 / 232 / 5
    page.mouse.move(middle[0] + 1.414 * unit, middle[1])
    page.mouse.down()
    page.mouse.move(middle[0], middle[1] - 2.5 * unit, steps=4)
    page.mouse.up()
    assert "drawn to value 3" in window.said()


def test_stream_finds_the_vocabulary(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "stream", "page", "light"))
    assert window.said() == (
        "This shape has 63.1 million parameters; it is the row “base” of "
        "Table 3, which says 65. With V = 37,000, 0 of the 3 counts fit."
    )
    page.get_by_role("slider", name="vocabulary").focus()
    press(page, *["ArrowRight"] * 16)
    assert "With V = 41,000, 2 of the 3 counts fit, all but big." in (
        window.said()
    )
    press(page, *["ArrowLeft"] * 20)
    assert "With V = 36,000, 1 of the 3 counts fit: big." in window.said()
    page.get_by_role("button", name="big", exact=True).focus()
    press(page, "Enter")
    assert "has 213.2 million parameters; it is the row “big”" in (
        window.said()
    )
    kept = page.evaluate("document.activeElement.dataset.row")
    assert kept == "big"  # the rows are drawn anew, the focus stays
    page.get_by_role("button", name="cross-attention").focus()
    press(page, "Enter")
    told = "weights (b, 16, t, s); gives (b, t, 1024). 4,200,448 parameters"
    assert page.get_by_text(told).is_visible()
    page.wait_for_function("location.hash === '#stream:row=big&V=36000'")
    page.get_by_role("slider", name="heads").focus()
    press(page, "ArrowRight")
    assert "and is no row of Table 3" in window.said()
    page.wait_for_function(
        "location.hash === '#stream:N=6&d=1024&h=32&ff=4096&V=36000'"
    )
    assert window.faults == []


def test_stream_begins_as_the_address_says(
    window: Window, tmp_path: Path
) -> None:
    address = write(tmp_path, "stream", "page", "light")
    page = window.open(f"{address}#stream:row=B-dk16&V=41000")
    assert "it is the row “B-dk16” of Table 3, which says 58" in (
        window.said()
    )
    page.get_by_role("slider", name="layers").focus()
    press(page, "ArrowLeft")  # its heads stay as narrow as they are
    page.wait_for_function(
        "location.hash === '#stream:N=5&d=512&h=8&ff=2048&dk=16&V=41000'"
    )
    link, said = page.url, window.said()
    page.goto("about:blank")
    window.open(link)
    assert window.said() == said


def test_heads_are_chosen(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "heads", "page", "light"))
    assert window.said().startswith(
        "encoder 1.1: the largest weight of a row is 0.97 on average. Most "
        "of all it looks from “Hunde” at “Hunde” (1.00)."
    )
    page.get_by_role("button", name="cross 1.1").focus()
    press(page, "Enter")
    assert "looks from “<s>” at “Hunde” (0.80)" in window.said()
    assert "without it 50.0 % of the sentences are" in window.said()
    page.locator("[role=gridcell]").first.focus()
    press(page, "ArrowDown", "ArrowRight")
    told = "From “dogs” it gives “bellen” 0.60."
    assert page.get_by_text(told).is_visible()
    page.wait_for_function(
        "location.hash === '#heads:sentence=0&head=cross+1.1'"
    )
    assert window.faults == []


def test_branches_are_switched_off(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "branches", "page", "light"))
    without = CASES["branches"]["without"]
    assert f"With all branches it writes “{without['']}”" in window.said()
    decoder = page.get_by_role("group", name="Decoder")
    decoder.get_by_role("button", name="cross-attention").focus()
    press(page, "Enter")
    told = (
        "Without the decoder’s cross-attention it writes "
        f"“{without['decoder.cross']}”"
    )
    assert told in window.said()
    page.get_by_role("button", name="Load the model").focus()
    press(page, "Enter")
    word = page.get_by_label("A word")
    word.wait_for()
    assert told in window.said()  # the page's model says what Python's did
    decoder.get_by_role("button", name="feed-forward").focus()
    press(page, "Enter")
    assert "cross-attention and the decoder’s feed-forward" in (
        window.said()
    )
    word.fill("residuals")
    assert "residuals →" in page.locator(".fx-mono").inner_text()
    assert "In training every word had 3 letters." in window.said()
    assert window.faults == []


def test_masks_are_edited_with_the_keyboard(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "masks", "page", "light"))
    assert "no position depends on the token" in window.said()
    page.locator("[role=gridcell]").first.focus()
    press(page, *["ArrowDown"], *["ArrowRight"] * 5, "Enter")
    assert page.get_by_text("Query 2 may attend to key 6.").is_visible()
    assert "no position depends" in window.said()
    page.get_by_role("slider", name="layers").focus()
    press(page, "ArrowRight")
    assert "2 of 6 positions depend on the token" in window.said()
    assert "guessing, 2.30, down to 1.54." in window.said()
    page.get_by_role("button", name="−10 before it").focus()
    press(page, "Enter")
    assert "5 of 6 positions depend on the token" in window.said()
    assert "faint" not in window.said()  # two of them see it as they may
    page.get_by_role("slider", name="layers").focus()
    press(page, "ArrowLeft")
    assert "faint; the layer trained above came to 1.50." in window.said()
    page.get_by_role("button", name="off by one").click()
    page.wait_for_function(
        "location.hash === '#masks:kind=ahead&how=finite&real=6"
        "&layers=1&cells='"
    )
    assert window.faults == []


def test_a_leak_that_the_mask_allows_is_not_called_faint(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "masks", "page", "light"))
    page.get_by_role("button", name="−10 before it").click()
    assert "The leak is faint; the layer trained above" in window.said()
    page.get_by_role("slider", name="layers").focus()
    press(page, "ArrowRight")
    assert window.said().endswith("The leak is faint.")
    page.get_by_role("button", name="off by one").click()
    assert "5 of 6 positions depend" in window.said()
    assert "faint" not in window.said()


def test_masks_begin_as_the_address_says(
    window: Window, tmp_path: Path
) -> None:
    address = write(tmp_path, "masks", "page", "light")
    page = window.open(f"{address}#masks:kind=ahead&real=4&layers=1")
    page.locator(".fx").wait_for()
    assert "3 of 4 positions" in window.said()


def test_scale_divides(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "scale", "page", "light"))
    assert window.said().startswith(
        "At d_k = 1, divided by its root, the largest weight is 0.73"
    )
    page.get_by_role("slider", name="d_k").focus()
    press(page, "End")
    assert "the largest weight is 0.98" in window.said()
    page.get_by_role("button", name="no", exact=True).focus()
    press(page, "Enter")
    assert "undivided, the largest weight is 1.00" in window.said()
    assert "Jacobian 0.000; over 2 queries it is 0.000." in window.said()
    page.get_by_role("button", name="Another query").focus()
    press(page, "Enter")
    assert page.get_by_role(
        "img", name="key 1 0.00, key 2 1.00"
    ).is_visible()
    assert window.faults == []


def test_waves_turn_alike_everywhere(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "waves", "page", "light"))
    assert window.said() == (
        "From position 3 to 7, columns 8 and 9 turn by 72.5°: "
        "(0.81, 0.58) becomes (0.80, −0.60)."
    )
    page.get_by_role("slider", name="position").focus()
    press(page, "Home")
    assert "turn by 72.5°: (0.00, 1.00) becomes (0.95, 0.30)." in (
        window.said()
    )
    page.get_by_role("slider", name="offset k").focus()
    press(page, "Home")
    assert "From position 0 to −20" in window.said()
    page.get_by_role("button", name="16, 17").focus()
    press(page, "Enter")
    assert "columns 16 and 17 turn by −114.6°" in window.said()
    assert window.faults == []


def test_heads_that_find_neighbours_are_taken_away(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "neighbours", "page", "light"))
    assert window.said() == (
        "With 1 head 30 % of the answers are right: two before 90 %, one "
        "before 10 %, one after 10 % and two after 10 %. Around “i” it says "
        "“a”, “z”, “z” and “z”, of which 1 is right."
    )
    page.get_by_role("button", name="4", exact=True).focus()
    press(page, "Enter")
    assert "“a”, “d”, “n” and “g”, of which 4 are right." in window.said()
    for head in ("head 1", "head 4"):
        page.get_by_role("button", name=head, exact=True).focus()
        press(page, "Enter")
    assert window.said().startswith(
        "With 4 heads, without head 1 and head 4, 50 % instead of 90 % of "
        "the answers are right: two before 10 %, one before 90 %"
    )
    page.get_by_role("slider", name="letter").focus()
    press(page, "Home")
    assert "Around “a” it says “z”, “e”, “d” and “z”" in window.said()
    page.locator("[role=gridcell]").first.focus()
    press(page, "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight")
    told = "From “a” head 2 gives 0 % to “d”, letter 4."
    assert page.get_by_text(told).is_visible()
    press(page, "Enter")  # asks about that letter
    assert "Around “d” it says “z”, “a”, “i” and “z”" in window.said()
    page.wait_for_function(
        "location.hash === '#neighbours:heads=4&at=3&off=03'"
    )
    window.open("about:blank")
    address = write(tmp_path, "neighbours", "page", "light")
    window.open(f"{address}#neighbours:heads=2&at=3&off=1")
    assert window.said().startswith("With 2 heads, without head 2, 30 %")
    assert window.faults == []


def test_a_stack_loses_its_norms_and_its_sums(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "depth", "page", "light"))
    assert window.said() == (
        "24 layers, post-norm, with residual sums: at the end the size of "
        "the stream is 1.0, and the likeness of its positions 0.90. The "
        "first layer’s gradient is 1.0 times the last’s."
    )
    without = page.get_by_role("button", name="without", exact=True)
    without.focus()
    press(page, "Enter")
    assert "24 layers, post-norm, without residual sums" in window.said()
    page.get_by_role("button", name="none", exact=True).focus()
    press(page, "Enter")
    assert "the size of the stream is 1.2·10⁻⁷, and" in window.said()
    page.get_by_role("button", name="with", exact=True).focus()
    press(page, "Enter")
    dot = page.locator(".fx svg circle").bounding_box()
    x, y = dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 1000, y, steps=4)
    page.mouse.up()
    assert window.said().startswith("1 layer, no norm, with residual sums")
    assert "gradient is" not in window.said()
    page.get_by_role("slider", name="layers").focus()
    press(page, "ArrowRight")
    assert window.said().endswith(
        "A model with 2 layers of this kind on each side, trained to "
        "reverse words, got 99 %, 0 %, 100 % of them right (by seed)."
    )
    page.get_by_label("What is drawn").select_option("gradient")
    page.wait_for_function(
        "location.hash === '#depth:norm=none&sums=1&layers=2&draw=gradient'"
    )
    assert page.locator(".fx table").inner_text().count("no norm") == 2
    assert window.faults == []


def test_table_1_is_turned(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "table1", "page", "light"))
    assert window.said() == (
        "At n = 1,024 and d = 512 a layer of self-attention takes 1.1·10⁹ "
        "multiplications, a recurrent one 5.4·10⁸: they are equal at n = "
        "512. The signal of the first position is one step from the last, "
        "instead of 1,023. A window of 33 takes 3.5·10⁷ a layer, and "
        "2.2·10⁹ in the 64 layers that connect them."
    )
    page.get_by_role("slider", name="n, length").focus()
    press(page, "ArrowLeft")
    assert "takes 2.7·10⁸ multiplications, a recurrent one 2.7·10⁸" in (
        window.said()
    )
    dot = page.locator(".fx svg circle").bounding_box()
    x, y = dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 1000, y, steps=4)
    page.mouse.up()
    assert window.said().startswith("At n = 65,536 and d = 512")
    page.get_by_label("What is drawn").select_option("path")
    page.wait_for_function(
        "location.hash === '#table1:n=65536&d=512&k=3&r=33&column=path'"
    )
    assert window.faults == []


def test_a_path_lights_up_between_two_letters(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "path", "page", "light"))
    assert window.said() == (
        "From letter 1, a, to the vector of letter 9, n, a recurrent layer "
        "takes 9 steps: one for the letter itself, and one for each after "
        "it."
    )
    page.get_by_role("button", name="dilated convolution").focus()
    press(page, "Enter")
    page.get_by_role("slider", name="window").focus()
    press(page, "ArrowLeft")
    assert window.said().endswith(
        "convolutions over 3 letters whose gaps double take 4 layers, which "
        "carry it up to 1, 2, 4 and 8 letters further."
    )
    box = page.locator(".fx svg").bounding_box()
    x, y = box["x"] + box["width"] * 4.5 / 9, box["y"]
    page.mouse.click(x, y + box["height"] - 5)  # the letters
    assert window.said().startswith("From letter 5, n, to the vector of l")
    page.mouse.move(x, y + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(x - 2.1 * box["width"] / 9, y + box["height"], steps=3)
    page.mouse.up()
    assert (
        "From letter 5, n, to the vector of letter 3, t," in window.said()
    )
    lit = ".fx svg line[style*='--accent']"
    assert page.locator(lit).count() == 2  # layers, and their sum is 2
    page.get_by_role("button", name="recurrent", exact=True).click()
    assert "3, t, never depends on letter 5, n," in window.said()
    assert page.locator(lit).count() == 0
    page.wait_for_function(
        "location.hash === '#path:word=attention&kind=recurrent&k=3&"
        "from=4&to=2'"
    )
    page.get_by_role("button", name="misunderstandings").click()
    page.get_by_role("button", name="self-attention", exact=True).click()
    assert "letter 17, s, self-attention takes 1 layer, " in window.said()
    assert window.faults == []


def test_a_sentence_moves_and_its_map_may_not(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "switches", "page", "light"))
    framed = page.locator(".fx td.frame")
    box = page.locator(".fx svg").first.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 6 * box["width"] / 52, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 26 * box["width"] / 52, y, steps=4)
    page.mouse.up()
    assert window.said().startswith(
        "Moved from position 0 to 20, no weight has changed: "
    )
    assert framed.count() == 0
    page.get_by_role("button", name="added: sinusoids").focus()
    press(page, "Enter")
    assert ", the weight that changed most went from 0." in window.said()
    assert framed.count() > 5
    page.get_by_role("button", name="2", exact=True).click()
    page.get_by_role("slider", name="window").focus()
    press(page, "Home", *["ArrowRight"] * 4)
    assert window.said().endswith(
        "holds 2 · 2 · 5 · 4 = 80 numbers: keys and values, 2 groups, 5 "
        "words, width 4. Through 6 layers a word hears of those up to 24 "
        "before it."
    )
    page.get_by_role("button", name="12 times").click()
    assert "Scores of one distance differ by up to " in window.said()
    page.get_by_role("button", name="turned: rotary").click()
    page.get_by_role("button", name="scores").click()
    assert "All scores of one distance are equal." in window.said()
    page.locator("[role=gridcell]").first.focus()
    press(page, "ArrowRight")
    told = page.get_by_text("“dog” at 20 does not see “dog” at 21.")
    assert told.is_visible()
    page.wait_for_function(
        "location.hash === '#switches:rotary=true&start=20&head=0&"
        "groups=2&window=5&words=one&shown=scores'"
    )
    page.get_by_role("slider", name="head").focus()
    press(page, "End")
    page.wait_for_function("location.hash.includes('head=7')")
    page.reload()
    assert window.said().startswith("Moved from position 0 to 20, no weig")
    assert page.get_by_role("slider", name="head").input_value() == "7"
    assert window.faults == []
