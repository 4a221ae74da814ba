"""How good the model is at the moment: its loss on the validation part, and what it writes; it decides nothing."""

from typing import Any

import torch

from minigpt.analysis.evaluation import Evaluation, evaluate
from minigpt.analysis.surprise import passage, surprise
from minigpt.config import SamplingConfig, TrainConfig
from minigpt.generation.eager import TorchEngine
from minigpt.generation.engine import resolve_engine
from minigpt.generation.streaming import generate_text
from minigpt.model.gpt import GPT
from minigpt.text.corpus import Corpus
from minigpt.training.distributed import World

_SAMPLING = SamplingConfig(max_new_tokens=120, temperature=0.8, top_p=0.95, seed=0)
_FINAL_SHARE = 0.1  # of a budget in minutes, the most that the last evaluation may take


class Examiner:
    """Measures the validation part, where there is one, and draws samples, always in the same way.

    On a CPU in float32 whatever the run trains in, so that its figures are those of the weights it saves, as
    `minigpt evaluate` gives them; elsewhere in the run's dtype. `seconds_per_token` is what the last evaluation took.
    """

    def __init__(self, model: GPT, corpus: Corpus, config: TrainConfig, dtype: torch.dtype, world: World) -> None:
        self.model, self.corpus, self.config, self.world = model, corpus, config, world
        self.dtype = torch.float32 if world.device(config.device).type == "cpu" else dtype
        self.has_validation = len(corpus.validation) > 1
        self.seconds_per_token = 0.0

    def measure(self, max_tokens: int | None) -> Evaluation | None:
        """The loss over so many validation tokens, None for all of them."""
        if not self.has_validation:
            return None
        with self.world.reading(self.model):
            return evaluate(
                self.model,
                self.corpus.validation,
                token_lengths=self.corpus.tokenizer.token_lengths,
                context=self.config.context_length,
                max_tokens=max_tokens,
                dtype=self.dtype,
                readers=self.world,
            )

    def heard(self, seconds: float, tokens: int | None = None) -> None:
        """Learns how long an evaluation took; of so many tokens, or as a run in its middle reads."""
        tokens = tokens or min(self.config.eval_tokens, len(self.corpus.validation))
        self.seconds_per_token = seconds / max(1, tokens)

    def measure_finally(self) -> Evaluation | None:
        """The loss over all of it, or as much as a tenth of a budget in minutes is enough for."""
        return self.measure(self._final_tokens())

    def final_seconds(self) -> float:
        """How long that will take. Units: seconds."""
        n_tokens = len(self.corpus.validation)
        return self.seconds_per_token * min(n_tokens, self._final_tokens() or n_tokens)

    def _final_tokens(self) -> int | None:
        if self.config.minutes is None or not self.seconds_per_token:
            return None
        return max(self.config.eval_tokens, int(_FINAL_SHARE * 60 * self.config.minutes / self.seconds_per_token))

    def surprise(self) -> dict[str, list[Any]]:
        """The first tokens of the validation part, always the same, and the loss of each but the first, for the log.

        Units: nats, to a thousandth.
        """
        ids = passage(self.corpus.validation, self.model.config.n_positions)
        with self.world.reading(self.model):
            return {"passage": ids, "surprise": surprise(self.model, ids)}

    def sample(self) -> str:
        """What the model writes, from the same prompt and seed each time."""
        with self.world.reading(self.model):
            # Some tokens now and then are no reason to record graphs, and sharded weights cannot be in one.
            on_cpu = self.model.token_embedding.weight.device.type == "cpu"
            engine = resolve_engine(self.model) if on_cpu else TorchEngine(self.model)
            return "".join(generate_text(engine, self.corpus.tokenizer, self.config.sample_prompt, _SAMPLING))
