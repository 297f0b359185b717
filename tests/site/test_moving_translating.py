"""The figures of search, scores and trees, and the translator, moved with
the keyboard.
"""

import threading
from pathlib import Path
from typing import Any

import pytest

from annotated.book.look import look
from tests.site.moving import CASES, Window, press, write


@pytest.mark.parametrize("form", ["page", "notebook"])
def test_translate_loads_the_model_when_asked(
    window: Window, tmp_path: Path, form: str
) -> None:
    asked: list[str] = []
    window.page.on("request", lambda r: asked.append(r.url))
    page = window.open(write(tmp_path, "translate", form, "light"))
    source, target, _ = CASES["translate"]["samples"][0]
    assert "Load the model to translate it" in window.said()
    assert not any("model.js" in url for url in asked)
    page.get_by_role("button", name="Load the model, 0.0 MB").focus()
    press(page, "Enter")
    page.get_by_role("button", name="Translate").wait_for()
    assert f"“{source}” becomes “{target}”. That is right." in window.said()
    page.get_by_label("A German sentence").fill("Der Esel.")
    press(page, "Enter")
    assert "“Der Esel .” becomes" in window.said()
    assert "It has never met “Esel”." in window.said()
    for given, reason in {
        " ": "nothing to translate",
        "Hund " * 41: "41 words",
    }.items():
        page.get_by_label("A German sentence").fill(given)
        press(page, "Enter")
        assert reason in window.said()
    page.get_by_label("A German sentence").fill("der Esel.")
    press(page, "Enter")
    assert "as it knows it: “Der Esel .” becomes" in window.said()
    words = page.get_by_role("group", name="The translation, word by word")
    assert words.get_by_role("button").last.inner_text()[:5] == "(end)"
    words.get_by_role("button").first.click()
    page.locator(".fx-row", has_text="Instead of").get_by_role(
        "button"
    ).first.click()
    assert "You chose its first words" in window.said()
    page.get_by_role("button", name="English at English").click()
    page.get_by_role("group", name="head").get_by_role(
        "button", name="2"
    ).click()
    page.get_by_role("button", name="Silence this head").click()
    assert "Silent: decoder 1.2." in window.said()
    assert window.faults == []


def say(page: Any, text: str, *wanted: str) -> None:
    """Type a text, and wait for what is said then."""
    page.get_by_label("An English sentence").fill(text)
    press(page, "Enter")
    for one in wanted:
        page.locator(".fx-say", has_text=one).wait_for()


@pytest.mark.parametrize("form", ["page", "notebook"])
def test_a_sentence_is_translated_where_it_is_typed(
    window: Window, tmp_path: Path, form: str
) -> None:
    asked: list[str] = []
    window.page.on("request", lambda r: asked.append(r.url))
    page = window.open(write(tmp_path, "say", form, "light"))
    answers = CASES["say"]["answers"]
    assert "“Who is it?” becomes “Wer ist es?”" in window.said()
    assert not any("de.js" in url for url in asked)
    known, strange = "Do you know Tom?", "Do you know Zorro?"
    becomes = f"“{known}” becomes “{answers[known]}”."
    page.get_by_label("An English sentence").focus()
    say(page, "do you know tom", f"Written as it knows it: {becomes}")
    say(page, known, becomes)
    assert window.said() == becomes
    assert [url for url in asked if "es.js" in url] == []
    page.get_by_role("button", name="Spanish").click()
    if form == "page":
        page.wait_for_function("location.hash.endsWith('&into=es')")
        assert any("es.js" in url for url in asked)
    assert window.said() == becomes  # one model under two names
    assert page.locator(".say-line[lang=es]").count() == 1
    say(page, f"{strange} i know", "“Zorro”, “I” never stood in its")
    for text in (strange, "I know."):
        assert f"“{text}” becomes “{answers[text]}”." in window.said()
    assert page.locator(".say-unread").count() == 2
    say(
        page,
        "A. B. C. D. E.",
        "3 sentences at a time; “D. E.” was left out",
    )
    say(page, "know " * 41, "there is room for 60")
    say(page, " . ", "There is nothing to translate")
    assert window.faults == []


