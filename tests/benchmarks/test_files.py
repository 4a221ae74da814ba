"""The file formats of benchmarks, messages for other files, where data is found, and the published results."""

import bz2
import gzip
import json
import logging
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import new_model
from huggingface_hub.errors import HfHubHTTPError

from minigpt.benchmarks import cbt, hellaswag, lambada, language_modeling
from minigpt.benchmarks.detokenizers import detokenize_cbt, detokenize_ptb, detokenize_wikitext
from minigpt.benchmarks.published_results import PUBLISHED, nearest_size, published_results
from minigpt.benchmarks.results import DataFile
from minigpt.benchmarks.suite import BENCHMARKS, find_data, run_benchmark
from minigpt.errors import DataError
from minigpt.tokenizer.tokenizer import Tokenizer

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
HELLASWAG = {
    "ind": 24, "activity_label": "Roof shingle removal", "ctx_a": "A man is sitting on a roof.", "ctx_b": "he",
    "ctx": "A man is sitting on a roof. he", "endings": ["is [step] up.", "rips.", "is", "starts [title] pulling."],
    "label": 3,
}  # fmt: skip
CBT = "".join(f"{number} line {number} .\n" for number in range(1, 21)) + "21 a XXXXX b\tcat\t\tdog|cat\n\n"
WIKITEXT = " \n = Robert Boulter = \n \n Robert Boulter is an English actor . \n"
PTB = " no it was n't black monday \n but N <unk> \n"


def data(path: Path, content: str | bytes) -> DataFile:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return DataFile(path, path.name)


def test_hellaswag_has_the_prepared_form_of_lm_eval_and_the_raw_form(tmp_path: Path) -> None:
    (prepared,), (raw,) = hellaswag.read_questions(data(tmp_path / "h.jsonl", json.dumps(HELLASWAG)))
    assert prepared.context == "Roof shingle removal: A man is sitting on a roof. He"
    assert prepared.endings == ("is up.", "rips.", "is", "starts.  pulling.".replace("  ", " "))
    assert prepared.label == raw.label == 3
    assert raw.context == HELLASWAG["ctx"]
    assert raw.endings == tuple(HELLASWAG["endings"])  # type: ignore[arg-type]


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress)])
def test_compressed_files_are_read_directly(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    text = b"a text\n2\nno\nnor\nyes\nnot\n"
    prepared, raw = hellaswag.read_questions(data(tmp_path / f"hellaswag_val_full.txt{suffix}", pack(text)))
    assert prepared == [hellaswag.HellaSwagExample("a text", ("no", "nor", "yes", "not"), 2)]
    assert raw == []
    passage = json.dumps({"text": "the last word"}).encode()
    assert lambada.read_passages(data(tmp_path / f"l.jsonl{suffix}", pack(passage))) == ["the last word"]


def test_wikitext_is_read_from_a_zip(tmp_path: Path) -> None:
    path = tmp_path / "w.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("wikitext-2-raw/wiki.train.raw", "x")
        archive.writestr("wikitext-2-raw/wiki.test.raw", WIKITEXT)
    found = language_modeling.read_wikitext(DataFile(path, "w.zip", "wikitext-2-raw/wiki.test.raw"))
    assert "".join(found) == WIKITEXT
    with pytest.raises(DataError, match=r"w.zip contains .*, expected 'elsewhere'"):
        list(language_modeling.read_wikitext(DataFile(path, "w.zip", "elsewhere")))


def test_cbt_has_sentences_a_question_and_candidates(tmp_path: Path) -> None:
    (question,) = cbt.read_questions(data(tmp_path / "cbtest_NE_valid_2000ex.txt", CBT))
    assert question.before.startswith("line 1 . line 2 .")
    assert (question.sentence, question.candidates, question.answer) == ("a XXXXX b", ("dog", "cat"), 1)
    names = ["x/cbtest_CN_valid_2000ex.txt", "CN/NE/validation-00000.parquet", "other.txt", "NEWS_CNN.txt"]
    assert [cbt.word_class(DataFile(Path(name), name)) for name in names] == ["CN", "NE", "all", "all"]


def test_cbt_may_have_windows_line_endings(tmp_path: Path) -> None:
    name = "cbtest_NE_valid_2000ex.txt"
    windows = cbt.read_questions(data(tmp_path / name, CBT.replace("\n", "\r\n")))
    assert windows == cbt.read_questions(data(tmp_path / name, CBT))


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress)])
def test_a_line_that_is_too_long_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr("minigpt.bounded_reading.MAX_LINE", 100)
    file = data(tmp_path / f"l.jsonl{suffix}", pack(b'{"text": "a b"}\n' + 101 * b" "))
    with pytest.raises(DataError) as error:
        lambada.read_passages(file)
    expected = f"l.jsonl{suffix}: line 2 has more than 100 bytes; pass the benchmark's original file with --data"
    assert str(error.value) == expected


