"""The models that the server answers with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from minigpt.generation.healing import Prompt, encode_prompt
from minigpt.model.gpt import GPT
from minigpt.server.api_error import ApiError, invalid
from minigpt.server.batching.batch import Batch
from minigpt.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model under the name that clients use, on the batch that runs it; `created` is a Unix time in seconds.

    `chat_template` is the Jinja template of conversations that is saved with the model, None without one. `directory`
    is the model's folder.
    """

    name: str
    created: int
    batch: Batch
    chat_template: str | None = None
    directory: Path | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.batch.tokenizer

    @property
    def network(self) -> GPT:
        """The model itself, which PyTorch computes."""
        return self.batch.engine.model

    @property
    def context_length(self) -> int:
        """How many tokens the model sees."""
        return self.batch.engine.n_positions

    def to_dict(self) -> dict[str, object]:
        """The model in OpenAI's form, with its context length."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "minigpt",
            "max_model_len": self.context_length,
        }

    def encode(self, text: str, *, token_healing: bool, special_tokens: bool = False) -> Prompt:
        """The tokens of a prompt; the exact name of a special token is that token, no text at all the end of a text."""
        if text in self.tokenizer.special:
            return Prompt([self.tokenizer.special[text]])
        return encode_prompt(self.tokenizer, text, token_healing=token_healing, special_tokens=special_tokens)

    def check_ids(self, ids: Sequence[int], param: str) -> None:
        """Raises: ApiError for an id that the tokenizer does not have."""
        size = self.tokenizer.vocab_size
        for index, id in enumerate(ids):
            if not 0 <= id < size:
                raise invalid(f"{param}[{index}] ({id}) must be a token id from 0 to {size - 1}", param)

    def token_text(self, id: int) -> str:
        """A token as separate text, as in OpenAI's log-probabilities: `bytes:\\xe2` if it is no valid UTF-8."""
        raw = self.tokenizer.token_bytes(id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class Models:
    """The served models by name, once they are loaded."""

    def __init__(self, load: Callable[[], Sequence[ServedModel]]) -> None:
        self._load = load
        self._models: Mapping[str, ServedModel] = {}

    def load(self) -> Sequence[ServedModel]:
        """Loads the models; until it returns, `get` refuses.

        Raises: MinigptError.
        """
        loaded = self._load()
        self._models = {model.name: model for model in loaded}
        return loaded

    @property
    def all(self) -> Sequence[ServedModel]:
        """The models, the default one first; none until they are loaded."""
        return list(self._models.values())

    def get(self, name: str | None) -> ServedModel:
        """The model of this name; None is the first one.

        Raises: ApiError if there is none of this name, or if the models are still being loaded.
        """
        if not self._models:
            raise ApiError(503, "the server is still loading its models", code="loading", headers={"Retry-After": "2"})
        if name is None:
            return next(iter(self._models.values()))
        if name not in self._models:
            known = ", ".join(self._models)
            raise ApiError(
                404, f"the model {name[:60]!a} is not served here; there is: {known}", param="model",
                code="model_not_found",
            )  # fmt: skip
        return self._models[name]
