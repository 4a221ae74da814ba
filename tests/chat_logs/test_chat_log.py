"""Chat logs: the forms that are read, and what is refused, by line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt import bounded_reading
from minigpt.chat_logs import json_files
from minigpt.corpus_report.locations import blocks
from minigpt.data.corpus import Corpus
from minigpt.data.sources import scan
from minigpt.errors import DataError
from minigpt.large_corpora.texts import Mixture
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import bytes_to_unicode

HELLO = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
TEXT = "User: Hi\nAssistant: Hello\n"


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts(path: Path, **options: Any) -> list[str]:
    found = scan(path, **options)
    assert found.has_speakers
    return [piece for piece, _ in found.pieces()]


def test_openais_sharegpts_and_bare_conversations_give_the_same_transcript(tmp_path: Path) -> None:
    sharegpt = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    rows = [{"messages": HELLO}, HELLO, {"conversations": sharegpt}, {"id": 7, "messages": HELLO, "source": "x"}]
    assert texts(write(tmp_path, *rows)) == [TEXT] * 4
    assert texts(write(tmp_path, {"dialog": HELLO}), text_key="dialog") == [TEXT]


PAIRS: list[tuple[dict[str, Any], str]] = [
    ({"instruction": "Add.", "input": "1 2", "output": "3"}, "User: Add.\n 1 2\nAssistant: 3\n"),
    ({"instruction": "Hi", "input": "", "output": "Hello", "prompt": "### Hi"}, TEXT),
    ({"instruction": "Hi", "context": None, "response": "Hello", "category": "chat"}, TEXT),
    ({"prompt": "Hi", "completion": " Hello"}, TEXT),
    ({"prompt": HELLO[:1], "completion": HELLO[1:]}, TEXT),
    ({"prompt": "Hi", "response": "Hello"}, TEXT),
    ({"question": "Hi", "answer": "Hello"}, TEXT),
    ({"input": "Hi", "output": "Hello", "id": 1}, TEXT),
    ({"system_prompt": "Be kind.", "question": "Hi", "response": "Hello"}, "System: Be kind.\n" + TEXT),
    ({"instruction": "Hi", "output": "Hello", "system": "S", "history": [["a", "b"]]},
     "System: S\nUser: a\nAssistant: b\n" + TEXT),
    ({"instruction": "Hi", "output": "Hello", "system": " ", "history": None}, TEXT),
]  # fmt: skip


@pytest.mark.parametrize(("row", "text"), PAIRS)
def test_pairs_of_a_question_and_an_answer_are_conversations(tmp_path: Path, row: dict[str, Any], text: str) -> None:
    assert texts(write(tmp_path, HELLO, row)) == [TEXT, text]


@pytest.mark.parametrize("columns", [["messages", "system"], ["instruction", "input", "output", "system"]])
def test_a_table_gives_the_same_conversations(tmp_path: Path, columns: list[str]) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = {"messages": HELLO, "system": "S", "instruction": "Hi", "input": "there", "output": "Hello"}
    rows = [{name: values[name] for name in columns} | {"id": 7}, {name: values[name] for name in columns} | {"id": 8}]
    rows[1]["system"] = None
    path = tmp_path / "log.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert texts(path) == texts(write(tmp_path, *rows))


def test_an_instruction_beside_the_messages_is_the_first_message(tmp_path: Path) -> None:
    sharegpt = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    system = {"role": "system", "content": "S"}
    rows = [
        {"system": "S", "conversations": sharegpt},
        {"system_prompt": "S\n", "messages": [system, *HELLO]},
        {"system": "", "messages": [system, *HELLO]},
        {"system": "S", "dialog": HELLO},
    ]
    path = write(tmp_path, *rows[:3])
    assert texts(path) == ["System: S\n" + TEXT] * 3
    assert texts(write(tmp_path, rows[3]), text_key="dialog") == ["System: S\n" + TEXT]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["log.json", "log.json.gz"])
def test_a_json_array_holds_the_records_of_its_values(tmp_path: Path, indent: int | None, name: str) -> None:
    rows = [{"messages": HELLO}, HELLO, {"prompt": "Hi", "completion": "Hello"}]
    path = tmp_path / name

    def write_json(value: Any) -> Path:
        content = json.dumps(value, indent=indent).encode()
        path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        return path

    assert texts(write_json(rows)) == [TEXT] * 3
    assert [str(block.locate(0)) for block in blocks(scan(path))] == [f"{path}:{n} (byte 0)" for n in (1, 2, 3)]
    assert texts(write_json(rows[0])) == texts(write_json(HELLO)) == [TEXT]
    assert texts(write_json([{"log": HELLO}]), text_key="log") == [TEXT]
    found = scan(write_json([{"text": "one"}, {"text": "two"}]))
    assert [piece for piece, _ in found.pieces()] == ["one", "two"]
    with pytest.raises(DataError, match=r"log\.json(\.gz)?, record 2 has no key 'text'; its keys: 'body'"):
        scan(write_json([{"text": "one"}, {"body": "two"}]))
    with pytest.raises(DataError, match=r"record 2 is a conversation, but record 1 is a text; a file must have one"):
        scan(write_json([{"text": "one"}, HELLO]))
    others = [{"name": "a package"}, {"messages": {"hi": "Hi"}}, [{"text": {"hi": "Hi"}}], [1], [], [{"body": "b"}]]
    for other in others if indent is None else [*others, {"text": "one", "name": "a string of a program"}]:
        write_json(other)
        assert scan(tmp_path).n_conversations == 0
        assert "".join(piece for piece, _ in scan(tmp_path).pieces()) == json.dumps(other, indent=indent)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '[{"body": "b", "label": 1}]',
            "record 1 has no key 'text'; its keys: 'body', 'label'; name the key of the text",
        ),
        (
            '{"data": [{"text": "one"}]}',
            "is one JSON object, not an array of records; its keys: 'data'; write the array",
        ),
        (
            '{"version": 1,\n"train": [1]}',
            "its keys: 'version', 'train'; write the array under 'train' to a separate .json, or",
        ),
        ('{"name": "a package"}', "is one JSON object, not an array of records; its keys: 'name'"),
        ('{"body": "b"}\n{"body": "c"}', "line 1 has no key 'text'; its keys: 'body'; name the key of the text"),
        ('["a", "b"]', 'record 1 must be a JSON object such as {"text": "..."}'),
        (
            '[{"text": null}, {"text": "a"}]',
            "record 1: the value of 'text' must be a string or a list of messages, not",
        ),
        (
            '[{"text": "a"}, {"te',
            "is not JSON (Unterminated string starting at: line 1 column 18 (char 17)); correct it",
        ),
        ('{"text": 5}', "the value of 'text' must be a string or a list of messages, not 5"),
        ("plain", "is not JSON (Expecting value: line 1 column 1 (char 0)); correct it, or rename the file to .txt"),
        ("[]", "contains no text"),
    ],
)
def test_a_json_without_a_text_is_refused_if_it_is_named_and_counted_in_a_folder(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(DataError) as error:
        scan(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert scan(tmp_path).notes == (f"read as plain text, JSON markup included: a file, {path}",)
    (tmp_path / "b.json").write_text("{}")
    found = scan(tmp_path)
    assert found.notes == (f"read as plain text, JSON markup included: 2 files, such as {path}",)
    assert "".join(piece for piece, _ in found.pieces()) == content + "{}"


def test_a_named_object_over_several_lines_is_a_record(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"text": "one"}, indent=2))
    assert [piece for piece, _ in scan(path).pieces()] == ["one"]


def test_records_on_the_lines_of_a_json_file_are_read_as_those_of_a_jsonl(tmp_path: Path) -> None:
    rows = [{"messages": HELLO}, {"messages": HELLO, "id": 1}]
    path = write(tmp_path, *rows).rename(tmp_path / "log.json")
    assert texts(path) == [TEXT] * 2
    path.write_text(path.read_text() + "{")
    with pytest.raises(DataError, match=r"log\.json, line 3 is not JSON"):
        scan(path)


def test_a_json_array_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps([{"messages": HELLO}] * 9, indent=1))
    monkeypatch.setattr(bounded_reading, "_SMALL", 99)
    monkeypatch.setattr(bounded_reading, "MAX_VALUES", 50)
    with pytest.raises(DataError, match=r"log\.json is a JSON array that cannot be read \(it has \d+ values.*jq -c '"):
        scan(path)
    monkeypatch.setattr(json_files, "MAX_LINE", 100)
    with pytest.raises(
        DataError, match=r"cannot be read \(it has more than 100 bytes\); write each of its values on a line"
    ):
        scan(path)


def test_text_parts_are_joined(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    assert texts(write(tmp_path, [{"role": "developer", "content": parts}])) == ["System: Hi\n"]


def test_a_text_under_the_key_is_no_conversation(tmp_path: Path) -> None:
    found = scan(write(tmp_path, {"text": "plain", "messages": HELLO}))
    assert found.n_conversations == 0
    assert next(piece for piece, _ in found.pieces()) == "plain"
    (note,) = found.notes
    assert note.endswith(
        "log.jsonl: each record has 'text', which is read, and 'messages', which is not; to read the conversations "
        "instead, give --text-key messages"
    )
    assert texts(tmp_path / "log.jsonl", text_key="messages") == [TEXT]
    assert scan(tmp_path / "log.jsonl", text_key="messages").notes == ()


PAIR = {"instruction": "Hi", "input": "", "output": "Hello"}


@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize(
    ("row", "read", "unread", "key"),
    [
        ({"text": "plain", **PAIR}, "'text'", "'instruction' with 'output'", "instruction"),
        ({"messages": HELLO, "conversations": HELLO}, "'messages'", "'conversations'", "conversations"),
        (
            {"messages": HELLO, "prompt": "Hi", "completion": "Hello"},
            "'messages'",
            "'prompt' with 'completion'",
            "prompt",
        ),
        (
            {**PAIR, "prompt": "Hi", "response": "Hello"},
            "'instruction' with 'output'",
            "'prompt' with 'response'",
            "prompt",
        ),
    ],
)
def test_a_notice_names_the_conversation_that_is_not_read_and_how_to_read_it(
    tmp_path: Path, row: dict[str, Any], read: str, unread: str, key: str, is_table: bool
) -> None:
    path = write(tmp_path, row)
    if is_table:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        path = tmp_path / "log.parquet"
        parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    (note,) = scan(path).notes
    assert f"each record has {read}, which is read, and {unread}, which is not; to read the conversations" in note
    assert note.endswith(f"instead, give --text-key {key}")
    assert texts(path, text_key=key) == [TEXT]
    assert scan(path, text_key=key).notes == ()
    assert scan(write(tmp_path, PAIR)).notes == ()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": []}, "line 2 has an empty conversation"),
        ([{"role": "tool", "content": "x"}], "line 2, message 1 has the unknown role 'tool'; a role must be system"),
        ([{"content": "x"}], "line 2, message 1 has no role"),
        ([*HELLO, {"role": "user"}], "line 2, message 3 has no content"),
        ([{"role": "assistant", "content": None, "tool_calls": [1]}], "has no content but a tool call"),
        ([{"role": "assistant", "content": " ", "tool_calls": [1]}], "has no content but a tool call"),
        ([{"role": "user", "content": 5}], "its content must be a string, not 5"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "has a part of type 'image_url'; only text"),
        ([{"role": "user", "content": ["x"]}], "has a part that is not text"),
        (["Hi"], "line 2, message 1 must be an object such as"),
        ([{"role": "user", "content": "a<|endoftext|>b"}], "which ends a conversation; remove it"),
        ({"text": "plain"}, "line 2 is a text, but line 1 is a conversation; a file must have one form"),
        ({"messages": "Hi"}, "line 2 is a text, but line 1 is a conversation"),
        ({"messages": 3}, "the value of 'messages' must be a string or a list of messages, not 3"),
        ("Hi", "line 2 must be a JSON object such as"),
        ({"prompt": "Hi", "completion": None}, "line 2, message 2 has no content"),
        ({"prompt": "Hi", "chosen": "Hello"}, "line 2 has no key 'text'; its keys: 'prompt', 'chosen'; name the key"),
        ({"instruction": "Hi", "input": 5, "output": "x"}, "line 2, message 1: its content must be a string, not 5"),
        ({"instruction": "Hi", "output": "x", "history": 5}, "its history must be pairs of a question and an answer"),
        ({"system": 5, "messages": HELLO}, "line 2, field 'system': its content must be a string, not 5"),
        (
            {"system": "S", "messages": [{"role": "system", "content": "T"}]},
            "line 2 has two instructions, in the field 'system' and in message 1; remove one of them",
        ),
        ({"body": HELLO}, "line 2 has no key 'text'; its keys: 'body'; name the key of the text with --text-key"),
        ([HELLO[0] | {"weight": 0.5}], "message 1 has the weight 0.5; it must be 0 (read only) or 1 (learned)"),
        ([HELLO[0] | {"train": "no"}], "message 1 has the train 'no'; it must be true (learned) or false (read only)"),
    ],
)
def test_what_is_no_conversation_is_refused_by_line(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(DataError) as error:
        scan(write(tmp_path, HELLO, row))
    assert message in str(error.value)
    assert "log.jsonl, line 2" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("fraction", [0, 0.5])
def test_an_answer_with_weight_0_is_read_but_not_learned(tmp_path: Path, fraction: float) -> None:
    wrong = {"role": "assistant", "content": "Go away", "weight": 0}
    right = {"role": "assistant", "content": "Hello", "weight": 1}
    path = write(tmp_path, *[[HELLO[0], wrong, HELLO[0], right]] * 9)
    found = scan(path)
    assert found.notes == ("messages with weight 0, which are read but not learned: 9",)
    assert next(found.pieces()) == ("User: Hi\nAssistant: Go away\nUser: Hi\nAssistant: Hello\n", True)
    corpus = Corpus.build(found, "bytes", cache=tmp_path, validation_fraction=fraction)
    for role in ("assistant", "all"):
        for part, tokens in (("train", corpus.train), ("validation", corpus.validation)):
            scored = corpus.scored(role, part)  # type: ignore[arg-type]
            assert scored is not None
            learned, read = (corpus.tokenizer.decode(ids.tolist()) for ids in (tokens[scored], tokens))
            assert learned.count("Hello") == read.count("Hello")
            assert "Go" not in learned
            assert ("User" in learned) == ("User" in read and role == "all")
    inputs, targets = corpus.batch(0, 9, 64, seed=0)
    kept = targets != -100
    assert not kept.all()
    assert torch.equal(inputs[:, 1:][kept[:, :-1]], targets[:, :-1][kept[:, :-1]])


def test_weights_where_they_cannot_be_kept_are_refused(tmp_path: Path) -> None:
    ignored = write(tmp_path, [HELLO[0], HELLO[1] | {"weight": 0}])
    (tmp_path / "a.txt").write_text("plain text")
    with pytest.raises(DataError, match=r"messages with weight 0 \(1 here\) can be read .* only where every document"):
        Corpus.build([ignored, tmp_path / "a.txt"], "bytes", cache=tmp_path / "cache")
    with pytest.raises(DataError, match=r"messages with weight 0 \(1 here\) .* and not in a mix; train"):
        Mixture([scan(ignored)], (1.0,)).build("bytes", cache=tmp_path / "cache")


def test_a_chat_log_beside_a_plain_text_has_no_speakers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("plain text")
    found = scan([write(tmp_path, HELLO), tmp_path / "a.txt"])
    assert (found.n_documents, found.n_conversations, found.has_speakers) == (2, 1, False)


def test_a_token_that_begins_each_document_moves_no_speaker(tmp_path: Path) -> None:
    vocabulary = {bytes_to_unicode(bytes([byte])): byte for byte in range(256)}
    special = {"<s>": 256, "</s>": 257}
    tokenizer = Tokenizer.from_vocabulary(
        vocabulary, [], special=special, end_of_text="</s>", roles={"bos_token": "<s>"}, prefix=[256]
    )
    rows = [
        [{"role": "user", "content": f"question {row}"}, {"role": "assistant", "content": f"answer {row}"}]
        for row in range(60)
    ]
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    corpus = Corpus.build(path, tokenizer, cache=tmp_path / "cache", validation_fraction=0)
    scored = corpus.scored("assistant", "train")
    assert scored is not None
    learned = tokenizer.decode([id for id in corpus.train[scored].tolist() if id < 256])
    assert learned.split() == [word for row in range(60) for word in ("answer", str(row))]


@pytest.mark.parametrize(
    "content",
    [
        '[{"text": "a"}, {"text": "b"}]\n',
        '\n[{"text": "a"},\n{"text": "b"}]\n',
        json.dumps([{"text": "a"}], indent=1),
        "[{\n" + json.dumps([{"text": "a"}])[2:],
        json.dumps([HELLO, HELLO]),
        json.dumps([{"messages": HELLO}]),
    ],
)
def test_an_array_in_a_jsonl_is_refused_and_read_as_json(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(
        DataError, match=r"a\.jsonl is one JSON array, not a JSON value on each line; rename it to \.json$"
    ):
        scan(path)
    assert scan(path.rename(tmp_path / "a.json")).n_documents > 0


@pytest.mark.parametrize("mark", [{"train": False}, {"loss": False}, {"weight": 0, "loss": True}, {"weight": False}])
def test_a_message_that_is_not_to_be_trained_on_is_read_only(tmp_path: Path, mark: dict[str, Any]) -> None:
    found = scan(write(tmp_path, [HELLO[0], HELLO[1] | mark], [HELLO[0], HELLO[1] | {"train": True, "loss": None}]))
    assert found.n_unlearned == 1


@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize("row", [{"messages": HELLO}, {"prompt": "Hi", "completion": "Hello"}, {"text": "plain"}])
@pytest.mark.parametrize("mark", [{"weight": 0}, {"weight": 0.0}, {"train": False}, {"loss": False}])
def test_a_record_with_weight_0_is_refused(
    tmp_path: Path, row: dict[str, Any], mark: dict[str, Any], is_table: bool
) -> None:
    def written(record: dict[str, Any]) -> Path:
        if not is_table:
            return write(tmp_path, record)
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist([record]), tmp_path / "log.parquet")
        return tmp_path / "log.parquet"

    (key,) = mark
    with pytest.raises(DataError, match=rf"1 has the {key} (0|0.0|false), which can be given to messages only; remove"):
        scan(written(row | mark))
    assert scan(written(row | {"weight": 0.7, "loss": 0.2, "train": True, "id": 0})).n_unlearned == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n\n["b"]\n', r"line 3, message 1 must be an object such as"),
        ('{"text": 3}\n', r"line 1: the value of 'text' must be a string or a list of messages, not 3"),
    ],
)
def test_a_line_that_is_neither_a_text_nor_messages_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        scan(tmp_path / "a.jsonl")