def test_parquet_rows_give_the_published_text(tmp_path: Path) -> None:

    def table(name: str, rows: list[dict[str, Any]]) -> DataFile:
        path = tmp_path / f"{name}.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return DataFile(path, name)

    lines = WIKITEXT.splitlines(keepends=True)
    rows = [{"text": line if line.strip() else ""} for line in lines]
    assert "".join(language_modeling.read_wikitext(table("wikitext", rows))) == WIKITEXT
    rows = [{"sentence": line.strip()} for line in PTB.splitlines()]
    assert "".join(language_modeling.read_ptb(table("ptb", rows))) == PTB
    row = {**HELLASWAG, "label": "3"}
    assert hellaswag.read_questions(table("h", [row])) == hellaswag.read_questions(
        data(tmp_path / "h.jsonl", json.dumps(row))
    )
    rows = [{"sentences": ["one .", "two ."], "question": "a XXXXX", "answer": "cat", "options": ["dog", "cat"]}]
    assert cbt.read_questions(table("CN", rows)) == [cbt.ClozeQuestion("one . two .", "a XXXXX", ("dog", "cat"), 1)]
    with pytest.raises(DataError, match="row 1 is not a question of HellaSwag"):
        hellaswag.read_questions(table("w", [{"text": "x"}]))
    with pytest.raises(DataError, match="is damaged, or not a Parquet file"):
        hellaswag.read_questions(data(tmp_path / "bad.parquet", "x"))


def without(row: dict[str, Any], key: str) -> str:
    return json.dumps({name: value for name, value in row.items() if name != key})


def changed(row: dict[str, Any], **values: Any) -> str:
    return json.dumps({**row, **values})


