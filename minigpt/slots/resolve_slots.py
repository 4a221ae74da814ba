"""Chooses the slot engine for a model: the first that an installed edge has for it, else PyTorch's."""

from minigpt.edges import provided
from minigpt.generation.engine_settings import Quantization
from minigpt.generation.resolve_engine import check_plain, check_quantization
from minigpt.model.gpt import GPT
from minigpt.slots.slots import Slots


def resolve_slots(model: GPT, n_slots: int, quantization: Quantization = "none") -> Slots:
    """The fastest slot engine for a model on its device.

    An edge provides it at the seam `slots`, by a function with these arguments, which returns None if it has none for
    the model.
    Raises: ConfigError for int8 if no slot engine can run the model with it.
    """
    check_quantization(quantization)
    for new_slots in provided("slots"):
        slots: Slots | None = new_slots(model, n_slots, quantization)
        if slots is not None:
            return slots
    check_plain(quantization)
    return Slots(model, n_slots)