def test_what_a_piece_looked_at_is_shown_and_said(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "say", "page", "light"))
    written = page.get_by_role(
        "group", name="The translation, piece by piece"
    )
    read = page.get_by_role("group", name="What it reads, piece by piece")
    ist = written.get_by_role("button", name="ist")
    ist.click()
    assert window.said() == "To write “ist” it looked at “is” (90\u00a0%)."
    assert page.locator(".say-arcs path").count() == 1
    assert ist.get_attribute("aria-pressed") == "true"
    ist.click()
    assert page.locator(".say-arcs path").count() == 4
    read.get_by_role("button", name="it").click()
    assert window.said() == "“it” was looked at to write “es” (90\u00a0%)."
    ist.click()
    page.get_by_role("button", name="What else might it have said?").click()
    page.locator(".fx-say", has_text="“Who is it?” becomes").wait_for()
    written.get_by_role("button").nth(1).click()
    others = page.locator(".say-others").get_by_role("button")
    assert others.count() >= 3
    others.first.click()
    assert window.said().startswith("You chose its first words;")
    page.wait_for_function("location.hash.startsWith('#say:text=Who')")
    assert window.faults == []


def test_each_language_shows_what_it_made_before_it_is_loaded(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "say", "page", "light"))
    page.get_by_role("button", name="Spanish").click()
    page.locator(".fx-say", has_text="becomes “¿Quién es él?”").wait_for()
    page.get_by_role("button", name="German").click()
    page.locator(".fx-say", has_text="becomes “Wer ist es?”").wait_for()
    (tmp_path / "es.js").unlink()
    page.get_by_role("button", name="Spanish").click()
    page.get_by_role("button", name="Translate").click()
    page.get_by_text("could not be loaded: es.js cannot be read").wait_for()
    page.get_by_role("button", name="German").click()
    page.get_by_role("button", name="Translate").click()
    page.wait_for_function("location.hash.startsWith('#say:text=Who')")


# what the page loads waits for release(), in the order of the asking
HELD = """() => {
  const append = document.head.append.bind(document.head), held = [];
  document.head.append = (script) => held.push(script);
  window.release = () => append(...held.splice(0));
}"""


def test_two_languages_that_come_at_once_are_kept_apart(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "say", "page", "light"))
    (tmp_path / "es.js").write_text('movesLarge("AAAA");')
    page.evaluate(HELD)
    go = page.get_by_role("button", name="Translate")
    go.click()
    page.get_by_role("button", name="Spanish").click()
    page.locator(".say-ask button").click()
    page.evaluate("release()")
    page.get_by_text("The model could not be loaded: ").wait_for()
    page.get_by_role("button", name="German").click()
    go.click()
    page.wait_for_function("location.hash.endsWith('&into=de')")
    assert page.locator(".say-line[lang=de]").count() == 1
    # what is chosen while another language comes is still German
    page.get_by_role("button", name="Spanish").click()
    page.get_by_role("group", name="The translation").get_by_role(
        "button"
    ).first.click()
    page.locator(".say-others").get_by_role("button").first.click()
    assert window.said().startswith("You chose its first words;")
    assert page.locator(".say-line[lang=de]").count() == 1
    assert window.faults == []


def test_what_is_typed_while_a_language_comes_is_translated_once(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "say", "page", "light"))
    page.evaluate(HELD)
    field, go = (
        page.get_by_label("An English sentence"),
        page.locator(".say-ask button"),
    )
    for _ in range(3):
        go.click()
    field.fill("")
    told = """() => {
      window.told = [];
      new MutationObserver(() => told.push(1)).observe(
        document.querySelector(".fx-say"), {childList: true});
    }"""
    page.evaluate(told)
    page.evaluate("release()")
    page.get_by_text("There is nothing to translate").wait_for()
    page.evaluate("() => new Promise((go) => setTimeout(go, 50))")
    assert page.evaluate("told.length") == 1
    assert page.locator(".say-board").count() == 1
    assert window.faults == []


