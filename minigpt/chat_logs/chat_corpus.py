"""The corpus of a chat log, in which the speaker of every token is known."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt

from minigpt.chat_logs.transcript import ROLES, UNLEARNED, speaker_number
from minigpt.data.corpus import Corpus
from minigpt.data.corpus_cache import map_array
from minigpt.data.split import Part
from minigpt.data.token_writer import speakers_path
from minigpt.errors import ConfigError, DataError
from minigpt.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, eq=False)
class ChatCorpus(Corpus):
    """A corpus of conversations. `train_speakers` and `validation_speakers` are the numbers of the tokens' speakers,
    (N,) uint8 each (see `minigpt.data.records.Speakers`)."""

    train_speakers: npt.NDArray[np.uint8]
    validation_speakers: npt.NDArray[np.uint8]

    @classmethod
    def open(cls, folder: Path, record: dict[str, Any], tokenizer: Tokenizer | None) -> "ChatCorpus | None":
        """The corpus that a folder of the cache records; None if it is not one of conversations only."""
        if "speaker_hashes" not in record:
            return None
        hashes = record.pop("speaker_hashes")
        speakers: dict[str, Any] = {
            f"{part}_speakers": map_array(
                speakers_path(folder, part), np.dtype(np.uint8), record[f"{part}_tokens"], hashes[part]
            )
            for part in get_args(Part)
        }
        return cls(**cls.fields_of_text(folder, record, tokenizer), **speakers)

    @property
    def is_chat_log(self) -> bool:
        """Whether the speaker of each token is known."""
        return True

    def windows(
        self,
        step: int,
        size: int,
        length: int,
        seed: int,
        rows: range | None = None,
        *,
        lookahead: int = 1,
        loss_on: str = "all",
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
        """One step's windows of the training part, and which tokens are of the turns of `loss_on`, as `Corpus.windows`.

        Shapes: (B, T + lookahead) each.
        """
        tokens = self._windows(self.train, step, size, length, seed, rows, lookahead)
        if self.scores_all(loss_on):
            return tokens, None
        speakers = self._windows(self.train_speakers, step, size, length, seed, rows, lookahead)
        return tokens, _is_scored(speakers, loss_on)

    def check_loss_on(self, role: str) -> None:
        """Checks that the loss can be measured on this role's turns, or on `all`.

        Raises: ConfigError for a role without turns in one of the parts; DataError if no message is learned.
        """
        if self.scores_all(role):
            return
        found = [each for each in ROLES if _is_scored(self.train_speakers, each).any()]
        if role == "all" and not found:
            raise DataError("every message of this text has weight 0, so there is nothing to learn; remove some")
        if role != "all" and role not in found:
            but = " but in messages with weight 0" if (self.train_speakers == UNLEARNED).any() else ""
            raise ConfigError(
                f"loss_on ({role}) is not a role in this text{but}; give {', '.join(found)}{' or ' * bool(found)}all"
            )
        scored = self.scored(role)
        if scored is not None and len(scored) > 1 and not scored[1:].any():
            raise ConfigError(f"loss_on ({role}) has no turn in the held-out part; give a larger --validation-fraction")

    def scores_all(self, role: str) -> bool:
        """Whether the loss includes every token: with `all`, unless messages have weight 0."""
        return role == "all" and not self._has_unlearned

    @cached_property
    def _has_unlearned(self) -> bool:
        return any(bool((each == UNLEARNED).any()) for each in (self.train_speakers, self.validation_speakers))

    def first_question(self, most: int) -> str:
        """The beginning of a held-out conversation up to the assistant's first turn; empty without one of at most
        `most` tokens."""
        answers = np.flatnonzero(self.validation_speakers[: most + 1] == speaker_number("assistant"))
        return self.tokenizer.decode(self.validation[: answers[0]].tolist()) if len(answers) else ""

    def scored(self, role: str, part: Part = "validation") -> npt.NDArray[np.bool_] | None:
        """Which tokens of a part the loss on this role's turns includes, (N,); None for all."""
        speakers = self.validation_speakers if part == "validation" else self.train_speakers
        return None if self.scores_all(role) else _is_scored(speakers, role)


def _is_scored(speakers: npt.NDArray[Any], role: str) -> npt.NDArray[np.bool_]:
    scored = speakers != UNLEARNED if role == "all" else speakers == speaker_number(role)
    return cast("npt.NDArray[np.bool_]", scored)


def sample_prompt(corpus: Corpus, most: int) -> str:
    """The first question of a chat log (the seam `sample_prompt`); empty for another text."""
    return corpus.first_question(most) if isinstance(corpus, ChatCorpus) else ""
