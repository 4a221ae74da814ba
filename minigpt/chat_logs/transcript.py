"""Conversations as plain transcripts: the text that a model is trained on, and the same text in a chat.

    System: Answer in one sentence.
    User: What is the capital of France?
    Assistant: Paris.

A turn is one line that begins with the speaker's name. Further lines of a message begin with a space, so that a line
that begins with anything else begins another turn, whatever the messages contain. RFC 5322 folds the headers of e-mail
in the same way. A conversation ends with an end-of-text.

Until a text is tokenized, the name of a speaker whose message is not learned ends in a zero byte in place of the colon.
No line of a message can begin like that, and nothing else of the text changes.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from minigpt.data.records import Speakers
from minigpt.tokenizer.vocabulary import END_OF_TEXT

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = get_args(Role)

# What `transcript` does, for Hugging Face's `apply_chat_template`, vLLM and llama.cpp.
CHAT_TEMPLATE = r"""
{%- set names = {'system': 'System', 'user': 'User', 'assistant': 'Assistant'} -%}
{%- for message in messages -%}
{%- if message['role'] not in names -%}
{{- raise_exception("the role of a message must be system, user or assistant, not " ~ message['role']) -}}
{%- endif -%}
{%- if message['content'] is string -%}
{%- set content = message['content'] -%}
{%- else -%}
{%- set content = message['content'] | map(attribute='text') | join('') -%}
{%- endif -%}
{{- names[message['role']] ~ ': ' ~ (content | trim | replace('\n', '\n ')) ~ '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- 'Assistant:' -}}
{%- endif -%}
""".strip()

UNLEARNED = len(ROLES) + 1  # the number in `Speakers` of a message that is read but not learned, of any speaker

_MARK = "\0"  # after the name of a speaker whose message is not learned
_LABELS = {role.capitalize().encode(): number for number, role in enumerate(ROLES, 1)}
_LABEL = b"(?P<speaker>" + b"|".join(_LABELS) + b")(?P<mark>[:\0])"
_END = re.escape(END_OF_TEXT).encode()
_MARKS = re.compile(b"(?:(?<=\\n)|(?<=%b))%b|%b" % (_END, _LABEL, _END))
_FIRST = re.compile(_LABEL)
_UNLEARNED = re.compile(rf"(?m)((?:^|{re.escape(END_OF_TEXT)})(?:{'|'.join(map(str.capitalize, ROLES))}))\0")


@dataclass(frozen=True)
class Message:
    """What one speaker says in one turn, and whether a model is to learn it; if not, it only reads it."""

    role: Role
    content: str
    is_learned: bool = True


def transcript(messages: Iterable[Message], *, reply: bool = False) -> str:
    """The text of a conversation; with `reply`, followed by the beginning of the assistant's next turn.

    White space around a message is dropped.
    """
    turns = []
    for each in messages:
        content = each.content.strip().replace("\n", "\n ")
        turns.append(f"{each.role.capitalize()}{':' if each.is_learned else _MARK} {content}\n")
    return "".join([*turns, "Assistant:"] if reply else turns)


def unmarked(text: str) -> str:
    """The transcript as a model reads it, without the marks of messages that are not learned."""
    return _UNLEARNED.sub(r"\1:", text) if _MARK in text else text


def count_unlearned(text: str) -> int:
    """The number of messages in a transcript that are not learned."""
    return len(_UNLEARNED.findall(text)) if _MARK in text else 0


def stop_in_turn(stop: str) -> str:
    """The form of a stop text in a turn, whose further lines begin with a space."""
    return re.sub(r"\n(?=.)", "\n ", stop, flags=re.DOTALL)


class ReplyReader:
    """Reads a generated turn piece by piece: its content, and where the turn ends."""

    def __init__(self) -> None:
        self._after_newline = self._has_begun = False

    def feed(self, text: str) -> tuple[str, bool]:
        """The part of the content that is known now, and whether the turn ends there.

        A newline is held back until the character after it is known.
        """
        content: list[str] = []
        for character in text:
            if self._after_newline and character != " ":
                return self._shown(content), True
            if self._after_newline:
                content.append("\n")
            elif character != "\n":
                content.append(character)
            self._after_newline = character == "\n"
        return self._shown(content), False

    def _shown(self, content: list[str]) -> str:
        """The content without the white space at the beginning of the turn."""
        text = "".join(content)
        if not self._has_begun:
            text = text.lstrip()
            self._has_begun = bool(text)
        return text


def speaker_number(role: str) -> int:
    """The number that stands for one of the ROLES in `Speakers`; 0 is nobody."""
    names: tuple[str, ...] = ROLES
    return names.index(role) + 1


class TranscriptTracker:
    """Finds out who speaks in a transcript that is read in order, part by part.

    A turn begins after its "Assistant:". It ends with the first byte after its last newline, since only that byte
    decides that the turn has ended: it begins the next speaker's name, or an end-of-text. The rest of the name is
    nobody's. A part must not end within a name or an end-of-text, nor between a newline and a name.
    """

    def __init__(self) -> None:
        self._speaker, self._may_begin = 0, True

    def read(self, text: bytes) -> Speakers:
        """Who speaks in the next part of the transcript, in UTF-8."""
        offsets, numbers = [0], [self._speaker]

        def change(offset: int, number: int) -> None:
            if offsets[-1] == offset:
                numbers[-1] = number
            else:
                offsets.append(offset)
                numbers.append(number)

        first = _FIRST.match(text) if self._may_begin else None
        for mark in [*([first] if first else []), *_MARKS.finditer(text, first.end() if first else 0)]:
            name = mark["speaker"]
            if name is not None:
                change(mark.start() + 1, 0)
            change(mark.end(), 0 if name is None else _LABELS[name] if mark["mark"] == b":" else UNLEARNED)
        self._speaker = numbers[-1]
        if text:
            self._may_begin = text.endswith(END_OF_TEXT.encode())
        return Speakers(offsets, numbers)
