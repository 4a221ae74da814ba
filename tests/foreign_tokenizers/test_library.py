"""Tokenizers of other kinds than GPT-2's: ids equal to transformers', streamed decoding, saving, hostile files."""

import base64
import json
import random

import pytest
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers.implementations import BertWordPieceTokenizer, SentencePieceBPETokenizer

from minigpt.errors import TokenizerError
from minigpt.tokenizer.tokenizer import Tokenizer

SENTENCES = {
    "zh": "今天天气很好，我们去公园散步。这是很久之前的事情了，他说：“你好！”然后走了，一百二十三。GPT-2 写 abc。",
    "ja": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。ニャーニャー泣いていた。",
    "ko": "오늘은 날씨가 좋아서 우리는 공원에 갔다. 그는 오래전에 여기 살았다고 말했다. 안녕하세요, 여러분!",
    "ru": "Сегодня хорошая погода, и мы пошли в парк. «Здравствуйте!» — сказал он; это было очень давно.",
    "ar": "اليوم الطقس جميل وذهبنا إلى الحديقة. قال: مرحبا! كان ذلك منذ زمن بعيد جدا، في مدينة قديمة.",
    "de": "Heute ist das Wetter schön, und wir gingen in den Park. „Guten Tag!“ sagte er; das war vor 123 Jahren groß.",
}
ODD = "  \t\n\r\u3000\u00a0éÀß Ünïcode ﬁ①½ 😀👍🏽 \u200b\u0301 'LL don't <unk> ##a ▁x \ufeff \ue000 \u1234 हिन्दी ไทย"
ALL = "".join(SENTENCES.values()) + ODD
SPECIAL = ("[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]", "<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>")


def put(folder, config, **files):
    """Adds config files to a folder with a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **files.pop("model", {})}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def sentencepiece_file(path, language, **options):
    spm = pytest.importorskip("sentencepiece")
    source = path.parent / "corpus.txt"
    source.write_text(f"{SENTENCES[language]}\n{SENTENCES['de']}\n" * 30, encoding="utf-8")
    spm.SentencePieceTrainer.train(
        input=str(source), model_prefix=str(path.with_suffix("")), hard_vocab_limit=False, minloglevel=3, num_threads=1,
        **options,
    )  # fmt: skip
    source.unlink()
    path.with_suffix(".vocab").unlink()
    return path.with_suffix(".model").rename(path)


def chinese(folder):
    """As ckiplab's and uer's: BERT's vocab.txt, upper case kept."""
    put(folder, {"tokenizer_class": "BertTokenizer", "do_lower_case": False})
    trained = BertWordPieceTokenizer(lowercase=False)
    trained.train_from_iterator([SENTENCES["zh"]] * 2, vocab_size=400, min_frequency=1, show_progress=False)
    trained.save_model(str(folder))
    return folder