def test_a_file_that_is_no_model_is_said_so(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "translate", "page", "light"))
    (tmp_path / "model.js").write_text("0")
    page.get_by_label("A German sentence").focus()
    press(page, "Enter")
    assert window.said() == "The model has not been loaded yet."
    page.get_by_role("button", name="Load the model").click()
    page.get_by_text(
        "could not be loaded: model.js cannot be read"
    ).wait_for()
    assert page.get_by_role("button", name="Load the model").is_enabled()


def test_who_wants_no_motion_sees_it_at_once(
    browser: Any, tmp_path: Path
) -> None:
    waiting = ".say-waits"
    for motion, hidden in (("reduce", False), ("no-preference", True)):
        window = Window(browser, reduced_motion=motion)
        page = window.open(write(tmp_path, "say", "page", "light"))
        page.locator(".say-arcs path").first.wait_for(state="attached")
        if hidden:
            page.locator(waiting).first.wait_for(state="attached")
        assert (page.locator(waiting).count() > 0) == hidden
        window.context.close()


def test_any_run_can_be_looked_into(browser: Any) -> None:
    """The figure of chapter 19, answered by a server of this machine."""
    with look(Path("pocket")) as (server, address):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        window = Window(browser)
        page = window.open(address)
        said = page.locator(".fx-say", has_text="becomes")
        said.wait_for()
        assert "That is right. A beam of 4 finds the same." in window.said()
        page.get_by_label("A source sentence", exact=True).fill(
            "Der Hund bellt ."
        )
        press(page, "Enter")
        page.get_by_text("“Der Hund bellt .” becomes").wait_for()
        words = page.get_by_role(
            "group", name="The translation, word by word"
        )
        assert words.get_by_role("button").last.inner_text()[:5] == "(end)"
        words.get_by_role("button").first.click()
        page.locator(".fx-row", has_text="Instead of").get_by_role(
            "button"
        ).first.click()
        page.get_by_text("You chose its first words").wait_for()
        page.get_by_role("button", name="target at target").click()
        page.get_by_role("group", name="head").get_by_role(
            "button", name="2"
        ).click()
        page.get_by_role("button", name="Silence this head").click()
        page.get_by_text("Silent: decoder 2.2.").wait_for()
        page.get_by_label("A source sentence", exact=True).fill(
            "Hund " * 61
        )
        press(page, "Enter")
        page.get_by_text("does not answer: the sentence has 61").wait_for()
        window.context.close()
        server.shutdown()
        thread.join()
    asked = [fault for fault in window.faults if "asks" in fault]
    assert asked and all(f"asks {address}" in fault for fault in asked)
    refused = [fault for fault in window.faults if fault not in asked]
    assert all("400" in fault for fault in refused) and len(refused) == 1


def test_a_link_to_a_sentence_speaks_of_that_sentence(
    window: Window, tmp_path: Path
) -> None:
    address = write(tmp_path, "translate", "page", "light")
    window.open(f"{address}#translate:text=Der+Hund+%26+%3Cb%3E+50%25")
    window.page.locator(".fx").wait_for()
    assert window.said().endswith(
        "Load the model to translate “Der Hund & <b> 50%”."
    )
    assert window.faults == []


def test_a_model_that_is_not_there_is_said_so(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "translate", "page", "light"))
    (tmp_path / "model.js").unlink()
    page.get_by_role("button", name="Load the model").click()
    page.get_by_text(
        "could not be loaded: model.js cannot be read"
    ).wait_for()
    assert page.get_by_role("button", name="Load the model").is_enabled()


def test_beam_goes_on_a_word_at_a_time(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "beam", "page", "light"))
    assert window.said() == "A beam of 2 is about to choose its first word."
    page.get_by_role("button", name="Next word").focus()
    press(page, "Enter")
    assert window.said() == "Step 1: kept “it”, “the”."
    press(page, "Enter")
    assert "kept “the dog”, “it barks”; dropped “it is”." in window.said()
    press(page, "Enter")
    assert "“the dog” wins with -0.92." in window.said()
    page.get_by_role("slider", name="beam").focus()
    press(page, "ArrowLeft")
    assert "“it barks” wins with -1.20." in window.said()
    page.get_by_role("slider", name="is").focus()
    press(page, "Home")  # “it” after the start
    assert "“the dog” wins with -0.01." in window.said()
    assert window.faults == []


