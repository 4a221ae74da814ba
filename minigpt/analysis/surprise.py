"""What every token of one held-out passage costs a model: while it trains, or afterwards by the weights there are."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from minigpt.analysis.inspection import predict
from minigpt.errors import MinigptError
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.run import Run
from minigpt.text.corpus import Corpus

_MOST_TOKENS = 96


def passage(validation: npt.NDArray[Any], context: int) -> list[int]:
    """The first tokens of a validation part, as many as are followed through a run."""
    return validation[: min(_MOST_TOKENS, context)].tolist()


def surprise(model: GPT, ids: Sequence[int]) -> list[float]:
    """The loss of each of the tokens but the first. Units: nats, to a thousandth."""
    return [round(-logprob, 3) for logprob in predict(model, ids, top=1).logprobs[:-1].tolist()]


def surprise_of_weights(run: Run) -> list[dict[str, Any]]:
    """The same by a run's best and last weights, as lines of a log, in the order of their steps.

    Nothing where the corpus or the weights are not at hand, or nothing was held out.
    """
    corpus_record = run.record["corpus"]
    try:
        corpus = Corpus.load(corpus_record.get("path", ""))
        if corpus.fingerprint != corpus_record["fingerprint"] or len(corpus.validation) < 2:
            return []
        model = load_checkpoint(run.directory, "cpu").model
        ids = passage(corpus.validation, model.config.n_positions)
        last = run.load_last()
        best_step = (run.record.get("result") or (last.progress if last else {})).get("best_step")
        lines = {} if best_step is None else {best_step: surprise(model, ids)}
        if last is not None and last.progress["step"] not in lines:
            own = {name.removeprefix("model."): value for name, value in last.tensors.items()}
            model.load_state_dict({name: own[name] for name in model.state_dict()})
            lines[last.progress["step"]] = surprise(model, ids)
    except (MinigptError, KeyError):  # a run may be broken off anywhere; the rest of it is shown all the same
        return []
    return [{"step": step, "passage": ids, "surprise": nats} for step, nats in sorted(lines.items())]
