"""What an export may write, and where: the targets with their dtypes, and the file or folder of the result."""

from pathlib import Path

from minigpt.errors import CheckpointError, ConfigError
from minigpt.exporters.ctranslate2 import CTRANSLATE2_DTYPES
from minigpt.exporters.gguf import GGUF_DTYPES
from minigpt.exporters.model_card import upload_command
from minigpt.exporters.onnx import ONNX_MODEL, ONNX_WEIGHTS
from minigpt.pretrained.open_model import is_checkpoint
from minigpt.storage.adapters import is_adapter
from minigpt.storage.checkpoint import CONFIG, GENERATION_CONFIG, TRAINING
from minigpt.storage.folder import wrap_write_errors
from minigpt.tokenizer.files import tokenizer_files

# The dtypes of each target, its default first.
TARGETS = {"gguf": GGUF_DTYPES, "onnx": ("f32",), "ctranslate2": CTRANSLATE2_DTYPES, "html": ("int8",)}
ONE_FILE = {"gguf": ".gguf", "html": ".html"}
# The files of each target that is a folder; the first one identifies the target.
FILES = {
    "onnx": (ONNX_MODEL, ONNX_WEIGHTS, CONFIG, GENERATION_CONFIG, *tokenizer_files()),
    "ctranslate2": ("model.bin", "vocabulary.json", CONFIG, *tokenizer_files()),
}
# Why a target cannot hold a model without a tokenizer.
_NEEDS_TOKENIZER = {
    "gguf": "a GGUF file holds the text of every token",
    "ctranslate2": "CTranslate2 takes a prompt as the texts of its tokens",
    "html": "the page shows text",
}
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index")


def check_target(source: Path, target: str, dtype: str | None) -> str:
    """The dtype to export in.

    Raises: ConfigError if the target does not exist or does not have the dtype.
    """
    if target == "hf" and is_adapter(source):
        raise ConfigError(
            f"target ('hf') needs no export: {source} is an adapter, which peft opens;"
            f" `minigpt merge {source}` makes a whole Hugging Face model"
        )
    if target == "hf":
        raise ConfigError(
            f"target ('hf') needs no export: {source} is a Hugging Face model, which transformers and vLLM open, and"
            f" `{upload_command(source.resolve().name, str(source))}` publishes it"
            if is_checkpoint(source)
            else "target ('hf') needs no export: `minigpt load-gpt2 --from` converts any model to a Hugging Face folder"
        )
    if target not in TARGETS:
        raise ConfigError(f"target ({target!r}) must be one of {', '.join(TARGETS)}")
    dtypes = TARGETS[target]
    if dtype is not None and dtype not in dtypes:
        choices = f"one of {', '.join(dtypes)}" if len(dtypes) > 1 else dtypes[0]
        raise ConfigError(f"dtype ({dtype!r}) must be {choices} for {target}")
    return dtype or dtypes[0]


def check_ids_only(source: Path, target: str) -> None:
    """Checks that a target can hold a model without a tokenizer.

    Raises: CheckpointError if it needs one.
    """
    is_adapter_alone = target == "gguf" and is_adapter(source)  # its file holds no tokenizer
    if (reason := _NEEDS_TOKENIZER.get(target)) and not is_adapter_alone:
        raise CheckpointError(
            f"{source} has no tokenizer, so it cannot be exported to {target}: {reason}; --to onnx needs none"
        )


def resolve_output(source: Path, target: str, dtype: str, output: str | Path | None) -> Path:
    """The file or folder to write.

    Raises: ConfigError if `output` does not suit the target; CheckpointError if it cannot be accessed.
    """
    name = model_name(source) + ("" if dtype == TARGETS[target][0] else f"-{dtype}")
    name += ONE_FILE.get(target, f"-{target}")
    path = Path(name if output is None else output)
    with wrap_write_errors(path):
        is_folder, is_file = path.is_dir(), path.exists() and not path.is_dir()
    if target in ONE_FILE:
        if is_folder:
            return path / name
        if path.suffix != ONE_FILE[target]:
            raise ConfigError(
                f"output ({str(path)!r}) must end in {ONE_FILE[target]}, or be an existing folder for {name}"
            )
    elif path.name in ("", "..") or is_file:
        raise ConfigError(f"output ({str(path)!r}) must be a separate folder, such as {name}")
    return path


def model_name(source: Path) -> str:
    """The name of a model's folder or file."""
    own = source.resolve()
    return own.name if own.is_dir() else own.stem


def check_replaceable(source: Path, target: str, path: Path) -> None:
    """Checks that the output is empty or an earlier export to the same target.

    Raises: ConfigError if it is something else; OSError if a folder cannot be listed.
    """
    if path.resolve() == source.resolve():
        raise ConfigError(f"output ({str(path)!r}) is the model to export; choose another --output")
    if target in ONE_FILE:
        return
    expected, found = FILES[target], {entry.name for entry in path.iterdir()}
    others = [name for name in found - set(expected) if Path(name).suffix in _WEIGHTS or name == TRAINING]
    if others or (found and expected[0] not in found):
        what = f"holds {min(others)}" if others else f"has no {expected[0]}"
        raise ConfigError(
            f"output ({str(path)!r}) {what}, so it is not an earlier export to {target}, and would be lost; choose"
            " another --output"
        )
