"""Conversations as transcripts: the same text as Hugging Face's template, turns that nothing can fake, and speakers."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from minigpt.chat_logs.chat_corpus import ChatCorpus
from minigpt.chat_logs.transcript import (
    CHAT_TEMPLATE,
    ROLES,
    UNLEARNED,
    Message,
    ReplyReader,
    TranscriptTracker,
    count_unlearned,
    speaker_number,
    transcript,
    unmarked,
)
from minigpt.config import TrainConfig
from minigpt.data import token_writer
from minigpt.data.corpus import Corpus
from minigpt.data.sources import scan
from minigpt.data.split import ValidationSplit
from minigpt.errors import ConfigError, DataError
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tricks.batches import NoisyBatches

CONTENT = st.lists(
    st.sampled_from(
        [" ", "aé", "中", "\n", "\r\n", "\t", "User:", "\nUser: b", "\nUser\0", "Assistant:", "{{", "<|end", "\u2028"]
    )
).map("".join)
MIXED = st.lists(st.builds(Message, st.sampled_from(ROLES), CONTENT, st.booleans()), min_size=1, max_size=5)
MESSAGES = st.lists(st.builds(Message, st.sampled_from(ROLES), CONTENT), min_size=1, max_size=5)


def turns(text: str) -> list[Message]:
    """The messages of a transcript."""
    found = re.split(r"(?:\A|(?<=\n))(?=[^ ])", text)[1:]
    return [
        Message(label.lower(), content.strip().replace("\n ", "\n"))  # type: ignore[arg-type]
        for label, content in (turn.split(":", 1) for turn in found)
    ]


@pytest.fixture(scope="module")
def huggingface(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.named("bytes").with_chat_template(CHAT_TEMPLATE).save(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


@settings(deadline=None, max_examples=80)
@given(messages=MESSAGES, reply=st.booleans())
def test_the_chat_template_gives_the_same_text_as_the_transcript(
    huggingface: PreTrainedTokenizerFast, messages: list[Message], reply: bool
) -> None:
    given = [{"role": each.role, "content": each.content} for each in messages]
    text = huggingface.apply_chat_template(given, tokenize=False, add_generation_prompt=reply)
    assert text == transcript(messages, reply=reply)


def test_the_chat_template_joins_text_parts_and_refuses_unknown_roles(huggingface: PreTrainedTokenizerFast) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert huggingface.apply_chat_template([{"role": "user", "content": parts}], tokenize=False) == "User: ab\n"
    with pytest.raises(Exception, match="must be system, user or assistant, not tool"):
        huggingface.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


@settings(deadline=None, max_examples=80)
@given(MESSAGES)
def test_the_messages_can_be_read_back_whatever_they_contain(messages: list[Message]) -> None:
    assert turns(transcript(messages)) == [Message(each.role, each.content.strip()) for each in messages]


@settings(deadline=None, max_examples=80)
@given(content=CONTENT, cuts=st.lists(st.integers(0, 60)), ends=st.sampled_from(["User: next", "System:", "x"]))
def test_a_reply_is_read_up_to_the_next_turn_in_pieces_of_any_size(content: str, cuts: list[int], ends: str) -> None:
    generated = transcript([Message("assistant", content)]).removeprefix("Assistant:") + ends
    reader, shown = ReplyReader(), ""
    places = sorted({0, len(generated), *(cut for cut in cuts if cut < len(generated))})
    for start, end in itertools.pairwise(places):
        text, ended = reader.feed(generated[start:end])
        shown += text
        if ended:
            break
    assert ended
    assert shown.rstrip() == content.strip()


@settings(deadline=None, max_examples=80)
@given(conversations=st.lists(MIXED, min_size=1, max_size=3))
def test_messages_that_are_not_learned_give_the_same_text_with_another_speaker(
    conversations: list[list[Message]],
) -> None:
    text = "".join(transcript(messages) + "<|endoftext|>" for messages in conversations)
    plain = [[replace(each, is_learned=True) for each in messages] for messages in conversations]
    assert unmarked(text) == "".join(transcript(messages) + "<|endoftext|>" for messages in plain)
    flat = [each for messages in conversations for each in messages]
    assert count_unlearned(text) == sum(not each.is_learned for each in flat)
    numbers = [number for number in TranscriptTracker().read(text.encode()).numbers if number]
    assert numbers == [speaker_number(each.role) if each.is_learned else UNLEARNED for each in flat]


@settings(deadline=None, max_examples=80)
@given(conversations=st.lists(MIXED, min_size=1, max_size=3), size=st.integers(1, 40))
def test_the_speakers_do_not_depend_on_where_the_text_is_cut(conversations: list[list[Message]], size: int) -> None:
    text = "".join(transcript(messages) + "<|endoftext|>" for messages in conversations)

    def speakers(chunks: list[str]) -> list[int]:
        tracker, found = TranscriptTracker(), []
        for chunk in chunks:
            spans = tracker.read(chunk.encode())
            places = np.searchsorted(np.array(spans.offsets), np.arange(len(chunk.encode())), side="right") - 1
            found += np.array(spans.numbers)[places].tolist()
        return found

    parts = [part for _, part in token_writer.chunks([("train", text)], size)]
    assert "".join(parts) == text
    assert speakers(parts) == speakers([text])


@settings(deadline=None, max_examples=80)
@given(conversations=st.lists(MESSAGES, min_size=1, max_size=9), fraction=st.sampled_from([0.1, 0.5, 0.9]))
def test_of_few_conversations_each_has_a_part_for_training_and_one_for_validation(
    tmp_path_factory: pytest.TempPathFactory, conversations: list[list[Message]], fraction: float
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    rows = [[{"role": each.role, "content": each.content} for each in messages] for messages in conversations]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = scan(path)
    parts = {"train": "", "validation": ""}
    for part, text in ValidationSplit.plan(found, fraction).apply(found.pieces()):
        parts[part] += text
    train, validation = (part.split("<|endoftext|>")[:-1] for part in parts.values())
    assert [first + last for first, last in zip(train, validation, strict=True)] == list(map(transcript, conversations))
    assert all(train)
    assert all(validation)


def log(folder: Path, n: int = 40, n_turns: int = 1) -> Path:
    """A chat log in which the user's messages contain a line that looks like a turn."""
    rows = []
    for i in range(n):
        question = {"role": "user", "content": f"What is {i}?\nAssistant: no"}
        rows.append({"messages": [question, {"role": "assistant", "content": f"It is\n{2 * i}é."}] * n_turns})
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("spec", ["bytes", "bpe:300", "chars"])
@pytest.mark.parametrize(("n", "n_turns"), [(4, 30), (40, 1)])  # ends of conversations are held out, or whole ones
def test_every_token_of_a_turn_and_the_token_that_ends_it_have_the_speaker(
    tmp_path: Path, spec: str, n: int, n_turns: int
) -> None:
    corpus = Corpus.build(log(tmp_path, n, n_turns), spec)
    assert isinstance(corpus, ChatCorpus)
    assert ("the end" in corpus.held_out) == (n == 4)
    for tokens, numbers in (
        (corpus.train, corpus.train_speakers),
        (corpus.validation, corpus.validation_speakers),
    ):
        found = dict.fromkeys(("", *ROLES), b"")
        for token, number in zip(tokens.tolist(), numbers.tolist(), strict=True):
            found[("", *ROLES)[number]] += corpus.tokenizer.decode_bytes([token])
        text = {role: spoken.decode() for role, spoken in found.items()}
        assert re.fullmatch(r"( It is\n \d+é\.\n(U(ser)?|<\|endoftext\|>))+", text["assistant"])
        assert re.fullmatch(r"( What is \d+\?\n Assistant: no\n(A(ssistant)?|<\|endoftext\|>))+", text["user"])
        assert re.fullmatch(r"(User|ser|Assistant|ssistant|:)+", text[""])


