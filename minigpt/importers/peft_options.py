"""The options of a LoRA adapter in peft's adapter_config.json: which are honored, and the values of its patterns."""

import math
import re
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any

from minigpt.errors import CheckpointError, quoted
from minigpt.storage.json_record import is_integer, is_number, is_text, mapping

# Options of adapter_config.json that are honored, and those that do not change the adapted model's function.
_HONORED = {
    "alpha_pattern", "bias", "lora_alpha", "modules_to_save", "peft_type", "r", "rank_pattern", "use_dora",
    "use_rslora",
}  # fmt: skip
_WITHOUT_EFFECT = {
    "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "eva_config",
    "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform",
    "lora_dropout", "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config",
    "target_modules", "task_type",
}  # fmt: skip
_BASE_CHANGING = ("pissa", "olora", "loftq", "corda", "lora_ga")  # initializations that also change the base weights
# The regular expressions of rank_pattern and alpha_pattern that are supported: others may take very long to match.
_CHARACTERS = r"(?:[\w.-]|\\[.dDwW-]|\[\^?[\w.\\-]+\])(?:(?:[*+?]|\{\d{1,2}(?:,\d{0,2})?\})\??)?"
_GROUP = rf"\((?:\?:)?(?:{_CHARACTERS}|\|)*\)"
_PATTERN = re.compile(rf"\^?(?:{_CHARACTERS}|\||{_GROUP})*\$?")
_CHOICES = 12  # bits of choice in a pattern at most: matching may take time that is exponential in them
_ALL_CHOICES = 1 << 13  # of all patterns together: each is matched with each layer
_LONGEST_LIST = 500  # entries; a pattern for each layer of GPT-2 XL would be 192


def check_options(options: Mapping[str, Any], path: Path) -> None:
    """Raises CheckpointError for an adapter of another kind, and for an option that is not supported."""
    kind = options.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"peft_type ({quoted(kind)}) in {path} must be 'LORA'; merge the adapter with peft")
    for name, value in options.items():
        if name not in _HONORED | _WITHOUT_EFFECT and value not in (None, False, {}, [], "megatron.core"):
            raise CheckpointError(f"{name} ({quoted(value)}) in {path} is not supported; merge the adapter with peft")
    initial = str(options.get("init_lora_weights", True)).lower()
    if initial.startswith(_BASE_CHANGING):
        raise CheckpointError(
            f"init_lora_weights ({initial!r}) in {path} changes the base model, so that the adapter does not belong to "
            "the base that it names; convert it with peft's path_initial_model_for_weight_conversion"
        )
    base = options.get("base_model_name_or_path")
    if base is not None and not is_text(base):
        raise CheckpointError(f"base_model_name_or_path ({quoted(base)}) in {path} must be a name or a path")
    if not is_integer(options.get("r", 8), 1):
        raise CheckpointError(f"r ({quoted(options['r'])}) in {path} must be a whole number of at least 1")
    if not is_number(options.get("lora_alpha", 8)):
        raise CheckpointError(f"lora_alpha ({quoted(options['lora_alpha'])}) in {path} must be a number")
    if options.get("bias", "none") not in ("none", "all", "lora_only"):
        raise CheckpointError(f"bias ({quoted(options['bias'])}) in {path} must be none, all or lora_only")
    saved = options.get("modules_to_save") or []
    if not isinstance(saved, list) or not all(isinstance(each, str) for each in saved):
        raise CheckpointError(f"modules_to_save ({quoted(saved)}) in {path} must be a list of names")
    _check_length("modules_to_save", saved, path)
    for name in ("rank_pattern", "alpha_pattern"):
        patterns = mapping(options.get(name) or {}, f"{name} in {path}")
        _check_length(name, patterns, path)
        choices = 0.0
        for pattern, value in patterns.items():
            if not is_number(value):
                raise CheckpointError(f"{name} of {quoted(pattern)} in {path} is {quoted(value)}, not a number")
            if name == "rank_pattern" and not is_integer(value, 1):
                raise CheckpointError(
                    f"{name} of {quoted(pattern)} in {path} is {quoted(value)}, not a whole number of at least 1"
                )
            choices += 2 ** _check_pattern(pattern, name, path)
        if choices > _ALL_CHOICES:
            raise CheckpointError(f"{name} in {path}: its regular expressions together are not supported")


def _check_length(name: str, entries: Sized, path: Path) -> None:
    if len(entries) > _LONGEST_LIST:
        raise CheckpointError(f"{name} in {path} has {len(entries):,} entries; the maximum is {_LONGEST_LIST}")


def _check_pattern(pattern: str, name: str, path: Path) -> float:
    """The bits of choice in a regular expression, on which depends how long its matching can take.

    Raises: CheckpointError for one that is not valid, or whose matching could take very long.
    """
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise CheckpointError(f"{name} in {path}: {quoted(pattern)} is not a regular expression ({error})") from error
    alternatives = [each.count("|") + 1 for each in (re.sub(_GROUP, "", pattern), *re.findall(_GROUP, pattern))]
    choices = 3 * len(re.findall(r"(?<!\()[*+?{]", pattern)) + sum(map(math.log2, alternatives))
    if not _PATTERN.fullmatch(pattern) or choices > _CHOICES:
        raise CheckpointError(f"{name} in {path}: the regular expression {quoted(pattern)} is not supported")
    return choices


class LayerPatterns:
    """A rank_pattern or alpha_pattern: regular expressions for the end of a layer's name, with a value for each."""

    def __init__(self, patterns: Mapping[str, float] | None, default: float) -> None:
        self._values = [(re.compile(rf"(.*\.)?({pattern})$"), value) for pattern, value in (patterns or {}).items()]
        self._default = default

    def of(self, layer: str) -> float:
        """The value of the first pattern that matches, as peft chooses it."""
        name = f"transformer.{layer}"
        return next((value for pattern, value in self._values if pattern.match(name)), self._default)