def test_a_link_to_a_beam_has_its_step_and_its_probabilities(
    window: Window, tmp_path: Path
) -> None:
    address = write(tmp_path, "beam", "page", "light")
    page = window.open(address)
    page.get_by_role("slider", name="is").focus()
    press(page, "Home")  # “it” after the start
    page.get_by_role("button", name="Next word").focus()
    press(page, "Enter", "Enter")
    page.wait_for_function("location.hash.includes('step=2')")
    link, said, tree = page.url, window.said(), page.locator(".fx svg")
    drawn = tree.text_content()
    page.goto("about:blank")
    page = window.open(link)
    assert window.said() == said
    assert tree.text_content() == drawn
    chance = page.get_by_role("slider", name="is")
    assert chance.get_attribute("aria-valuetext") == "0.01"
    page.get_by_role("button", name="Start over").click()
    page.wait_for_function("location.hash.includes('step=0')")
    assert window.faults == []


def test_bleu_follows_what_is_written(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "bleu", "page", "light"))
    page.get_by_role("button", name="2", exact=True).focus()
    press(page, "Enter")
    assert "Sentence 2 shares 6, 5, 4, 3 runs" in window.said()
    page.get_by_label("The translation").fill("a woman sings in the rain .")
    assert "7, 6, 5, 4 runs" in window.said()
    assert window.said().endswith("the BLEU of all 2 sentences is 100.0.")
    page.get_by_label("The translation").fill("")
    assert "With 4 words for 11" in window.said()
    assert window.said().endswith("is 17.4.")
    page.wait_for_function("location.hash === '#bleu:edit=2&t2='")
    page.get_by_role("button", name="As it was").focus()
    press(page, "Enter")
    assert "6, 5, 4, 3 runs" in window.said()
    assert window.faults == []


def test_a_tree_is_edited_and_scored(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "tree", "page", "light"))
    assert window.said() == (
        "2 of 2 brackets of the answer are right, and 2 of the truth's 4 "
        "are found: precision 100.0 %, recall 50.0 %, F1 66.7 %."
    )
    page.get_by_role("button", name="the truth").focus()
    press(page, "Enter")
    assert window.said().endswith("recall 100.0 %, F1 100.0 %.")
    tokens = page.get_by_role("group", name="Choose a token")
    tokens.get_by_role("button", name="(VP").focus()
    press(page, "Enter")
    page.get_by_role("button", name="Earlier").focus()
    press(page, "Enter", "Enter", "Enter")
    field = page.get_by_label("The tokens of the answer")
    assert field.input_value().startswith("(S (VP (NP PRP )NP VBD")
    assert "3 of 4 brackets of the answer are right, and 3 of" in (
        window.said()
    )
    assert page.get_by_role("row", name="VP 0–3 She saw boys").is_visible()
    page.get_by_role("button", name="Take out").focus()
    press(page, "Enter")
    assert window.said().startswith("This is no tree over the words, and")
    assert page.get_by_text(
        "As a tree: (S (NP PRP )NP VBD (NP"
    ).is_visible()
    field.fill("(S PRP , NNS")
    assert "evalb leaves the sentence out" in window.said()
    page.wait_for_function(
        "location.hash === '#tree:tokens=%28S+PRP+%2C+NNS'"
    )
    assert window.faults == []


def test_the_cache_moves_its_rows(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "cache", "page", "light"))
    assert window.said().startswith("Step 1: 1 new position is computed")
    page.get_by_role("button", name="Next step").focus()
    press(page, "Enter")
    assert "row 1 from row 0: 1 position of each copied." in window.said()
    press(page, "Enter")
    assert window.said() == (
        "Step 3: row 0 from row 1: 2 positions of each copied. 2 new "
        "positions are computed (framed); without a cache it would be 6."
    )
    assert page.get_by_role("button", name="Next step").is_disabled()
    told = "kept 144 kB, copied 72 kB"
    assert page.get_by_role("img", name=told).is_visible()
    page.get_by_role("slider", name="beam").focus()
    press(page, "ArrowLeft")
    assert window.said().startswith("Step 1: 1 new")
    assert window.faults == []


