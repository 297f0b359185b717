"""Chapter 10: text becomes ids, and comes back unharmed."""

import gzip
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import models, processors

import annotated.corpora.tokenizers as engine
from annotated.corpora.sentencepieces import unknown_words
from annotated.corpora.torchtext import from_torchtext, torchtext_pairs
from annotated.tokens import (
    BOS,
    EOS,
    PAD,
    SPECIALS,
    UNK,
    BytePairs,
    Tokenizer,
    byte_ids,
    split_words,
)
from tests.helpers import benchmark

calm = settings(deadline=None)  # a busy machine is no failure
KINDS = ("bpe", "wordpiece", "word")
LINES = [
    "the lower the newer the wider",
    "the newest and the widest river",
    "der Fluss ist größer als der Bach",
    "die größten Flüsse sind die ältesten",
] * 3


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return Tokenizer.train(LINES, 300, request.param)


BPE = Tokenizer.train(LINES, 300)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@calm
@given(TEXT)
@example("")
@example(" ")
@example("  leading, trailing  and   inner blanks ")
@example("\ttabs\r\n and lines\u2028\u3000")
@example("größte Äpfel, naïve cafés, 東京, 😀👩‍👧, e\u0301")
@example("a\0b")
@example("<s> is </s> not <pad> or <unk>")
@example("x" * 1000)
def test_bpe_gives_back_any_text_to_the_last_blank(text):
    assert BPE.decode(BPE.encode([text])) == [text]


@calm
@given(TEXT)
def test_bpe_never_says_unknown_nor_a_special(text):
    assert all(i > UNK for i in BPE.encode([text])[0])


@calm
@given(st.lists(st.integers(0, len(BPE) - 1), max_size=20))
def test_any_ids_decode_to_valid_text(ids):
    (line,) = BPE.decode([ids])
    assert line.encode("utf-8").decode("utf-8") == line


def test_a_word_has_the_same_tokens_wherever_it_stands():
    first, later = BPE.encode(["river", "the river"])
    assert later[-len(first) :] == first


def test_an_empty_line_has_no_tokens(tokenizer):
    assert tokenizer.encode(["", "the"])[0] == []
    assert tokenizer.decode([[]]) == [""]
    assert tokenizer.encode([]) == tokenizer.decode([]) == []


def test_a_lone_surrogate_becomes_the_replacement_character(tokenizer):
    tokenizer.encode(["\ud800"])  # no error
    assert BPE.decode(BPE.encode(["a\udcffb\ud800"])) == ["a\ufffdb\ufffd"]
    trained = Tokenizer.train(["a \ud800", "a b"], 300)
    assert trained.decode(trained.encode(["a"])) == ["a"]


def test_two_surrogates_that_belong_together_become_their_character():
    assert BPE.decode(BPE.encode(["\ud83d\ude00"])) == ["😀"]


def test_the_specials_are_ids_0_to_3_and_decode_drops_them(tokenizer):
    inner = tokenizer.inner
    assert [inner.id_to_token(i) for i in range(4)] == SPECIALS
    assert [PAD, BOS, EOS, UNK] == [0, 1, 2, 3]
    (ids,) = tokenizer.encode(["the newest"])
    assert tokenizer.decode([[BOS, *ids, EOS, PAD]]) == ["the newest"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_spells_a_special_does_not_become_one(kind):
    spelled = " ".join(SPECIALS)
    for lines in (LINES, LINES + [spelled] * 9):
        tokenizer = Tokenizer.train(lines, 300, kind)
        (ids,) = tokenizer.encode([f"the {spelled} </s>"])
        assert not {PAD, BOS, EOS} & set(ids)
        inner = tokenizer.inner
        assert [inner.id_to_token(i) for i in range(4)] == SPECIALS
        assert len(set(inner.get_vocab().values())) == len(tokenizer)


@pytest.mark.parametrize("kind", ["wordpiece", "word"])
def test_words_come_back_with_one_blank_between(kind):
    tokenizer = Tokenizer.train(LINES, 300, kind)
    ids = tokenizer.encode(["  the \t newest   river "])
    assert tokenizer.decode(ids) == ["the newest river"]


def test_word_pieces_spell_a_word_that_was_never_seen():
    tokenizer = Tokenizer.train(LINES, 300, "wordpiece")
    (ids,) = tokenizer.encode(["lowest"])
    assert UNK not in ids
    assert len(ids) > 1
    assert tokenizer.decode([ids]) == ["lowest"]


@pytest.mark.parametrize("length", [99, 100, 101, 110, 5000])
def test_a_line_without_spaces_is_a_word_of_any_length(length):
    line = ("我们今天去学校学习中文" * 500)[:length]
    tokenizer = Tokenizer.train([line[:33], "hello world"], 60, "wordpiece")
    (ids,) = tokenizer.encode([f"hello {line} world"])
    assert UNK not in ids
    assert tokenizer.decode([ids]) == [f"hello {line} world"]
    lost = f"{line}界"
    assert tokenizer.encode([f"hello {lost}"])[0][-1] == UNK
    assert unknown_words(tokenizer, [line, lost, "xyz"]) == [lost, "xyz"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("abc界 \t", max_size=9), max_size=4))