GOOD = json.dumps(HELLASWAG)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("lambada", '{"text": "a b"}\n\n{"text": "ab"}', r"line 3 has no text that ends in .*\"a passage\""),
        ("lambada", '{"text": "a b"}\n{"text": 3}', "line 2 has no text"),
        ("lambada", '{"text": "a b"}\nplain', "line 2 is not JSON; expected"),
        ("lambada", '["a b"]', "line 1 is not an object; expected"),
        ("lambada", "", r"is empty; expected \{\"text\": \"a passage\"\} on each line"),
        ("lambada.txt", "a b\nab", r"line 2 has no text that ends in a space and a word; expected one passage$"),
        ("lambada.txt", "", "is empty; expected one passage on each line"),
        ("lambada", b'{"text": "a b"}\n\xff\xfe', "line 2 is not UTF-8 text"),
        ("lambada", b'{"text": "a b"}\n\0', "line 2 contains zero bytes"),
        ("hellaswag", f"{GOOD}\n{without(HELLASWAG, 'ctx_b')}", "line 2 is not a question of HellaSwag; expected"),
        ("hellaswag", changed(HELLASWAG, label=4), "line 1 is not a question"),
        ("hellaswag", changed(HELLASWAG, label=""), "line 1 has no label, like the test part; use the validation"),
        ("hellaswag", changed(HELLASWAG, endings=["a", "b", "c"]), "line 1 is not a question"),
        ("hellaswag", changed(HELLASWAG, ctx=" "), "line 1 is not a question"),
        ("hellaswag", "", "is empty"),
        ("hellaswag.txt", "a\n7\nb", "line 2 is '7', expected the correct ending's number, 0 to 3"),
        ("hellaswag.txt", "a\n1\n\nb\nc\nd", "line 3 is empty; expected six lines"),
        ("hellaswag.txt", "a\n1\nb\nc\nd", "ends within a question"),
        ("wikitext2", "\n\nOnce upon a time\n", "line 3 is 'Once upon a time', expected a heading"),
        ("wikitext103", "\n", "is empty; expected a heading"),
        ("ptb", " no it was \n The cat\n", "line 2 has the word 'The', expected Mikolov's"),
        ("ptb", "", "is empty; expected Mikolov's"),
        ("cbt", CBT.replace("7 line", "8 line"), "line 7 must start with 7 and a space"),
        ("cbt", CBT.replace("5 line 5 .\n", "\n", 1), "line 5 is empty before a question"),
        ("cbt", CBT.replace("XXXXX", "cat"), "line 21 has no XXXXX to fill"),
        ("cbt", CBT.replace("dog|cat", "dog|cow"), "line 21 has the answer 'cat', which is not among the candidates"),
        ("cbt", CBT.replace("\t\t", " "), "line 21 is not a question"),
        ("cbt", CBT.partition("21 a")[0], "ends before a question"),
        ("cbt", "", "is empty"),
        ("ptb", "version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer, not the file; run git lfs pull"),
    ],
)
def test_another_format_is_an_error_with_the_line_and_what_was_expected(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    benchmark, _, suffix = name.partition(".")
    file = data(tmp_path / (f"x.{suffix}" if suffix else "x.jsonl"), content)
    tokenizer = Tokenizer.named("bytes")
    model = new_model(n_positions=8)
    with pytest.raises(DataError, match=message):
        run_benchmark(benchmark, model, tokenizer, data=file.path)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zip"])
def test_a_damaged_archive_is_an_error(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(DataError, match=r"is damaged and cannot be decompressed|cannot be read"):
        lambada.read_passages(data(tmp_path / f"l.jsonl{suffix}", "not compressed"))


def test_a_folder_is_searched_for_the_file(tmp_path: Path) -> None:
    (tmp_path / "wikitext-2-raw").mkdir()
    data(tmp_path / "wikitext-2-raw" / "wiki.test.raw", WIKITEXT)
    data(tmp_path / "lambada_test.jsonl.gz", b"")
    for kind in ("CN", "NE"):
        data(tmp_path / f"cbtest_{kind}_test_2500ex.txt", CBT)
        data(tmp_path / f"cbtest_{kind}_valid_2000ex.txt", CBT)
    names = {name: [file.path.name for file in find_data(name, tmp_path)]
             for name in ("wikitext2", "wikitext103", "lambada", "cbt")}  # fmt: skip
    assert names == {
        "wikitext2": ["wiki.test.raw"],
        "wikitext103": ["wiki.test.raw"],
        "lambada": ["lambada_test.jsonl.gz"],
        "cbt": ["cbtest_CN_valid_2000ex.txt", "cbtest_NE_valid_2000ex.txt"],
    }
    with pytest.raises(DataError, match=r"contains no file of ptb; expected one named ptb\.test\.txt"):
        find_data("ptb", tmp_path)
    with pytest.raises(DataError, match="nowhere does not exist; pass a file of ptb"):
        find_data("ptb", Path("nowhere"))


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_offline_the_error_names_the_file_and_the_option(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    hub = BENCHMARKS[name].hub[0]
    with pytest.raises(DataError, match=f"{hub.file} of {hub.repository} could not be downloaded .* --data PATH"):
        find_data(name)


def test_an_unreachable_hub_fails_at_the_first_attempt_without_warnings_of_its_client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub = logging.getLogger("huggingface_hub")
    hub.setLevel(logging.WARNING)
    monkeypatch.setattr(hub, "propagate", True)
    attempts: list[str] = []

    def unreachable(url: str) -> None:
        attempts.append(url)
        hub.warning("%s thrown while requesting", url)
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", unreachable)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: attempts.append("a download"))
    with pytest.raises(DataError, match=r"downloaded \(Name or service not known\); offline, pass lambada"):
        find_data("lambada")
    assert [attempt.endswith("lambada_test_en.jsonl") for attempt in attempts] == [True]
    assert caplog.records == []
    assert hub.level == logging.WARNING


def test_an_error_response_of_the_hub_is_left_to_its_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def busy(url: str) -> None:
        raise HfHubHTTPError("503", response=SimpleNamespace(headers={}, request=None))  # type: ignore[arg-type]

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", busy)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: str(tmp_path / "there"))
    assert [file.path for file in find_data("lambada")] == [tmp_path / "there"]


def test_files_of_the_hub_are_named_by_their_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    requests: list[tuple[Any, ...]] = []

    def download(repository: str, file: str, *, repo_type: str, revision: str | None) -> str:
        requests.append((repository, file, repo_type, revision))
        return str(tmp_path / "there")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda url: None)
    found = find_data("cbt")
    assert requests == [
        ("cam-cst/cbt", f"{kind}/validation-00000-of-00001.parquet", "dataset", None) for kind in ("CN", "NE")
    ]
    assert [cbt.word_class(file) for file in found] == ["CN", "NE"]


def test_wikitext_is_detokenized() -> None:
    text = (
        " = Robert <unk> = \n \n = = Career = = \n He had a guest @-@ starring role , in $ 1 @,@ 000"
        " ( about £ 2 @.@ 5 )"
        " ; Teddy 's \" The Long Firm \" did n't . It didn 't \n"
    )
    assert detokenize_wikitext(text) == (
        "= Robert <unk> =\n\n== Career ==\nHe had a guest-starring role, in $1,000 (about £2.5); Teddy's"
        " \"The Long Firm\" didn't. It didn't\n"
    )


def test_penn_treebank_is_detokenized() -> None:
    text = " mr. <unk> does n't own N N of the investors ' $ N million but it 's u.s. money \n that they 'll get \n"
    assert detokenize_ptb(text) == (
        "mr. <unk> doesn't own N N of the investors' $N million but it's u.s. money\nthat they'll get\n"
    )


def test_childrens_books_are_detokenized() -> None:
    text = "`` They are very kind , '' XXXXX the king ; `` I do n't -LRB- you know -RRB- mind . ''"
    assert detokenize_cbt(text) == '"They are very kind," XXXXX the king; "I don\'t (you know) mind."'


def test_every_published_result_belongs_to_one_of_our_metrics(tmp_path: Path) -> None:
    tokenizer = Tokenizer.named("bytes")
    model = new_model(n_positions=8)
    for kind in ("CN", "NE"):
        data(tmp_path / f"cbtest_{kind}_valid.txt", CBT)
    data(tmp_path / "lambada_test.jsonl", '{"text": "a b"}')
    data(tmp_path / "hellaswag_val.jsonl", GOOD)
    data(tmp_path / "wiki.test.raw", WIKITEXT)
    data(tmp_path / "ptb.test.txt", PTB)
    for name in BENCHMARKS:
        own = {metric.name: metric.unit for metric in run_benchmark(name, model, tokenizer, data=tmp_path).metrics}
        published = [each for each in PUBLISHED if each.benchmark == name]
        assert published
        for each in published:
            assert (each.value < 1) == (own[each.metric] == "share")


def test_the_nearest_size_is_by_ratio() -> None:
    sizes = {1_000_000: "gpt2", 124_439_808: "gpt2", 200_000_000: "gpt2", 220_000_000: "gpt2-medium", 10**10: "gpt2-xl"}
    assert {count: nearest_size(count) for count in sizes} == sizes
    table = {
        each.metric: each.value
        for each in published_results("lambada", "gpt2-xl", "gpt2")
        if each.source == "GPT-2 paper"
    }
    assert table == {"perplexity_last_word": 8.63, "accuracy_last_word": 0.6324}


@pytest.mark.parametrize(
    ("benchmark", "metric"),
    [("lambada", "accuracy_last_token"), ("ptb", "perplexity_token"), ("hellaswag", "raw_accuracy_per_token")],
)
def test_a_result_per_token_of_another_tokenizer_differs_from_the_published_one(benchmark: str, metric: str) -> None:
    for ours, others in zip(
        published_results(benchmark, "gpt2", "gpt2"), published_results(benchmark, "gpt2", "bpe:300"), strict=True
    ):
        if ours.metric != metric:
            assert others == ours
        else:
            assert "tokenizer" not in ours.difference
            assert others.difference == "; ".join(filter(None, ("tokens of GPT-2's tokenizer", ours.difference)))


@pytest.mark.parametrize(
    ("field", "value", "reason"), [(8, 1, "is encrypted"), (10, 99, "compression method is not supported")]
)
def test_a_zip_that_python_cannot_decompress_is_one_sentence(
    tmp_path: Path, field: int, value: int, reason: str
) -> None:
    path = tmp_path / "w.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.txt", PTB)
    content = bytearray(path.read_bytes())
    for start in (content.index(b"PK\x01\x02") + field, content.index(b"PK\x03\x04") + field - 2):
        content[start] = value
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"w.zip cannot be decompressed \(.*{reason}.*\); give the decompressed file"):
        list(language_modeling.read_ptb(DataFile(path, "w.zip")))