def test_a_link_to_the_cache_has_its_step(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "cache", "page", "light"))
    page.get_by_role("button", name="Next step").focus()
    press(page, "Enter", "Enter")
    page.wait_for_function("location.hash === '#cache:beam=2&step=2'")
    link, said = page.url, window.said()
    page.goto("about:blank")
    page = window.open(link)
    assert window.said() == said
    page.get_by_role("button", name="Start over").click()
    page.wait_for_function("location.hash === '#cache:beam=2&step=0'")
    page.goto("about:blank")
    window.open(link.replace("step=2", "step=9"))
    assert window.said() == said  # it has no more
    assert window.faults == []


def test_letters_are_drawn_and_cut_away(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "sample", "page", "light"))
    assert window.said().startswith(
        "After “s” the model knows 3 next letters; all may be drawn. The "
        "likeliest had 0.60 and has 0.60. Of 200 words drawn "
    )
    page.get_by_role("slider", name="temperature").focus()
    press(page, *["ArrowLeft"] * 5)
    assert "The likeliest had 0.60 and has 0.78." in window.said()
    page.get_by_role("slider", name="top-k").focus()
    press(page, "Home", "ArrowRight")
    assert "2 may be drawn, and 0.10 of its probability is cut away" in (
        window.said()
    )
    page.get_by_role("slider", name="top-p").focus()
    press(page, "Home")
    assert "; 1 may be drawn, and 0.40 of its probability" in window.said()
    field = page.get_by_label("words that begin with")
    field.fill("Sé")
    assert window.said().startswith("After “se” the model knows 2 next")
    page.wait_for_function(
        "location.hash === '#sample:begin=se&T=0.5&k=2&p=0.05&draw=1'"
    )
    field.fill("qx")
    assert window.said() == (
        "No word of the manual begins with “qx”, so this model has nothing to draw from."
    )
    assert window.faults == []


def test_letters_that_nothing_follows_are_named(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "sample", "page", "light"))
    field = page.get_by_label("words that begin with")
    for typed, told in (
        ("x", "begins with “x”"),
        ("xse", "goes on after “xse”"),
        ("axse", "goes on after “xse”"),
    ):
        field.fill(typed)
        assert f"No word of the manual {told}, so" in window.said()


def test_the_cut_itself_is_dragged(window: Window, tmp_path: Path) -> None:
    page = window.open(write(tmp_path, "sample", "page", "light"))
    dot = page.locator(".fx svg circle").bounding_box()
    x, y = dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - dot["width"] * 6, y + 5, steps=4)
    page.mouse.up()
    top = page.get_by_role("slider", name="top-k")
    assert top.get_attribute("aria-valuetext") == "1"
    assert "; 1 may be drawn" in window.said()
    assert window.faults == []


def test_two_beams_grow_one_below_the_other(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "beam", "page", "light"))
    page.get_by_role("slider", name="beam", exact=True).focus()
    press(page, "Home")
    page.get_by_role("slider", name="and below it").focus()
    press(page, "ArrowRight", "ArrowRight")
    assert window.said() == (
        "A beam of 1 is about to choose its first word. A beam of 2 is "
        "about to choose its first word."
    )
    step = page.get_by_role("button", name="Next word")
    step.focus()
    press(page, "Enter")
    assert window.said() == (
        "Beam 1. Step 1: kept “it”; dropped “the”. "
        "Beam 2. Step 1: kept “it”, “the”."
    )
    assert page.locator(".fx svg[role=img]").count() == 2
    while step.is_enabled():
        press(page, "Enter")
    one, two = window.said().split("Beam 2.")
    assert "“it barks” wins with -1.20" in one
    assert "“the dog” wins with -0.92" in two
    page.wait_for_function(
        "location.hash === '#beam:beam=1&alpha=0&beside=2&step=3'"
    )
    assert window.faults == []
