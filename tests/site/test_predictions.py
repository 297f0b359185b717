"""A prediction arms its figure; the verdict comes when the reader has done
what it asks about, and not before.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.site.moving import CASES, Window, press, write


def slide(page: Any, name: str, *keys: str) -> None:
    page.get_by_role("slider", name=name, exact=True).focus()
    press(page, *keys)


def click(page: Any, name: str, group: str = "") -> None:
    within = page.get_by_role("group", name=group) if group else page
    within.get_by_role("button", name=name, exact=True).click()


def draw_ten(page: Any) -> None:
    for _ in range(10):
        click(page, "Train each row once: draw")


def lengthen(page: Any) -> None:
    # from (1.25, 0): half of what the plane has room for
    slide(page, "right", "End")


def into_bleu(text: str) -> Any:
    return lambda page: page.get_by_label("The translation").fill(text)


PERFECT = "a woman sings in the rain ."
# the answer, what does not count, what does, and the verdict
PREDICTIONS: dict[str, tuple[str, Any, Any, str]] = {
    "batches": (
        "it grows",
        lambda page: click(page, "by target"),
        lambda page: [
            click(page, "at random"),
            slide(page, "tokens per batch", "Home"),
        ],
        r"Not so: you said “it grows”\. From 60 to 20 tokens per batch it "
        r"went from 63\.6 % to 2\.3 %\. .* 7 steps instead of 2\.",
    ),
    "beam": (
        "a first word “it” that is less likely than “the”",
        lambda page: [click(page, "Next word") for _ in range(3)],
        lambda page: slide(page, "is", "Home"),
        r"Right: .* it found “it barks” with a log-probability of -1\.20; "
        r"now it finds “the dog” with -0\.01\.",
    ),
    "bleu": (
        "4",
        into_bleu("a man sings in the rain ."),
        into_bleu("a woman sings under the rain ."),
        r"Not so: you said “4”\. Of 22 runs 12 are left, so 10 are .* fell "
        r"from 100\.0 to 53\.3\.",
    ),
    "branches": (
        "the decoder’s cross-attention",
        lambda page: click(page, "self-attention on", "Encoder"),
        lambda page: [
            page.get_by_role("group", name="Encoder")
            .get_by_role("button", name="self-attention")
            .click(),
            page.get_by_role("button", name="cross-attention on").click(),
        ],
        r"(Right|Not so): you said “the decoder’s cross-attention”\. With "
        r"it the model writes “.*” for “abc”, and without it .*: \d letters",
    ),
    "cache": (
        "its whole past",
        lambda page: slide(page, "beam", "Home"),
        lambda page: [slide(page, "beam", "End"), click(page, "Next step")],
        r"Not so: .* In step 2 row 1 is taken over: its past of 1 position "
        r"is copied, .*: 2 instead of 4 for all\.",
    ),
    "cost": (
        "a third of that",
        lambda page: slide(page, "share of the peak", "ArrowRight"),
        lambda page: click(page, "H100"),
        r"Not so: .* From 27 to 2\.5 kWh, 11 times less: the H100 draws 4\.0 "
        r"times as much as one of the eight, but alone, and for 2\.3 hours "
        r"instead of 12 hours\.",
    ),
    "depth": (
        "about 5",
        lambda page: [click(page, "without"), click(page, "none")],
        lambda page: click(page, "with"),
        r"Not so: you said “about 5”\. From 1\.0 it went to 11,000: each "
        r"layer multiplies it by 1\.5, on average\. The first layer’s "
        r"gradient went from 1\.0 times the last’s to 11,000 times\.",
    ),
    "dials": (
        "half as high",
        lambda page: slide(page, "warm-up", "ArrowRight"),
        lambda page: [
            slide(page, "warm-up", "ArrowLeft"),
            slide(page, "width", "ArrowRight", "ArrowRight"),
        ],
        r"Right: .* The peak went from 7\.0·10⁻⁴ in step 4,000 to 3\.5·10⁻⁴ "
        r"in step 4,000\.",
    ),
    "draw": (
        "none",
        lambda page: click(page, "BLEU"),
        lambda page: [click(page, "loss"), draw_ten(page)],
        r"Not so: you said “none”\. In ten draws 1 of 3 comparisons pointed "
        r"the other way at least once \(b > a\)\. In all possible draws 1 "
        r"of 3 can\. Their differences are at most 0\.10 nats",
    ),
    "film": (
        "before step 1",
        lambda page: click(page, "Later"),
        lambda page: click(page, "Later"),
        r"Not so: you said “before step 1”\. At step 0 it wrote nothing; at "
        r"step 2 “ba” stands there for the first time, and the loss went "
        r"from 3\.00 to 2\.50\.",
    ),
    "heads": (
        "the encoder’s own",
        lambda page: click(page, "decoder 1.1"),
        lambda page: click(page, "cross 1.1"),
        r"Not so: .* Without cross 1\.1 50\.0 % of the sentences .*; "
        r"without the dearest of the encoder’s own, encoder 1\.1 1\.0 %\.",
    ),
    "lookup": (
        "to the mean",
        lambda page: slide(page, "sharpness", "End"),
        lambda page: [
            slide(page, "sharpness", "Home", *["ArrowRight"] * 10),
            lengthen(page),
        ],
        r"Not so: you said “to the mean”\. The largest weight went from "
        r"0\.48 to 0\.63, and the output from \(28\.8, 15\.6\) to "
        r"\(37\.8, 11\.1\)\.",
    ),
    "loops": (
        "no causal mask",
        lambda page: page.get_by_label(
            "The fault of panel A"
        ).select_option(label="rate too high"),
        lambda page: page.get_by_label(
            "The fault of panel B"
        ).select_option(label="mean of the sentences' means"),
        r"Not so: you said “no causal mask”\. It is “mean of the sentences' "
        r"means”: line and dots of panel B are 0\.02 nats from .*, A, 0\.50\.",
    ),
    "masks": (
        "still none",
        lambda page: click(page, "window of 3"),
        lambda page: [
            page.get_by_role("button", name="still none").click(),
            slide(page, "layers", "ArrowRight"),
        ],
        r"Not so: .* With one layer 0 of 6 positions .*, with two 2 do:",
    ),
    "neighbours": (
        "about half",
        lambda page: [click(page, "2"), click(page, "head 2")],
        lambda page: click(page, "4"),
        r"Not so: you said “about half”\. From one head to four the misses "
        r"went from 70 % to 10 %; most was gained for the letter one before, "
        r"which went from 10 % to 90 %\.",
    ),
    "path": (
        "2",
        lambda page: click(page, "dilated convolution"),
        lambda page: click(page, "convolution"),
        r"Not so: you said “2”\. Instead of 9 steps it takes 4 layers: ",
    ),
    "pieces": (
        "more",
        lambda page: page.get_by_label("Your text").fill("Generators"),
        lambda page: page.get_by_label("Your text").fill("GENERATORS"),
        r"Not so: you said “more”\. In small letters it is 11 tokens, in "
        r"capitals 11\.",
    ),
    "ring": (
        "twice as long",
        lambda page: slide(page, "devices", "End"),
        lambda page: click(page, "To the end"),
        r"Not so: .* From 195 ms in 6 rounds it went to 228 ms in 14: .* "
        r"Each device sent 390 MB, now 455 MB;",
    ),
    "sample": (
        "nearly as many",
        lambda page: slide(page, "top-k", "Home"),
        lambda page: [
            click(page, "As it is"),
            slide(page, "temperature", *["ArrowLeft"] * 7),
        ],
        r"(Right|Not so): you said “nearly as many”\. \d instead of \d are "
        r"different, and \d+ instead of \d+ are words of the manual\.",
    ),
    "scale": (
        "nearly all",
        lambda page: click(page, "no"),
        lambda page: slide(page, "d_k", "End"),
        r"Not so: .* Divided, at d_k = 1, 2 of the keys had 0\.05 or more, "
        r"and the largest weight was 0\.73; now 1 has, and it is 1\.00\.",
    ),
    "smooth": (
        "at 0.5",
        lambda page: slide(page, "ε", *["ArrowRight"] * 4),
        lambda page: page.get_by_role(
            "slider", name="label’s probability"
        ).fill("900"),
        r"Not so: you said “at 0\.5”\. The loss is lowest, 1\.015, where "
        r".* asked for, 0\.900\. At 0\.99 it is 1\.159; without smoothing it "
        r"was 0\.010 there\.",
    ),
    "stream": (
        "all 3",
        lambda page: slide(page, "vocabulary V", "ArrowLeft"),
        lambda page: slide(page, "vocabulary V", *["ArrowRight"] * 13),
        r"Not so: .* V = 37,000 fits 0 of the 3 counts, V = 40,000 fits 2,",
    ),
    "switches": (
        "about as much",
        lambda page: slide(page, "first position", "ArrowRight"),
        lambda page: slide(page, "first position", "End"),
        r"Not so: you said “about as much”\. At position 40 all weights are "
        r"what they were at 0; with sinusoids one went from 0\.30 to 0\.07\.",
    ),
    "table1": (
        "as much",
        lambda page: page.get_by_label("What is drawn").select_option(
            "all"
        ),
        lambda page: slide(page, "r, window", *["ArrowRight"] * 4),
        r"Not so: .* A layer takes 3\.5·10⁷ instead of 1\.1·10⁹ multiplic.*, "
        r"but it takes 64 of them to get across: 2\.2·10⁹, 2\.1 times",
    ),
    "tree": (
        "still 100",
        lambda page: click(page, "Take out"),
        lambda page: [
            click(page, "still 100"),
            click(page, "NNS", "Choose a token"),
            page.get_by_role("group", name="Choose a token")
            .get_by_role("button", name=")NP")
            .last.click(),
            click(page, "Take out"),
        ],
        r"Right: .* It went from 4 of 4 brackets, F1 100\.0, to 4, F1 100",
    ),
    "waves": (
        "it grows",
        lambda page: slide(page, "offset k", "ArrowRight"),
        lambda page: [
            slide(page, "offset k", "ArrowLeft"),
            slide(page, "position", *["ArrowRight"] * 10),
        ],
        r"Not so: .* From position 3 the hands are 72\.5° apart, from "
        r"position 13 72\.5°\.",
    ),
}
# their models come first: elsewhere; the last has the reader ask
APART = {"learn", "translate", "say"}


def test_every_figure_has_its_prediction() -> None:
    assert set(PREDICTIONS) | APART == set(CASES)


@pytest.mark.parametrize("name", sorted(PREDICTIONS))
def test_the_verdict_comes_when_it_has_been_done(
    window: Window, tmp_path: Path, name: str
) -> None:
    answer, away, act, wanted = PREDICTIONS[name]
    page = window.open(write(tmp_path, name, "page", "light"))
    before = page.locator(".fx-verdict")
    live = page.locator(".fx-guess [role=status], .fx-guess [aria-live]")
    assert live.count() == 0  # to be armed is no news
    page.locator(".fx-guess").get_by_role(
        "button", name=answer, exact=True
    ).focus()
    press(page, "Enter")
    assert before.inner_text() == ""
    if name == "tree":  # a token has to be chosen before one is taken out
        page.get_by_role("button", name="(S", exact=True).click()
    away(page)
    assert before.inner_text() == ""
    act(page)
    assert re.match(wanted, before.inner_text()), before.inner_text()
    assert window.faults == []


@pytest.mark.parametrize("name", sorted(PREDICTIONS))
def test_the_impatient_are_told(
    window: Window, tmp_path: Path, name: str
) -> None:
    page = window.open(write(tmp_path, name, "page", "light"))
    tell = page.get_by_role("button", name="Just tell me")
    tell.focus()
    press(page, "Enter")
    said = page.locator(".fx-verdict").inner_text()
    assert said and "you said" not in said
    assert tell.evaluate("(x) => x === document.activeElement")
    assert window.faults == []


def loaded(window: Window, tmp_path: Path) -> Any:
    page = window.open(write(tmp_path, "translate", "page", "light"))
    page.get_by_role("button", name="Load the model").click()
    page.get_by_role("button", name="Translate").wait_for()
    return page


def test_the_translator_is_asked_before_it_answers(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "translate", "page", "light"))
    page.get_by_role("button", name="yes", exact=True).click()
    field = page.get_by_label("A German sentence")
    assert field.input_value() == "Den Hund sucht der Junge ."
    assert page.get_by_text("Now load the model").is_visible()
    field.fill("Der Hund bellt .")
    page.get_by_role("button", name="Load the model").click()
    page.get_by_role("button", name="Translate").wait_for()
    assert window.verdict() == ""
    field.fill("Den Hund sucht der Junge .")
    press(page, "Enter")
    # of the words in capitals or not it knows “Der” alone
    assert window.verdict().startswith(
        "Not so: you said “yes”. “Den Hund sucht Der Junge .” became “"
    )
    page.get_by_role("button", name="Just tell me").click()
    page.get_by_text("sucht Der Junge .” became").wait_for()
    assert window.faults == []


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("der hund bellt", "Der Hund bellt ."),
        ("“Der Hund bellt.”", "Der Hund bellt ."),
        ("Der Hu\u200bnd\u00a0bellt.", "Der Hund bellt ."),
        ("Der Hund bellt. Der Hund bellt.", "Der Hund bellt ."),
    ],
)
def test_what_is_typed_is_read_as_the_model_knows_it(
    window: Window, tmp_path: Path, typed: str, read: str
) -> None:
    page = loaded(window, tmp_path)
    page.get_by_label("A German sentence").fill(typed)
    press(page, "Enter")
    assert f"“{read}” becomes" in window.said()
    assert "never met" not in window.said()
    if typed.count("bellt") > 1:
        assert window.said().startswith("It takes one sentence at a time")
    assert page.get_by_label("A German sentence").input_value() == read
    assert window.faults == []


def test_a_sentence_is_built_in_english(
    window: Window, tmp_path: Path
) -> None:
    page = loaded(window, tmp_path)
    field = page.get_by_label("A German sentence")

    def menu(name: str, option: str) -> None:
        page.get_by_label(name, exact=True).select_option(label=option)

    menu("does", "give")
    menu("who", "the woman")
    menu("whom", "the child")
    menu("what", "an apple")
    assert field.input_value() == "Die Frau gibt dem Kind einen Apfel ."
    menu("when", "tomorrow")
    menu("where", "in the garden")
    assert field.input_value() == (
        "Die Frau wird morgen dem Kind einen Apfel im Garten geben ."
    )
    page.get_by_role("checkbox", name="not").check()
    menu("because", "Lena sleep")
    assert field.input_value() == (
        "Die Frau wird morgen dem Kind keinen Apfel im Garten geben , weil "
        "Lena schläft ."
    )
    page.get_by_role("checkbox", name="question").check()
    assert field.input_value().startswith("Wird die Frau morgen dem Kind")
    assert page.evaluate("document.activeElement.type") == "checkbox"
    words = page.get_by_role("group", name="Word by word")
    assert words.get_by_text("apple").is_visible()
    words.get_by_role("button", name="Apfel").click()
    page.get_by_role("button", name="Käse cheese").focus()
    press(page, "Enter")
    assert "keinen Käse im" in field.input_value()
    assert "“Wird die Frau" in window.said()  # written, and translated
    kept = page.evaluate("document.activeElement.textContent")
    assert kept == "Käsecheese"
    page.get_by_role("button", name="Another sentence").focus()
    press(page, "Enter")
    assert page.evaluate("document.activeElement.textContent") == (
        "Another sentence"
    )
    assert window.faults == []
