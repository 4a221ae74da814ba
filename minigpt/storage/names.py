"""The names of files that several modules look for, and the names of texts and models without their folders."""

import re

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"  # instead of WEIGHTS in the folder of an adapter
PICKLED_ADAPTER = "adapter_model.bin"  # of peft before 2024
GENERATION_CONFIG = "generation_config.json"
TRAINING = "training.json"
CARD = "README.md"  # the model card
LAST = "last"  # the folder of the states that a run resumes from
TEACHER = "teacher"  # the folder of the run of the teacher that a distilled run learns from


def last_part(path: str) -> str:
    """The last part of a path of any system: a run may have been made on another one."""
    return re.split(r"[\\/]", path.rstrip("\\/"))[-1]


def encodable(text: str) -> str:
    """The text with a question mark for each byte of a file name that is not UTF-8, so that it can be encoded."""
    return text.encode(errors="replace").decode()


def plain_source(source: str) -> str:
    """The name of a text or a model without its folders, which may be private."""
    return "standard input" if source == "-" else last_part(source) or source
