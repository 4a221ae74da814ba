"""Chooses the settings of a new run that the user did not give: here by fixed rules, without measuring anything."""

from collections.abc import Generator
from typing import Any

from minigpt.config import preset_config
from minigpt.edges import provided
from minigpt.errors import ConfigError
from minigpt.runs.events import Event
from minigpt.runs.plan import FINE_TUNED, Draft, Plan
from minigpt.storage.run_record import BaselineRecord, RunRecord

_MINUTES = 5.0  # of training, unless the text is tiny
_TINY, _TINY_STEPS = 20_000, 300  # tokens of a text on which a model trains for so many steps
_SHORT_TEXT = 300_000  # bytes of text, from which on the preset is micro
_SHORT, _LONG = "nano", "micro"  # presets
_FINE_TUNING_CONTEXT, _FINE_TUNING_RATE = 256, 5e-5
_STEP_TOKENS = 1024  # in a batch
_PATIENCE = 5  # evaluations


class Planner:
    """Chooses settings. An edge provides a subclass at the seam "planner", of which the last one plans."""

    def plan(self, draft: Draft) -> Generator[Event, None, Plan]:
        """Chooses what the user did not give: a small preset, 5 minutes, batches of 1,024 tokens.

        Raises: ConfigError for options that cannot be combined or do not fit the text.
        """
        yield from ()
        options, base, n_tokens = draft.request.options, draft.base, len(draft.corpus.train)
        preset = options.preset or (_SHORT if draft.corpus.train_bytes < _SHORT_TEXT else _LONG)
        if base is None:
            model = preset_config(preset).replace(vocab_size=draft.corpus.tokenizer.vocab_size, **options.shape)
            context = min(options.training.context_length or model.n_positions, max(1, n_tokens - 1))
            model = model.replace(n_positions=context)
            model.check_positions()
            chosen: dict[str, Any] = {"optimizer": "muon"}
        else:
            model = base.model.config.replace(**options.shape)
            context = options.training.context_length or min(model.n_positions, _FINE_TUNING_CONTEXT)
            context = min(context, max(1, n_tokens - 1))
            if context > model.n_positions:
                raise ConfigError(f"context_length ({context}) must be at most the model's own ({model.n_positions})")
            chosen = {"optimizer": "adamw", "learning_rate": _FINE_TUNING_RATE}
        sequences = min(_STEP_TOKENS, n_tokens // 8) // context
        chosen |= {"batch_size": max(draft.processes, sequences, 1), "patience": _PATIENCE}
        if not {"steps", "epochs", "minutes"} & options.given:
            chosen |= {"steps": _TINY_STEPS} if n_tokens < _TINY else {"minutes": _MINUTES}
        chosen = {name: value for name, value in chosen.items() if name not in options.given}
        config = options.training.replace(**chosen | {"context_length": context})
        config.check_processes(draft.processes)
        return Plan(**vars(draft), preset=FINE_TUNED if base else preset, model=model, training=config)

    def baselines(self, record: RunRecord) -> tuple[BaselineRecord, ...]:  # noqa: ARG002
        """The results of simple methods that the evaluations of a run are compared with, the worst first."""
        return ()

    def suspects(self, record: RunRecord) -> str:  # noqa: ARG002
        """A sentence on the settings that can be why a run diverged; empty if there are none."""
        return ""


def planner() -> Planner:
    """The planner of the last edge that has one, else that of the spine."""
    chosen: type[Planner] = (Planner, *provided("planner"))[-1]
    return chosen()