def test_long_words_are_spelt_as_the_library_spells_short_ones(lines):
    tokenizer = Tokenizer.train(
        ["abc ab a", "bca cab aabb"] * 3, 40, "wordpiece"
    )
    short = tokenizer.encode(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_LONG", 0)  # all of them are long
        assert tokenizer.encode(lines) == short


def test_a_word_that_was_never_seen_is_unknown():
    tokenizer = Tokenizer.train(LINES, 300, "word")
    assert tokenizer.encode(["lowest river"])[0][0] == UNK


def test_words_are_numbered_by_frequency_then_alphabet():
    tokenizer = Tokenizer.train(["b a c a", "c a b d"], 7, "word")
    assert tokenizer.encode(["a b c d"]) == [[4, 5, 6, UNK]]


def test_of_words_keeps_the_order_and_counts_a_word_once():
    words = ["<unk>", "<pad>", "zwei", "eins", "zwei"]
    tokenizer = Tokenizer.of_words(words)
    assert len(tokenizer) == 6
    assert tokenizer.encode(["eins zwei drei"]) == [[5, 4, UNK]]


def test_tokens_are_shown_without_their_blank():
    (ids,) = BPE.encode(["the newest"])
    shown = BPE.tokens([BOS, *ids, EOS])
    assert shown == ["<s>", "the", "new", "est", "</s>"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_is_no_larger_than_asked(kind):
    for vocab in (280, 290, 300):
        assert len(Tokenizer.train(LINES, vocab, kind)) <= vocab


def test_save_and_load_give_the_same_tokenizer(tokenizer, tmp_path):
    text = ["the newest </s> größte  Bach ", "", "\0 <pad>"]
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert len(again) == len(tokenizer)
    ids = tokenizer.encode(text)
    assert again.encode(text) == ids
    assert again.decode(ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"half"])
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    BPE.save(path)
    if content == b"half":
        content = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"tokenizer\.json is no tokenizer"
    ):
        Tokenizer.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nothing\.json is no tokenizer"):
        Tokenizer.load(tmp_path / "nothing.json")


def test_a_tokenizer_with_other_specials_is_refused(tmp_path):
    path = tmp_path / "foreign.json"
    words = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "the": 4}
    model = models.WordLevel(words, unk_token="[UNK]")
    tokenizers.Tokenizer(model).save(str(path))
    with pytest.raises(ValueError, match=r"ids 0 to 3 are \['\[PAD\]'"):
        Tokenizer.load(path)


def test_an_unknown_kind_is_refused():
    with pytest.raises(
        ValueError, match="bpe, wordpiece, word, not 'char'"
    ):
        Tokenizer.train(LINES, 300, "char")


