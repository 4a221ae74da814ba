"""What a messenger's export holds: chats of several senders, and how they become conversations with an assistant."""

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from minigpt.chat_logs.transcript import Message, Role
from minigpt.tokenizer.vocabulary import END_OF_TEXT, replace_surrogates

PAUSE_HOURS = 4  # without a message: the next one begins a conversation

# What is dropped of an export, as a note counts it.
MEDIA, SYSTEM, FORWARDED = "media message", "system message", "forwarded message"


class Said(NamedTuple):
    """A message: who wrote it, its text, and when, in seconds since any day."""

    sender: str
    text: str
    time: float = 0.0


@dataclass
class ExportedChat:
    """The messages of one chat in order, and the numbers of those that were dropped, by kind.

    `owner` is the sender who exported it, where the export says so. With `has_roles`, the senders are the roles of
    a conversation, and the whole chat is one conversation.
    """

    said: list[Said] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    owner: str = ""
    has_roles: bool = False

    def add(self, sender: str, text: str, time: float = 0.0, *, otherwise: str = MEDIA) -> None:
        """Adds a message; one without text is counted as dropped."""
        text = replace_surrogates(text.replace(END_OF_TEXT, "<endoftext>").replace("\0", "")).strip()
        if text:
            self.said.append(Said(sender, text, time))
        else:
            self.dropped[otherwise] += 1

    def assistant(self, names: Collection[str]) -> str:
        """The sender whose turns are the assistant's: who has one of these names, else the owner; "" if none does."""
        wanted = set(map(_plain, names)) or {_plain(self.owner)}
        return next((sender for sender, *_ in self.said if _plain(sender) in wanted), "")

    def has_both(self, assistant: str) -> bool:
        """Whether this sender and others wrote."""
        if self.has_roles:
            return bool(self.said)
        return assistant != "" and any(each.sender != assistant for each in self.said)

    def conversations(self, assistant: str) -> Iterator[list[Message]]:
        """The conversations of this sender with the others, who are the user, without their names.

        Messages of one role that follow each other are the lines of one turn.
        """
        turns: list[tuple[Role, list[str]]] = []
        before = self.said[0].time if self.said else 0.0
        for sender, text, time in self.said:
            if not self.has_roles and time - before >= 3600 * PAUSE_HOURS:
                yield _messages(turns)
                turns = []
            before = time
            role: Role = "assistant" if sender == assistant else "user"
            if self.has_roles:
                role = cast(Role, sender)
            if not turns or turns[-1][0] != role:
                turns.append((role, []))
            turns[-1][1].append(text)
        if turns:
            yield _messages(turns)


def _messages(turns: list[tuple[Role, list[str]]]) -> list[Message]:
    return [Message(role, "\n".join(texts)) for role, texts in turns]


def _plain(name: str) -> str:
    """A name without what does not show or differs between apps: its case, marks of direction, WhatsApp's tilde."""
    shown = "".join(each for each in unicodedata.normalize("NFKC", name) if unicodedata.category(each) != "Cf")
    return " ".join(shown.replace("~", " ").split()).casefold()
