"""Writes the Modelfile that Ollama creates a model from, next to a GGUF file.

Source: https://github.com/ollama/ollama/blob/main/docs/modelfile.md
"""

from pathlib import Path

from minigpt.config import SamplingConfig
from minigpt.shell import join
from minigpt.storage.files import atomic_write

_SUFFIX = ".Modelfile"


def modelfile_path(gguf: Path) -> Path:
    """The Modelfile of a GGUF file: in the same folder, with the same name."""
    return gguf.with_suffix(_SUFFIX)


def modelfile(gguf: Path, context: int) -> str | None:
    """The content of the Modelfile for a GGUF file of a model with this context length, in tokens.

    The prompt is passed on unchanged, because the model continues texts. Sampling is minigpt's: Ollama's defaults have
    a repetition penalty and a top-k of 40. Of the context, one half is left for the prompt, because llama.cpp does not
    continue past the last position of GPT-2.
    None for a file name that a Modelfile cannot hold: one with a control character.
    """
    if not gguf.name.isprintable():
        return None
    usual = SamplingConfig()
    return (
        f"# {join('ollama', 'create', 'NAME', '-f', modelfile_path(gguf).name)}\n"
        f"# The prompt and the new text together must fit into {context} tokens (num_ctx).\n"
        f"FROM ./{gguf.name}\n"
        'TEMPLATE """{{ .Prompt }}"""\n'
        f"PARAMETER num_ctx {context}\n"
        f"PARAMETER num_predict {max(1, min(usual.max_new_tokens, context // 2))}\n"
        f"PARAMETER temperature {usual.temperature:g}\n"
        f"PARAMETER top_k {usual.top_k or 0}\n"  # 0: every token
        f"PARAMETER top_p {usual.top_p:g}\n"
        f"PARAMETER min_p {usual.min_p:g}\n"
        f"PARAMETER repeat_penalty {usual.repetition_penalty:g}\n"
    )


def write_modelfile(gguf: Path, context: int, *, force: bool) -> Path | None:
    """Writes the Modelfile of a GGUF file; one that exists is replaced only with `force`.

    Returns its path, or None if there is none for this name or an existing one was kept.
    Raises: CheckpointError if it cannot be written.
    """
    path, content = modelfile_path(gguf), modelfile(gguf, context)
    if content is None or (path.exists() and not force):
        return None
    atomic_write(path, content.encode(errors="surrogateescape"))
    return path
