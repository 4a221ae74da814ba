"""Serving a model whose tokenizer is WordPiece: tokens, texts, log-probabilities and their offsets."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import random_model, tokenizer_with_roles
from served import new_client
from starlette.testclient import TestClient

from minigpt.tokenizer.tokenizer import Tokenizer

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"今天气很好，我们去公园散步。", "the", "fox", "##es", "over"]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    with new_client("zh", tokenizer=Tokenizer.load(tmp_path)) as client:
        yield client


def test_texts_become_tokens_and_texts(client: TestClient) -> None:
    tokens = client.post("/tokenize", json={"prompt": "The foxes 今天"}).json()["tokens"]
    assert tokens == [VOCABULARY.index(token) for token in ("the", "fox", "##es", "今", "天")]
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": "the foxes今天"}
    info = client.get("/tokenizer_info").json()
    assert info["tokenizer_class"] == "BertTokenizer"
    assert [info[f"{role}_token"] for role in ("bos", "eos", "unk")] == ["[CLS]", "[SEP]", "[UNK]"]


def test_byte_level_tokens_have_the_roles_of_their_files(tmp_path: Path) -> None:
    tokenizer = tokenizer_with_roles(tmp_path)
    with new_client("a", model=random_model(vocab_size=tokenizer.vocab_size), tokenizer=tokenizer) as client:
        info = client.get("/tokenizer_info").json()
    assert [info[f"{role}_token"] for role in ("bos", "eos", "unk", "pad")] == ["<s>", "</s>", "<unk>", "<pad>"]


def test_offsets_point_at_the_tokens_in_the_text(client: TestClient) -> None:
    body = {"prompt": "the foxes 今天", "echo": True, "logprobs": 1, "max_tokens": 9, "seed": 4, "temperature": 1}
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    text, scores = choice["text"], choice["logprobs"]
    assert text.startswith("the foxes今天")
    ends = [*scores["text_offset"][1:], len(text)]
    for index, (start, end, token) in enumerate(zip(scores["text_offset"], ends, scores["tokens"], strict=True)):
        assert text[start:end] == (token.removeprefix(" ") if index == 0 else token)


def test_a_stream_joins_to_the_text_of_the_whole_answer(client: TestClient) -> None:
    body = {"prompt": "今天", "max_tokens": 12, "seed": 5, "temperature": 1}
    whole = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    answer = client.post("/v1/completions", json=body | {"stream": True}).text
    events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events if event["choices"]) == whole


def test_a_bad_word_without_tokens_is_refused_and_other_requests_go_on(client: TestClient) -> None:
    for words in ([" "], [" ", "fox"]):
        response = client.post("/v1/completions", json={"prompt": "the", "bad_words": words})
        assert response.status_code == 400
        assert "bad_words (' ') must contain a token" in response.json()["error"]["message"]
    assert client.post("/v1/completions", json={"prompt": "the", "bad_words": ["fox"]}).status_code == 200