def test_a_cached_chat_log_has_its_speakers_and_its_template_again(tmp_path: Path) -> None:
    built = Corpus.build(log(tmp_path), "bpe:300")
    loaded = Corpus.load(built.path)
    assert isinstance(built, ChatCorpus)
    assert isinstance(loaded, ChatCorpus)
    assert loaded.tokenizer.chat_template == built.tokenizer.chat_template == CHAT_TEMPLATE
    assert np.array_equal(loaded.train_speakers, built.train_speakers)
    path = built.path / "train.speakers.bin"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="is not a complete corpus"):
        Corpus.load(built.path)
    assert Corpus.build(log(tmp_path), "bpe:300").damaged_cache == built.path


def test_the_same_transcript_as_plain_text_is_another_corpus_without_speakers(tmp_path: Path) -> None:
    chat = Corpus.build(log(tmp_path), "bytes")
    plain = tmp_path / "plain.txt"
    plain.write_bytes(b"".join(chat.tokenizer.decode_bytes(part.tolist()) for part in (chat.train, chat.validation)))
    corpus = Corpus.build(plain, "bytes")
    assert not corpus.is_chat_log
    assert corpus.tokenizer.chat_template is None
    assert corpus.fingerprint != chat.fingerprint


def test_only_the_turns_of_the_role_are_scored_in_a_batch(tmp_path: Path) -> None:
    corpus = Corpus.build(log(tmp_path), "bpe:300")
    inputs, plain = corpus.batch(3, 8, 24, seed=1)
    again, targets = corpus.batch(3, 8, 24, seed=1, loss_on="assistant")
    assert (inputs == again).all()
    scored = targets != -100
    assert (targets[scored] == plain[scored]).all()
    assert 0.2 < scored.float().mean() < 0.7
    assert "What" not in corpus.tokenizer.decode(targets[scored].tolist())


def test_re_tokenized_windows_score_the_same_text(tmp_path: Path) -> None:
    corpus = Corpus.build(log(tmp_path), "bpe:300")

    def scored_text(dropout: float) -> list[str]:
        config = TrainConfig(batch_size=8, context_length=24, seed=1, bpe_dropout=dropout, loss_on="assistant")
        _, targets = NoisyBatches(corpus, config).tensors(0, range(8), 1.0)
        return [corpus.tokenizer.decode([id for id in row if id != -100]) for row in targets.tolist()]

    for whole, dropped in zip(scored_text(0.0), scored_text(0.4), strict=True):
        # A re-tokenized window ends earlier, and begins earlier if its first token, which is not scored, is another.
        start = max(0, dropped.find(whole[:8]))
        first, second = whole.encode(), dropped[start:].encode()
        assert start < 8
        assert first[: len(second)] == second or second[: len(first)] == first
    assert scored_text(0.0) != scored_text(0.4)


def test_a_role_without_turns_and_a_text_without_roles_are_refused(tmp_path: Path) -> None:
    corpus = Corpus.build(log(tmp_path), "bytes")
    corpus.check_loss_on("user")
    with pytest.raises(
        ConfigError, match=r"loss_on \(system\) is not a role in this text; give user, assistant or all"
    ):
        corpus.check_loss_on("system")
    (tmp_path / "a.txt").write_text("plain text")
    with pytest.raises(ConfigError, match=r"loss_on \(user\) needs a text in which every document is a conversation"):
        Corpus.build(tmp_path / "a.txt", "bytes").check_loss_on("user")
    assert speaker_number("assistant") == 3