def chinese_json(folder):
    """The same kind in a tokenizer.json, lower case, with [CLS] and [SEP] around a text."""
    put(folder, {"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    trained = BertWordPieceTokenizer(lowercase=True)
    trained.train_from_iterator([ALL], vocab_size=400, min_frequency=1, show_progress=False)
    trained.save(str(folder / "tokenizer.json"))
    return folder


def japanese(folder):
    """As rinna's: a unigram model of SentencePiece's, opened as T5's."""
    put(folder, {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "eos_token": "</s>"})
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": 3}
    sentencepiece_file(folder / "spiece.model", "ja", vocab_size=300, character_coverage=0.98, **ids)
    return folder


def japanese_roberta(folder):
    """A unigram model with XLM-RoBERTa's order of the special tokens."""
    put(folder, {"tokenizer_class": "XLMRobertaTokenizer"})
    sentencepiece_file(folder / "sentencepiece.bpe.model", "ja", vocab_size=300, character_coverage=0.98)
    return folder


def german(folder):
    """As Llama's: BPE of SentencePiece's, with a token for every byte."""
    put(folder, {"tokenizer_class": "LlamaTokenizer", "legacy": False})
    options = {"model_type": "bpe", "byte_fallback": True, "user_defined_symbols": ["<x>"]}
    sentencepiece_file(folder / "tokenizer.model", "de", vocab_size=500, **options)
    return folder


def korean(folder):
    """As skt's: BPE over characters with SentencePiece's marks, in a tokenizer.json alone."""
    put(folder, {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "unk_token": "<unk>"})
    trained = SentencePieceBPETokenizer()
    special = ["<s>", "</s>", "<unk>"]
    trained.train_from_iterator(
        [SENTENCES["ko"]], vocab_size=300, min_frequency=1, special_tokens=special, show_progress=False
    )
    trained.add_tokens(["오늘은<"])
    trained.save(str(folder / "tokenizer.json"))
    return folder


def byte_level(folder, language, prefix):
    """Byte-level BPE with an end-of-text after every text; with a prefix it is not GPT-2's."""
    put(folder, {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"})
    trained = LibraryTokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"initial_alphabet": alphabet, "special_tokens": ["</s>"], "show_progress": False}
    trained.train_from_iterator([SENTENCES[language]], trainers.BpeTrainer(vocab_size=400, **options))
    trained.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    trained.save(str(folder / "tokenizer.json"))
    return folder


def russian(folder):
    return byte_level(folder, "ru", prefix=False)


def arabic(folder):
    return byte_level(folder, "ar", prefix=True)


def portuguese(folder):
    """GPT-2's oldest two files, with a space before every text, as RoBERTa's descendants have them."""
    from_json = byte_level(folder, "de", prefix=True)
    content = json.loads((from_json / "tokenizer.json").read_text())
    (folder / "tokenizer.json").unlink()
    put(folder, {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True, "eos_token": "</s>"})
    (folder / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, content["model"]["merges"])) + "\n")
    return folder


KINDS = {
    chinese: "wordpiece",
    chinese_json: "wordpiece",
    japanese: "unigram",
    japanese_roberta: "unigram",
    german: "bpe",
    korean: "bpe",
    russian: "bpe",
    arabic: "bpe",
    portuguese: "bpe",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Builds the folder of each kind once."""
    built = {}

    def folder_of(kind):
        if kind not in built:
            built[kind] = kind(tmp_path_factory.mktemp(kind.__name__))
        return built[kind]

    return folder_of


def texts(count, seed=0):
    """Random texts of several scripts, without the names of special tokens."""
    random_numbers = random.Random(seed)
    while count:
        start, length = random_numbers.randrange(len(ALL)), random_numbers.randrange(60)
        shuffled = "".join(random_numbers.choices(ALL, k=length))
        text = shuffled if count % 2 else ALL[start : start + length]
        if not any(name in text for name in SPECIAL):
            count -= 1
            yield text


def without_spaces(text):
    return "".join(text.split())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_ids_and_texts_equal_those_of_transformers(kind, folders, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = folders(kind)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer.load(folder)
    assert ours.name == f"{KINDS[kind]}:{ours.vocab_size}"
    ours.save(tmp_path)
    saved = Tokenizer.load(tmp_path)
    saved_theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert saved.fingerprint == ours.fingerprint
    for text in texts(1000):
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert ids == saved.encode(text) == saved_theirs.encode(text, add_special_tokens=False), text
        assert ours.encode_array(text).tolist() == ids
        decoded = ours.decode(ids)
        assert without_spaces(decoded) == without_spaces(theirs.decode(ids, clean_up_tokenization_spaces=False))
        stream = ours.decoder()
        assert "".join(map(stream.feed, ids)) + stream.flush() == decoded


def test_decoding_gives_spaced_texts_as_transformers_does(folders):
    transformers = pytest.importorskip("transformers")
    for kind in (japanese, german, korean, russian, arabic):
        ours, theirs = Tokenizer.load(folders(kind)), transformers.AutoTokenizer.from_pretrained(folders(kind))
        ids = ours.encode(SENTENCES["de"] + SENTENCES["ko"])
        assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False), kind


def test_chinese_is_written_without_spaces(folders):
    tokenizer = Tokenizer.load(folders(chinese))
    assert tokenizer.decode(tokenizer.encode("今天天气很好，我们去公园。")) == "今天天气很好，我们去公园。"
    assert tokenizer.decode(tokenizer.encode("abc 写 GPT-2")) == "abc写 GPT - 2"


def test_a_continuation_keeps_the_space_before_its_first_word(folders):
    tokenizer = Tokenizer.load(folders(german))
    ids = tokenizer.encode("Guten Tag")
    assert tokenizer.decode(ids) == "Guten Tag"
    stream = tokenizer.decoder(continues=True)
    assert "".join(map(stream.feed, ids)) == " Guten Tag"


@pytest.mark.parametrize(("kind", "names"), [(chinese, "[SEP] [CLS]"), (japanese, "</s>"), (korean, "<s> </s>")])
def test_the_name_of_a_special_token_is_ordinary_text(kind, names, folders):
    tokenizer = Tokenizer.load(folders(kind))
    found = tokenizer.encode(f"a {names} b")
    assert not {tokenizer.special[name] for name in names.split()} & set(found)


def test_texts_start_and_end_with_the_tokens_that_the_files_name(folders, tmp_path):
    tokenizer = Tokenizer.load(folders(chinese))
    start, end = tokenizer.special["[CLS]"], tokenizer.special["[SEP]"]
    assert (tokenizer.start_of_text, tokenizer.end_of_text) == (start, end)
    ids = tokenizer.encode_array("好<|endoftext|>好", documents=True).tolist()
    assert ids == [*tokenizer.encode("好"), end, start, *tokenizer.encode("好")]
    assert list(tokenizer.document_bytes(ids)) == ["好".encode()] * 2
    assert list(tokenizer.document_bytes(ids[:2])) == ["好".encode(), b""]
    folder = tmp_path / "model"
    chinese(folder)
    mask = tokenizer.special["[MASK]"]
    put(folder, {"tokenizer_class": "BertTokenizer"}, model={"eos_token_id": mask})
    assert Tokenizer.load(folder).end_of_text == mask
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [start, mask]}))
    assert Tokenizer.load(folder).end_of_text == start
    put(folder, {"tokenizer_class": "BertTokenizer"}, model={"eos_token_id": 50256})  # GPT2Config's default
    (folder / "generation_config.json").unlink()
    assert Tokenizer.load(folder).end_of_text == end


def test_what_is_lost_is_said(folders):
    lost = Tokenizer.load(folders(chinese_json)).losses()
    assert lost == [
        "upper case becomes lower case",
        "accents are lost",
        "line breaks and runs of spaces are lost",
        "a character without a token becomes [UNK]",
    ]
    assert Tokenizer.load(folders(german)).losses() == []
    assert Tokenizer.load(folders(russian)).is_lossless
    assert not Tokenizer.load(folders(german)).is_lossless


def test_a_saved_tokenizer_keeps_the_files_it_was_made_from(folders, tmp_path):
    for kind, name in ((chinese, "vocab.txt"), (japanese, "spiece.model")):
        Tokenizer.load(folders(kind)).save(tmp_path / name)
        assert (tmp_path / name / name).read_bytes() == (folders(kind) / name).read_bytes()


@pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "AlbertTokenizer", "RoFormerTokenizer"])
def test_a_class_with_other_rules_is_refused_by_name(name, folders, tmp_path):
    (tmp_path / "vocab.txt").write_bytes((folders(chinese) / "vocab.txt").read_bytes())
    put(tmp_path, {"tokenizer_class": name})
    with pytest.raises(TokenizerError, match=rf"tokenizer_class \({name}\) must be .* save a tokenizer\.json next"):
        Tokenizer.load(tmp_path)


def wordpiece(**changes):
    """The content of a small tokenizer.json, with changes."""
    content = {
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"[UNK]": 0, "[SEP]": 1, "a": 2},
        },
    }
    for path, value in changes.items():
        *folders, last = path.split("__")
        place = content
        for folder in folders:
            place = place[folder]
        place[last] = value
    return content


def replace(pattern, content="x"):
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalizer": replace({"String": ""})}, "must not be empty"),
        ({"normalizer": replace({"Regex": "(a+)+$"})}, "could take forever"),
        ({"pre_tokenizer": split("(x|x)*y")}, "could take forever"),
        ({"pre_tokenizer": split(r"\s+\s+\s+$")}, "could take forever"),
        ({"normalizer": replace({"String": "a"}, "a" * 1000)}, "more than 128 times as long"),
        ({"normalizer": {"type": "Sequence", "normalizers": [replace({"String": "a"}, "aa")] * 30}}, "128 times"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "precompiled_charsmap is damaged"),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 10**5}}, "must prepend"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 99}}, "at most 32 steps"),
        ({"normalizer": {"type": "Evil"}}, r"normalizer \(Evil\) must be one of"),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, r"pre_tokenizer \(FixedLength\) must be one of"),
        ({"decoder": {"type": "CTC"}}, r"decoder \(CTC\) must be"),
        ({"model__max_input_chars_per_word": 10**9}, "max_input_chars_per_word"),
        ({"model__unk_token": "missing"}, r"unk_token \('missing'\) must be a token"),
        ({"model__vocab": {"[UNK]": 0, "[SEP]": 1, "a": 2**40}}, "ids must be integers from 0"),
        ({"model__vocab": {"[UNK]": 0, "[SEP]": 1, "a": -1}}, "ids must be integers from 0"),
        ({"model__vocab": {"[UNK]": 0, "[SEP]": 1, "a" * 600: 2}}, "of at most 512 characters"),
        ({"model__vocab": {}}, "no eos_token has an id"),
        ({"model__vocab": 3}, "layout"),
        ({"model__type": "Nothing"}, "must be one of WordPiece"),
        ({"added_tokens": [{"id": 9, "content": "new", "special": False}]}, r"cannot have the id 9|refuses it"),
        ({"added_tokens": [{"id": 3, "content": "n" * 300, "special": False}]}, "the maximum is 256"),
        ({"normalizer": 7}, "layout"),
        ({"pre_tokenizer": {"type": "Metaspace", "replacement": "long"}}, "refuses it"),
    ],
)  # fmt: skip
def test_a_hostile_file_is_a_one_line_error(changes, message, tmp_path):
    put(tmp_path, {}, tokenizer=wordpiece(**changes))
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "tokenizer.json") in str(caught.value)


def test_the_file_that_is_made_hostile_is_a_good_one(tmp_path):
    put(tmp_path, {}, tokenizer=wordpiece())
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("a b") == [2, 0]
    assert tokenizer.decode([2, 0, 2]) == "a[UNK] a"


def test_a_damaged_table_of_characters_never_ends_the_process(folders, tmp_path):
    pytest.importorskip("sentencepiece")
    folder = folders(japanese)
    Tokenizer.load(folder).save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    table = base64.b64decode(content["normalizer"]["precompiled_charsmap"])
    random_numbers, answers = random.Random(1), set()
    for _ in range(150):
        damaged = bytearray(table)
        for _ in range(random_numbers.choice([1, 20])):
            damaged[random_numbers.choice([random_numbers.randrange(len(table)), random_numbers.randrange(2000)])] ^= (
                1 << random_numbers.randrange(8)
            )
        content["normalizer"]["precompiled_charsmap"] = base64.b64encode(damaged).decode()
        (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        try:
            tokenizer = Tokenizer.load(tmp_path)
            for text in texts(20):
                tokenizer.encode(text)
            answers.add("read")
        except TokenizerError as error:
            answers.add(str(error).split(": ")[-1])
    assert answers == {"read", "its precompiled_charsmap is damaged"}


def test_normalizers_that_hub_models_use_open(tmp_path):
    steps = [normalizers.NFKC(), normalizers.Replace("a", "b"), normalizers.Lowercase(), normalizers.StripAccents()]
    content = wordpiece(normalizer=json.loads(normalizers.Sequence(steps).__getstate__()))
    put(tmp_path, {}, tokenizer=content)
    assert Tokenizer.load(tmp_path).encode("Á") == [0]


def test_lone_surrogates_are_encoded(folders):
    assert Tokenizer.load(folders(korean)).encode("a\ud800b")


def test_a_folder_whose_tokenizer_cannot_be_made_says_so(tmp_path):
    put(tmp_path, {"tokenizer_class": "BertTokenizer"})
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(TokenizerError, match=r"vocab\.txt cannot be used: it must have a line for its unknown token"):
        Tokenizer.load(tmp_path)
