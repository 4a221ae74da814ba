"""Chat logs: the forms that are read, and what is refused, by line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.data.corpus import Corpus
from minigpt.data.sharded.sharded_corpus import ShardedCorpus
from minigpt.data.source_files import SourceFile
from minigpt.data.sources import scan
from minigpt.errors import DataError

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


def test_text_parts_are_joined(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    assert texts(write(tmp_path, [{"role": "developer", "content": parts}])) == ["System: Hi\n"]


def test_a_text_under_the_key_is_no_conversation(tmp_path: Path) -> None:
    found = scan(write(tmp_path, {"text": "plain", "messages": HELLO}))
    assert found.n_conversations == 0
    assert next(piece for piece, _ in found.pieces()) == "plain"


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
        ({"messages": 3}, "the value of 'text' must be a string or a list of messages, not 3"),
        ("Hi", "line 2 must be a JSON object such as"),
        ({"body": HELLO}, "line 2 has no key 'text'; its keys: 'body'; name the key of the text with --text-key"),
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


def test_weights_are_kept_or_refused(tmp_path: Path) -> None:
    half = [HELLO[0], HELLO[1] | {"weight": 0.5}]
    with pytest.raises(DataError, match=r"line 1, message 2 has the weight 0.5; it must be 0 \(read only\) or 1"):
        scan(write(tmp_path, half))
    ignored = write(tmp_path, [HELLO[0], HELLO[1] | {"weight": 0}])
    (tmp_path / "a.txt").write_text("plain text")
    with pytest.raises(DataError, match=r"messages with weight 0 \(1 here\) can be read .* only where every document"):
        Corpus.build([ignored, tmp_path / "a.txt"], "bytes", cache=tmp_path / "cache")
    with pytest.raises(DataError, match=r"log.jsonl has a message with weight 0, .*add --shards off"):
        ShardedCorpus.build_in_shards([[SourceFile(ignored, ignored.name)]], [1.0], "bytes", cache=tmp_path / "cache")


def test_a_chat_log_beside_a_plain_text_has_no_speakers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("plain text")
    found = scan([write(tmp_path, HELLO), tmp_path / "a.txt"])
    assert (found.n_documents, found.n_conversations, found.has_speakers) == (2, 1, False)