@pytest.mark.parametrize("vocab", [-1, 0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_too_small_says_how_large_it_must_be(kind, vocab):
    with pytest.raises(ValueError, match="vocab must be at least") as error:
        Tokenizer.train(LINES, vocab, kind)
    least = int(str(error.value).split("at least ")[1].split()[0])
    assert len(Tokenizer.train(LINES, least, kind)) == least


def test_bpe_needs_every_byte_and_the_specials():
    with pytest.raises(ValueError, match="at least 260"):
        Tokenizer.train(LINES, 259)


PROBE = "from tests.story.test_tokens import *; print(*map(digest, KINDS))"


def digest(kind):
    trained = Tokenizer.train(LINES, 300, kind).inner.to_str()
    return hashlib.sha256(trained.encode()).hexdigest()


@pytest.mark.slow  # its processes wait for each other
def test_training_is_the_same_in_every_process():
    run = subprocess.run(
        [sys.executable, "-c", PROBE],
        capture_output=True,
        cwd=Path(__file__).parents[2],
        text=True,
        check=True,
    )
    assert run.stdout.split() == [digest(kind) for kind in KINDS]


@pytest.mark.parametrize("kind", KINDS)
def test_a_very_long_line_is_encoded(kind):
    tokenizer = Tokenizer.train(LINES, 300, kind)
    line = "the größte " * 5_000 + "x" * 45_000
    (ids,) = tokenizer.encode([line])
    assert len(ids) >= 10_000


def test_no_special_is_added_whatever_the_inner_tokenizer_would_add():
    inner = Tokenizer.of_words(["the", "sea"]).inner
    ends = [("<s>", BOS), ("</s>", EOS)]
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=ends
    )
    assert Tokenizer(inner).encode(["the sea"]) == [[4, 5]]


def test_a_figure_shows_specials_and_spaces_by_their_names():
    bpe = Tokenizer.train(LINES, 300)
    space = bpe.inner.token_to_id("Ġ")
    assert bpe.tokens([BOS, space, PAD]) == ["<s>", "Ġ", "<pad>"]


# --- the plain form ---


PLAIN = BytePairs.train(LINES, 300)


def test_the_plain_form_learns_the_merges_of_the_library():
    for lines in (LINES, ["aaaa aaa aa", "abab ab", "zzz", "", "--- --"]):
        plain, fast = (c.train(lines, 300) for c in (BytePairs, Tokenizer))
        number = fast.inner.get_vocab()
        table = json.loads(fast.inner.to_str())["model"]["merges"]
        assert list(plain.merges) == [
            (number[a], number[b]) for a, b in table
        ]
        assert list(plain.merges.values()) == list(range(260, len(fast)))


@calm
@given(st.text(st.characters(codec="latin-1"), max_size=40))
@example("it's 1,234 <pad>")
@example("  two  and_one ")
@example("größte Flüsse")
def test_the_plain_form_encodes_as_the_library_and_decodes(text):
    text = re.sub("[\x1c-\x1f²³¹¼½¾]", "", text)  # re and Rust differ there
    ids = PLAIN.encode(text)
    assert [ids] == BPE.encode([text])
    assert PLAIN.decode(ids) == text


def test_the_plain_form_merges_in_the_order_learned():
    a, b, c = byte_ids("abc")
    space = byte_ids(" ")[0]
    for merges, ids in (
        ({(b, c): 260, (a, b): 261}, [space, a, 260]),
        ({(a, b): 260, (b, c): 261}, [space, 260, c]),
    ):
        pairs = BytePairs(merges)
        assert pairs.encode("abc") == ids
        assert pairs.decode(ids) == "abc"


def test_the_plain_form_decodes_specials_to_nothing_and_half_a_letter():
    half = byte_ids("ä")[:1]
    ids = [BOS, *byte_ids("a"), *half, UNK, EOS, PAD]
    assert PLAIN.decode(ids) == "a\N{REPLACEMENT CHARACTER}"


def test_pieces_make_up_the_line():
    for line in (*LINES, "it's 1,234 <pad>", " \t x", "\u3000東京 _a1_"):
        assert "".join(split_words(line)) == f" {line}"


def test_the_benchmark_counts_the_tokens_of_captions(tmp_path):
    for part in ("train", "test_2016_flickr"):
        for language, lines in (("en", LINES[:2]), ("de", LINES[2:4])):
            path = tmp_path / f"{part}.{language}.gz"
            path.write_bytes(gzip.compress("\n".join(lines).encode()))
    file = tmp_path / "pieces.json"
    with benchmark("pieces") as script:
        line = [f"--folder={tmp_path}", f"--json={file}"]
        assert script.main([*line, "--sizes", "260"]) == 0
        assert script.main([f"--folder={tmp_path / 'none'}"]) == 2
    (row,) = json.loads(file.read_text("utf-8"))["metrics"]["lengths"]
    for language, lines in (("English", LINES[:2]), ("German", LINES[2:4])):
        size = sum(len(f" {line}".encode()) for line in lines) / 2
        assert row[language] == size


# --- at scale ---


class Again:
    """Lines that can be gone through again, and nothing else."""

    def __init__(self, lines):
        self.lines, self.times = lines, 0

    def __iter__(self):
        self.times += 1
        return iter(self.lines)


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_the_same_from_lines_that_come_and_go(kind):
    kept = Tokenizer.train(LINES, 300, kind)
    for lines in (Again(LINES), iter(LINES)):
        streamed = Tokenizer.train(lines, 300, kind)
        assert streamed.inner.to_str() == kept.inner.to_str()


def test_word_pieces_keep_the_commonest_characters(monkeypatch):
    rare = [chr(0x4E00 + i) + "x" for i in range(50)]
    monkeypatch.setattr(engine, "_MOST_CHARACTERS", 9)
    made = Tokenizer.train(
        ["the river is the sea"] * 9 + rare, 60, "wordpiece"
    )
    assert made.encode([rare[0], "the"])[0] == [UNK]
    assert UNK not in made.encode(["the"])[0]


# --- torchtext ---


class Vocab:
    """What the adapter asks of torchtext.vocab.Vocab."""

    def __init__(self, words):
        self.words = words

    def get_itos(self):
        return self.words


OLD = ["<unk>", "dog", "<pad>", "<bos>", "<s>", "<eos>", "a"]


def vocabularies():
    """A stand-in, and the real thing where torchtext loads."""
    yield Vocab(OLD)
    try:
        from torchtext.vocab import vocab as make
    except (ImportError, OSError):
        return
    yield make(dict.fromkeys(OLD, 1))


@pytest.mark.parametrize(
    "vocab", list(vocabularies()), ids=lambda v: type(v).__module__
)
def test_a_torchtext_vocabulary_becomes_a_tokenizer(vocab):
    tokenizer, rows = from_torchtext(vocab)
    assert tokenizer.encode(["a dog", "a cat <pad>"]) == [
        [5, 4],
        [5, UNK, UNK],
    ]
    assert [OLD[i] for i in rows] == [
        "<pad>",
        "<bos>",
        "<eos>",
        "<unk>",
        "dog",
        "a",
    ]
    assert len(rows) == len(tokenizer)


def test_the_names_of_its_specials_can_be_told():
    vocab = Vocab(["PAD", "S", "E", "U", "dog"])
    tokenizer, rows = from_torchtext(vocab, ["PAD", "S", "E", "U"])
    assert tokenizer.encode(["dog"]) == [[4]]
    assert rows == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="no <pad>, <bos>, <eos>, <unk>"):
        from_torchtext(vocab)
    with pytest.raises(ValueError, match="has no words"):
        from_torchtext(Vocab(OLD[:1] + OLD[2:4] + OLD[5:6]))
    with pytest.raises(ValueError, match="four names, for padding"):
        from_torchtext(vocab, ["PAD", "S", "E"])


def test_old_weights_fit_the_new_numbers():
    vocab = Vocab(OLD)
    tokenizer, rows = from_torchtext(vocab)
    weights = {word: float(i) for i, word in enumerate(OLD)}
    new = [list(weights.values())[i] for i in rows]
    (ids,) = tokenizer.encode(["dog a"])
    assert [new[i] for i in ids] == [weights["dog"], weights["a"]]


def test_a_torchtext_data_set_becomes_two_lists():
    items = [("Ein Hund.\n", "A dog.\n"), ["Ja.", "Yes."], ("x", "y")]
    assert torchtext_pairs(iter(items), 2) == (
        ["Ein Hund.", "Ja."],
        ["A dog.", "Yes."],
    )
    with pytest.raises(ValueError, match="item 1 is not a pair of strings"):
        torchtext_pairs([("a", "b"), ("a", "b", "c")])
    for item in ((3, 1), {"de": "Ja.", "en": "Yes."}, "ab", 3):
        with pytest.raises(ValueError, match="item 0 is not a pair of str"):
            torchtext_pairs([item])