def test_parquet_text_that_is_not_utf8_is_one_sentence(tmp_path: Path) -> None:
    text = pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, pyarrow.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0])), pyarrow.py_buffer(b"\xff")]
    )
    parquet.write_table(pyarrow.table({"text": text}), tmp_path / "bad.parquet")
    with pytest.raises(DataError, match=r"bad.parquet is not UTF-8 in row 1: byte 0 is 0xff; download it again"):
        list(language_modeling.read_wikitext(DataFile(tmp_path / "bad.parquet", "bad.parquet")))


def test_a_small_file_with_very_much_text_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    line = b"x" * 1_000_000 + b"\n"
    with gzip.open(tmp_path / "large.txt.gz", "wb", compresslevel=1) as file:
        for _ in range(140):
            file.write(line)
    same = pyarrow.DictionaryArray.from_arrays([0] * 2000, ["x" * 100_000])
    for name, text in (("plain", same.cast(pyarrow.string())), ("dictionary", same)):
        parquet.write_table(pyarrow.table({"text": text}), tmp_path / f"{name}.parquet")
        assert (tmp_path / f"{name}.parquet").stat().st_size < 200_000
    for name in ("large.txt.gz", "plain.parquet", "dictionary.parquet"):
        with pytest.raises(DataError, match=f"{name} has more than 134,217,728 bytes of text") as refused:
            list(lambada.read_passages(DataFile(tmp_path / name, name)))
        assert "\n" not in str(refused.value)
