"""Writes the Modelfile that Ollama creates a model from, next to a GGUF file.

Source: https://github.com/ollama/ollama/blob/main/docs/modelfile.md
"""

from pathlib import Path

from minigpt.chat_logs.transcript import CHAT_TEMPLATE, ROLES
from minigpt.config import SamplingConfig
from minigpt.shell import join
from minigpt.storage.files import atomic_write

_SUFFIX = ".Modelfile"
# What `minigpt.chat_logs.transcript` does, in Go's text/template, except that it cannot put a space before the
# further lines of a message. A generated reply begins with the space after "Assistant:", and ends with a newline if the
# model wrote an end-of-text after it.
_CONVERSATION = """
{{- range .Messages -}}
{{- if eq .Role "system" }}System{{ else if eq .Role "user" }}User{{ else }}Assistant{{ end -}}
:{{ if not (and .Content (eq (slice .Content 0 1) " ")) }} {{ end }}
{{- with .Content }}{{ $last := len (slice . 1) -}}
{{- if eq (slice . $last) "\\n" }}{{ slice . 0 $last }}{{ else }}{{ . }}{{ end }}{{ end }}
{{ end -}}
Assistant:""".strip()


def modelfile_path(gguf: Path) -> Path:
    """The Modelfile of a GGUF file: in the same folder, with the same name."""
    return gguf.with_suffix(_SUFFIX)


def modelfile(gguf: Path, context: int, chat_template: str | None) -> str | None:
    """The content of the Modelfile for a GGUF file of a model with this context length, in tokens.

    Without a chat template, the prompt is passed on unchanged, because the model continues texts. With minigpt's, a
    conversation becomes a transcript. For any other, Ollama chooses a template itself, from those that it knows.
    Sampling is minigpt's: Ollama's defaults have a repetition penalty and a top-k of 40. Of the context, one half is
    left for the prompt, because llama.cpp does not continue past the last position of GPT-2.
    None for a file name that a Modelfile cannot hold: one with a control character.
    """
    if not gguf.name.isprintable():
        return None
    usual = SamplingConfig()
    return (
        f"# {join('ollama', 'create', 'NAME', '-f', modelfile_path(gguf).name)}\n"
        f"# The prompt and the new text together must fit into {context} tokens (num_ctx).\n"
        f"FROM ./{gguf.name}\n"
        f"{_prompt_template(chat_template)}"
        f"PARAMETER num_ctx {context}\n"
        f"PARAMETER num_predict {max(1, min(usual.max_new_tokens, context // 2))}\n"
        f"PARAMETER temperature {usual.temperature:g}\n"
        f"PARAMETER top_k {usual.top_k or 0}\n"  # 0: every token
        f"PARAMETER top_p {usual.top_p:g}\n"
        f"PARAMETER min_p {usual.min_p:g}\n"
        "PARAMETER repeat_penalty 1\n"
    )


def _prompt_template(chat_template: str | None) -> str:
    """The instructions that make a prompt out of a text or a conversation, and end a turn of it."""
    if chat_template is None:
        return 'TEMPLATE """{{ .Prompt }}"""\n'
    if chat_template != CHAT_TEMPLATE:
        return ""
    # A turn ends where a line begins with a speaker's name. The newline is part of the quoted value.
    stops = [f'PARAMETER stop "\n{role.capitalize()}:"\n' for role in ROLES]
    return "".join([f'TEMPLATE """{_CONVERSATION}"""\n', *stops])


def write_modelfile(gguf: Path, context: int, chat_template: str | None, *, force: bool) -> Path | None:
    """Writes the Modelfile of a GGUF file; one that exists is replaced only with `force`.

    Returns its path, or None if there is none for this name or an existing one was kept.
    Raises: CheckpointError if it cannot be written.
    """
    path, content = modelfile_path(gguf), modelfile(gguf, context, chat_template)
    if content is None or (path.exists() and not force):
        return None
    atomic_write(path, content.encode(errors="surrogateescape"))
    return path
