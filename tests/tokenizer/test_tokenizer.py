"""Encoding and decoding: every text comes back, and Hugging Face reads the same ids from the saved files."""

import hashlib
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import tokenizers
import transformers
import windows
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minigpt.errors import TokenizerError
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import bytes_to_unicode

ENGLISH = "It was the best of times, it was the worst of times; it was the age of wisdom, it's said.\n\n" * 20
MIXED = ENGLISH + "naïve café, Ünïcödé — 中文字符 日本語 русский язык 😀👍🏽 1234 don't we'll I'VE  \t x = {}\r\n" * 5

# Characters that tokenizers tend to handle wrongly, often next to each other, and arbitrary text.
TRICKY = st.lists(
    st.sampled_from([*" \t\n\r\x0b\x1c\x85\xa0\u2028\u3000'!a1é中😀\u0301\u200d\u00ad\0", "'s", "'LL", "the", " age"])
).map("".join)
TEXTS = st.one_of(TRICKY, st.text(), st.text(alphabet=sorted(set(MIXED))))
KINDS = ("gpt2", "bytes", "chars", "bpe:350")


def make(kind):
    return Tokenizer.named(kind) if kind in ("gpt2", "bytes") else Tokenizer.train([MIXED], kind)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Every kind of tokenizer, with the folder it is saved in."""
    result = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp("tokenizer")
        result[kind] = make(kind), folder
        result[kind][0].save(folder)
    return result


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("As the spaceship was approaching the", [1722, 262, 40663, 373, 13885, 262]),
        ("IEEE VIS conference highlights the", [40, 31909, 50035, 4495, 11330, 262]),
    ],
)
def test_gpt2_gives_the_published_ids(made, text, ids):
    assert made["gpt2"][0].encode(text) == ids


def test_gpt2s_merges_are_the_ones_openai_released():
    data = (resources.files("minigpt.tokenizer.gpt2") / "vocab.bpe").read_bytes()
    assert hashlib.sha256(data).hexdigest() == "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"


@pytest.mark.parametrize("kind", KINDS)
def test_ids_equal_those_of_hugging_face_on_the_saved_file(made, kind):
    tokenizer, folder = made[kind]
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    @given(TEXTS.filter(lambda text: "<|endoftext|>" not in text))  # which is text here and a token there
    @example(MIXED)
    @settings(deadline=None, max_examples=200)
    def check(text):
        assert tokenizer.encode(text) == theirs.encode(text).ids

    check()


def streamed(tokenizer, ids):
    decoder = tokenizer.decoder()
    return "".join(map(decoder.feed, ids)) + decoder.flush()


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_gives_the_encoded_text_and_arrays_hold_the_same_ids(made, kind):
    tokenizer = made[kind][0]

    @given(TEXTS, st.lists(st.integers(0, tokenizer.end_of_text)))
    @example("<|endoftext|>", [])
    @settings(deadline=None, max_examples=100)
    def check(text, any_ids):
        assert streamed(tokenizer, any_ids) == tokenizer.decode(any_ids)  # also of what is not UTF-8
        ids = tokenizer.encode(text)
        assert streamed(tokenizer, ids) == text
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode_array(text).tolist() == ids
        assert sum(tokenizer.token_lengths[ids]) == len(text.encode())

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load_is_the_identity(made, kind, tmp_path):
    tokenizer, folder = made[kind]
    loaded = Tokenizer.load(folder)
    assert (loaded.name, loaded.vocab_size, loaded.end_of_text) == (
        tokenizer.name,
        tokenizer.vocab_size,
        tokenizer.end_of_text,
    )
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode(MIXED) == tokenizer.encode(MIXED)
    loaded.save(tmp_path)
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_files_saved_on_windows_have_the_same_bytes(made, kind, tmp_path, monkeypatch):
    tokenizer, folder = made[kind]
    monkeypatch.setattr(Path, "write_text", windows.write_text)
    tokenizer.save(tmp_path)
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("kind", ["gpt2", "bytes", "bpe:350"])
def test_merges_are_saved_in_the_two_files_of_older_programs_too(made, kind, tmp_path):
    tokenizer, folder = made[kind]
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert Tokenizer.load(tmp_path).fingerprint == tokenizer.fingerprint
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(MIXED).input_ids == tokenizer.encode(MIXED)
    assert theirs.eos_token_id == tokenizer.end_of_text


def test_a_character_is_held_back_until_its_last_byte(made):
    decoder = made["bytes"][0].decoder()
    assert [decoder.feed(byte) for byte in "é中!".encode()] == ["", "é", "", "", "中", "!"]
    assert (decoder.feed(0xC3), decoder.flush()) == ("", "\ufffd")


def test_a_character_tokenizer_is_not_saved_as_merges(made):
    assert sorted(path.name for path in made["chars"][1].iterdir()) == ["tokenizer.json", "tokenizer_config.json"]


def test_tokenizers_have_different_names_and_fingerprints(made):
    made_ones = [tokenizer for tokenizer, _ in made.values()]
    assert [tokenizer.name for tokenizer in made_ones] == list(KINDS)
    others = [Tokenizer.train([MIXED], "bpe:351"), Tokenizer.train(["é"], "chars"), Tokenizer.train(["a"], "chars")]
    assert len({tokenizer.fingerprint for tokenizer in made_ones + others}) == len(made_ones) + len(others)


@pytest.mark.parametrize("kind", KINDS)
def test_the_literal_end_of_text_is_text_unless_documents_are_encoded(made, kind):
    tokenizer = made[kind][0]
    end = tokenizer.end_of_text
    assert end == tokenizer.vocab_size - 1
    assert end not in tokenizer.encode("a<|endoftext|>b")
    separated = [*tokenizer.encode("a  \n"), end, *tokenizer.encode(" b"), end]
    assert tokenizer.encode_array("a  \n<|endoftext|> b<|endoftext|>", documents=True).tolist() == separated
    assert tokenizer.decode([end]) == "<|endoftext|>"
    assert tokenizer.token_lengths[end] == 0


def test_a_byte_is_its_own_id_and_a_character_one_id(made):
    assert made["bytes"][0].encode("Aé") == [0x41, 0xC3, 0xA9]
    chars = made["chars"][0]
    assert len(chars.encode("naïve 中文 😀")) == len("naïve 中文 😀")
    assert chars.encode("A") == [0x41]
    assert Tokenizer.train(["\ud800é"], "chars").characters == ["é"]  # half of a surrogate pair is not a character
    assert chars.encode("ß") == list("ß".encode())  # a character that is not in the training text is encoded as bytes


def test_an_unknown_name_is_refused():
    with pytest.raises(TokenizerError, match="must be gpt2 or bytes"):
        Tokenizer.named("gpt3")


@pytest.mark.parametrize("id", [-1, 257, 10**9])
def test_an_id_outside_the_vocabulary_is_named(made, id):
    with pytest.raises(TokenizerError, match=rf"token id \({id}\) must be from 0 to 256 for bytes"):
        made["bytes"][0].decode([65, id])
    with pytest.raises(TokenizerError, match=str(id)):
        made["bytes"][0].decoder().feed(id)


@pytest.mark.parametrize("kind", ["gpt2", "chars"])
def test_half_a_surrogate_pair_and_a_very_long_run_of_spaces_can_be_encoded(made, kind):
    tokenizer = made[kind][0]
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"
    spaces = " " * 10**6 + "x"
    assert tokenizer.decode(tokenizer.encode(spaces)) == spaces


@pytest.mark.parametrize("ids", [(257, 258), (258, 257)])
def test_half_a_surrogate_pair_can_be_encoded_whatever_the_order_of_the_ids(ids):
    vocab = {bytes_to_unicode(bytes([byte])): byte for byte in range(256)}
    tokenizer = Tokenizer.from_vocabulary(
        vocab | dict(zip(("ab", "cd"), ids, strict=True)), ["a b", "c d"], special={"<e>": 256}, end_of_text="<e>"
    )
    for text, expected in (("ab\udcff", "ab\ufffd"), ("\ud83d\ude00cd", "\U0001f600cd")):
        assert tokenizer.encode(text) == tokenizer.encode_array(text).tolist() == tokenizer.encode(expected)


def test_importing_the_tokenizer_loads_neither_torch_nor_the_trainer():
    code = "import sys, minigpt.tokenizer.tokenizer; print({'torch', 'tokenizers', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
