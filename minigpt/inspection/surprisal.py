"""The surprisal of each token of one validation passage, during training or from saved weights."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from minigpt.data.open_corpus import open_corpus
from minigpt.errors import CheckpointError, DataError
from minigpt.inspection.activations import predict
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.last_state import LastState
from minigpt.storage.run import Run

_PASSAGE_TOKENS = 96


def passage(validation: npt.NDArray[Any], context: int) -> list[int]:
    """The first tokens of the validation data, whose surprisal is recorded during a run."""
    return validation[: min(_PASSAGE_TOKENS, context)].tolist()


def surprisal(model: GPT, ids: Sequence[int]) -> list[float]:
    """The loss of each token but the first, rounded to three decimals. Units: nats."""
    return [round(-logprob, 3) for logprob in predict(model, ids, top=1).logprobs[:-1].tolist()]


def surprisal_of_weights(run: Run) -> list[dict[str, Any]]:
    """The surprisal with a run's best and last weights, in the form of log lines, sorted by step.

    Raises: MinigptError with the reason if the validation tokens or the weights are not available.
    """
    recorded = run.record.corpus
    if recorded is None or recorded.path is None:  # as in early runs
        raise DataError("the run's record does not name the folder of its tokens")
    corpus = open_corpus(recorded.path)
    if corpus.fingerprint != recorded.fingerprint:
        raise DataError(f"{recorded.path} now holds another text")
    if len(corpus.validation) < 2:
        raise DataError("the corpus has no validation data")
    model = load_checkpoint(run.directory, "cpu").model
    ids = passage(corpus.validation, model.config.n_positions)
    last = run.load_last()
    result = run.record.result
    best_step = result.best_step if result else _best_step(last)
    lines = {} if best_step is None else {best_step: surprisal(model, ids)}
    if last is not None and last.progress["step"] not in lines:
        try:
            model.load_state_dict({name: last.tensors[f"model.{name}"] for name in model.state_dict()})
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(f"{run.last_path} belongs to another model") from error
        lines[last.progress["step"]] = surprisal(model, ids)
    if not lines:
        raise CheckpointError(f"{run.directory} has no saved weights")
    return [{"step": step, "passage": ids, "surprise": nats} for step, nats in sorted(lines.items())]


def _best_step(last: LastState | None) -> int | None:
    """The step of the best weights by a saved state; earlier versions wrote the progress without groups."""
    if last is None:
        return None
    best = last.progress.get("best", {"step": last.progress.get("best_step")})
    return best["step"]
