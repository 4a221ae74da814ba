"""Serving a model whose tokenizer is WordPiece, or that has none: tokens, texts, log-probabilities, offsets."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import random_model, tokenizer_with_roles
from served import new_client
from starlette.testclient import TestClient

from minigpt.foreign_tokenizers.ids_only import IdsOnly
from minigpt.tokenizer.tokenizer import Tokenizer

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"今天气很好，我们去公园散步。", "the", "fox", "##es", "over"]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    with new_client("zh", tokenizer=Tokenizer.load(tmp_path)) as client:
        yield client


def test_texts_become_tokens_and_texts(client: TestClient) -> None:
    body = {"prompt": "The foxes 今天", "add_special_tokens": False}
    tokens = client.post("/tokenize", json=body).json()["tokens"]
    assert client.post("/tokenize", json={"prompt": "The foxes 今天"}).json()["tokens"] == [2, *tokens]  # [CLS]
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
    body = {"prompt": "the  foxes 今天", "echo": True, "logprobs": 1, "max_tokens": 9, "seed": 4, "temperature": 1}
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    text, scores = choice["text"], choice["logprobs"]
    assert text.startswith("the  foxes 今天")
    assert scores["tokens"][0] == "[CLS]"  # which the text does not contain
    assert scores["text_offset"][:7] == [0, 0, 3, 8, 11, 12, 13]
    ends = [*scores["text_offset"][1:], len(text)]
    for start, end, token in list(zip(scores["text_offset"], ends, scores["tokens"], strict=True))[6:]:
        assert text[start:end] == token


def test_offsets_count_the_space_before_the_first_token(client: TestClient) -> None:
    body = {"prompt": "the", "logprobs": 0, "max_tokens": 3, "logit_bias": {str(VOCABULARY.index("over")): 100}}
    (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert choice["text"] == " over over over"
    assert choice["logprobs"]["text_offset"] == [3, 8, 13]


def test_a_bad_word_without_tokens_is_refused_and_other_requests_go_on(client: TestClient) -> None:
    for words in ([" "], [" ", "fox"]):
        response = client.post("/v1/completions", json={"prompt": "the", "bad_words": words})
        assert response.status_code == 400
        assert "bad_words (' ') must contain a token" in response.json()["error"]["message"]
    assert client.post("/v1/completions", json={"prompt": "the", "bad_words": ["fox"]}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Once"}),
        ("/v1/completions", {"prompt": "0 1 2", "bad_words": ["Once"]}),
        ("/tokenize", {"prompt": "Once"}),
        ("/inspect", {"prompt": "Once"}),
    ],
    ids=["completions", "bad words", "tokenize", "inspect"],
)
def test_a_text_that_a_model_without_a_tokenizer_cannot_read_is_refused(path: str, body: dict[str, object]) -> None:
    with new_client("bare", tokenizer=Tokenizer(IdsOnly(size=40, end_id=7))) as client:
        response = client.post(path, json=body)
        assert response.status_code == 400
        assert response.json()["error"]["message"] == (
            "this model has no tokenizer, so its text must be token ids from 0 to 39 with spaces between them, "
            "such as '15 7 201', not 'Once'"
        )
        assert client.post("/v1/completions", json={"prompt": "0 1 2"}).status_code == 200
