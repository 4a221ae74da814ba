"""Downloads models from the Hugging Face hub with its own client and cache, and verifies the files' hashes."""

import contextlib
import difflib
import errno
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from minigpt.errors import CheckpointError
from minigpt.pretrained.huggingface import SHARDS, weight_readers
from minigpt.storage.names import ADAPTER_CONFIG, CONFIG, GENERATION_CONFIG
from minigpt.tokenizer.files import has_tokenizer, tokenizer_files

GPT2_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
_OWNER = "openai-community"
_FILES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json"}  # suffixes of paths, not of names on the hub


class UnreachableError(CheckpointError):
    """A model could not be downloaded because of the network."""


def is_hub_name(model: str) -> bool:
    """Whether a name is unmistakably one on the hub: one of OpenAI's four, or owner/name."""
    return model in GPT2_NAMES or ("/" in model and _may_be_on_hub(model))


def _may_be_on_hub(model: str) -> bool:
    return re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", model, re.ASCII) is not None and (
        Path(model).suffix not in _FILES
    )


def repository_of(model: str) -> str:
    """The repository of a model: OpenAI's four are found by their short names.

    Raises: CheckpointError if it cannot be a name on the hub.
    """
    if model in GPT2_NAMES:
        return f"{_OWNER}/{model}"
    if not _may_be_on_hub(model):
        raise CheckpointError(
            f"model ({model!r}) must be {', '.join(GPT2_NAMES)}, a model's name on the hub (owner/name), or an existing"
            " path"
        )
    return model


def is_openai(repository: str) -> bool:
    """Whether a repository is one of OpenAI's four."""
    return repository.removeprefix(f"{_OWNER}/") in GPT2_NAMES


def commit_on_hub(repository: str, revision: str | None) -> str | None:
    """The commit that a revision, by default the newest, has on the hub; None with HF_HUB_OFFLINE=1.

    Raises: as `download`.
    """
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        return None
    with _wrap_hub_errors(repository, revision):
        return HfApi().model_info(repository, revision=revision).sha


def download(repository: str, revision: str | None = None, *, cached: bool = False) -> Path:
    """Downloads what opening a model needs; returns the path of its weights, or of their index, in the hub's cache.

    With `cached`, the cache is used without asking the hub, as with HF_HUB_OFFLINE=1.
    Raises: CheckpointError if a file does not exist or its hash is wrong; its subclass UnreachableError if the network
    fails, or the cache lacks a file.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    # minigpt has GPT-2's tokenizer
    needed = [CONFIG, *(() if is_openai(repository) else (*tokenizer_files(), GENERATION_CONFIG))]
    with _wrap_hub_errors(repository, revision):
        if cached or constants.HF_HUB_OFFLINE:
            found = snapshot_download(repository, revision=revision, allow_patterns=needed, local_files_only=True)
            folder = Path(found)
            if not is_openai(repository) and not has_tokenizer(folder):  # GPT-2's could be taken for the model's
                raise LocalEntryNotFoundError("the hub's cache has no tokenizer of it")
            weights, parts = _choose(repository, [path.name for path in folder.iterdir()])
        else:
            info = HfApi().model_info(repository, revision=revision)
            weights, parts = _choose(repository, [file.rfilename for file in info.siblings or ()])
            folder = Path(snapshot_download(repository, revision=revision, allow_patterns=[*needed, *parts]))
        for path in folder.iterdir():
            if path.name in (*needed, *parts):
                _verify_hash(path, repository)
        return folder / weights


def _choose(repository: str, names: Sequence[str]) -> tuple[str, list[str]]:
    """The file that the weights of a repository are opened by, of those with these names, and all files of them."""
    forms = [name for reader in weight_readers() for name in reader.hub_files]  # the preferred ones first
    weights = next((form for form in forms if form in names), None)
    if CONFIG not in names or weights is None:
        if ADAPTER_CONFIG in names:
            raise CheckpointError(
                f"{repository} is a LoRA adapter; download it with `hf download {repository} --local-dir FOLDER`, and "
                "make a whole model of it with `minigpt merge FOLDER`"
            )
        if CONFIG not in names:
            raise CheckpointError(f"{repository} has no {CONFIG}, so it is not a model of transformers")
        raise CheckpointError(f"{repository} has none of {', '.join(forms)}, so there are no weights to import")
    if weights.endswith(SHARDS):
        suffix = Path(weights.removesuffix(SHARDS)).suffix
        return weights, [weights, *(name for name in names if name.endswith(suffix) and "/" not in name)]
    return weights, [weights]


def _verify_hash(path: Path, repository: str) -> None:
    """Checks a file in the cache against the hub's hash of it, which is the name of the blob that it links to.

    The hub's client compares only sizes.
    """
    from huggingface_hub.utils.sha import git_hash, sha_fileobj

    blob = path.resolve()
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.name):  # a cache without links
        return
    with blob.open("rb") as file:
        found = sha_fileobj(file).hex() if len(blob.name) == 64 else git_hash(file.read())
    if found != blob.name:
        raise CheckpointError(
            f"{path.name} of {repository} is damaged: its hash is {found[:12]}…, expected {blob.name[:12]}…;"
            f" remove {blob} and try again"
        )


@contextlib.contextmanager
def quiet_hub_logging() -> Iterator[None]:
    """Silences the warnings of the hub's client, one for each attempt; the final error says the same."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def transport_errors() -> tuple[type[Exception], ...]:
    """The errors that a failed download may raise: OSError and those of the HTTP library of the hub's client.

    Its versions use different libraries, whose errors are base classes of HfHubHTTPError.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return cast("tuple[type[Exception], ...]", (OSError, *HfHubHTTPError.__bases__))


def failure_reason(error: BaseException) -> str:
    """The reason for a failed download, in a few words."""
    cause = error.__cause__ or error
    sentence = str(cause).partition("\n")[0].partition(". ")[0]
    return re.sub(r"^\[Errno -?\d+\] ", "", sentence) or type(cause).__name__


@contextlib.contextmanager
def _wrap_hub_errors(repository: str, revision: str | None) -> Iterator[None]:
    """Turns errors of the hub, its client or the network into a CheckpointError that says what to do."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        with quiet_hub_logging():
            yield
    except CheckpointError:  # is an OSError too, and already says what to do
        raise
    except GatedRepoError as error:
        raise CheckpointError(
            f"{repository} is gated: request access at https://huggingface.co/{repository}, then set your token with"
            " `hf auth login` or HF_TOKEN"
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{repository} has no revision {revision!r}; give a branch, a tag or a commit") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        close = difflib.get_close_matches(repository, GPT2_NAMES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "a private one needs a token (`hf auth login` or HF_TOKEN)"
        raise CheckpointError(f"the hub has no model {repository!r} and there is no such path; {hint}") from error
    except transport_errors() as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            fix = "free some space, or move the hub's cache with HF_HOME"
        else:
            fix = "offline, give a local copy with --from PATH; set a mirror with HF_ENDPOINT"
        raise UnreachableError(f"{repository} could not be downloaded ({failure_reason(error)}); {fix}") from error
