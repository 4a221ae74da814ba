"""What every token of one held-out passage costs a model: while it trains, or afterwards by the weights there are."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from minigpt.data.corpus import Corpus
from minigpt.errors import CheckpointError, DataError
from minigpt.inspection.activations import predict
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.run import Run

_MOST_TOKENS = 96


def passage(validation: npt.NDArray[Any], context: int) -> list[int]:
    """The first tokens of a validation part, as many as are followed through a run."""
    return validation[: min(_MOST_TOKENS, context)].tolist()


def surprisal(model: GPT, ids: Sequence[int]) -> list[float]:
    """The loss of each of the tokens but the first. Units: nats, to a thousandth."""
    return [round(-logprob, 3) for logprob in predict(model, ids, top=1).logprobs[:-1].tolist()]


def surprisal_of_weights(run: Run) -> list[dict[str, Any]]:
    """The same by a run's best and last weights, as lines of a log, in the order of their steps.

    Raises: MinigptError, which says why, where there is nothing to measure or to measure it with.
    """
    recorded = run.record.corpus
    if recorded is None or recorded.path is None:  # as in early runs
        raise DataError("the run's record does not say where its tokens are")
    corpus = Corpus.load(recorded.path)
    if corpus.fingerprint != recorded.fingerprint:
        raise DataError(f"{recorded.path} now holds another text")
    if len(corpus.validation) < 2:
        raise DataError("nothing was held out")
    model = load_checkpoint(run.directory, "cpu").model
    ids = passage(corpus.validation, model.config.n_positions)
    last = run.load_last()
    result = run.record.result
    best_step = result.best_step if result else last.progress.get("best_step") if last else None
    lines = {} if best_step is None else {best_step: surprisal(model, ids)}
    if last is not None and last.progress["step"] not in lines:
        own = {name.removeprefix("model."): value for name, value in last.tensors.items()}
        try:
            model.load_state_dict({name: own[name] for name in model.state_dict()})
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(f"{run.last_path} holds the state of another model") from error
        lines[last.progress["step"]] = surprisal(model, ids)
    if not lines:
        raise CheckpointError(f"{run.directory} was stopped before its first save")
    return [{"step": step, "passage": ids, "surprise": nats} for step, nats in sorted(lines.items())]
