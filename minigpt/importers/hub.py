"""Downloads models from the Hugging Face hub with its own client and cache, and verifies the files' hashes."""

import contextlib
import difflib
import errno
import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from minigpt.errors import CheckpointError
from minigpt.importers.sharded import files_named_in
from minigpt.storage.names import ADAPTER_CONFIG, CONFIG, WEIGHTS
from minigpt.tokenizer.library_files import CONVERTED

GPT2_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
_OWNER = "openai-community"
_INDEX = ".index.json"
# The forms that weights are stored in, the preferred ones first; one of them is downloaded.
_FORMS = (WEIGHTS, WEIGHTS + _INDEX, "pytorch_model.bin", "pytorch_model.bin" + _INDEX)
_TOKENIZER = "tokenizer.json"
_WITH_TOKENIZER = (
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
)
_INSTEAD_OF_TOKENIZER = ("vocab.json", "merges.txt")
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


def download(repository: str, revision: str | None = None, *, cached: bool = False) -> Path:
    """Downloads a model; returns the path of its weights, or of their index, in the hub's cache.

    With `cached`, the cache is used without asking the hub, as with HF_HUB_OFFLINE=1.
    Raises: CheckpointError if a file does not exist or its hash is wrong; its subclass UnreachableError if the network
    fails.
    """
    with _wrap_hub_errors(repository, revision):
        if not cached:
            check_reachable(repository, CONFIG, revision)
        config = _fetch(repository, CONFIG, revision, cached)
        if config is None:
            _refuse_adapter(repository, revision, cached)
            raise CheckpointError(f"{repository} has no {CONFIG}, so it is not a model of transformers")
        revision = config.parent.name  # the commit, so that all files are of one version
        weights = _fetch_first(repository, _FORMS, revision, cached)
        if weights is None:
            _refuse_adapter(repository, revision, cached)
            raise CheckpointError(f"{repository} has none of {', '.join(_FORMS)}, so there are no weights to import")
        if weights.name.endswith(_INDEX):
            for name in files_named_in(weights):
                if _fetch(repository, name, revision, cached) is None:
                    raise CheckpointError(f"{repository} has no {name}, which its {weights.name} names")
        if not is_openai(repository):  # minigpt has GPT-2's tokenizer
            _fetch_tokenizer(repository, revision, cached)
        return weights


def _refuse_adapter(repository: str, revision: str | None, cached: bool) -> None:
    """Raises CheckpointError if a repository without a whole model has a LoRA adapter."""
    if _fetch_first(repository, (ADAPTER_CONFIG,), revision, cached, needed=False):
        raise CheckpointError(
            f"{repository} is a LoRA adapter; download it with `hf download {repository} --local-dir FOLDER`, and make "
            "a whole model of it with `minigpt merge FOLDER`"
        )


def _fetch_tokenizer(repository: str, revision: str, cached: bool) -> None:
    """Downloads tokenizer.json, else vocab.json and merges.txt, else a WordPiece or SentencePiece file."""
    found = _fetch_first(repository, (_TOKENIZER, *_INSTEAD_OF_TOKENIZER), revision, cached)
    if found is None:
        for name in CONVERTED:
            _fetch(repository, name, revision, cached)
    elif found.name != _TOKENIZER:
        for name in _INSTEAD_OF_TOKENIZER:
            _fetch(repository, name, revision, cached)
    for name in _WITH_TOKENIZER:  # optional, so a cache without them suffices
        _fetch_first(repository, (name,), revision, cached, needed=False)


def _fetch_first(
    repository: str, names: Sequence[str], revision: str | None, cached: bool, *, needed: bool = True
) -> Path | None:
    """The first of these files that exists, or, offline, that the cache has; None if the model has none of them.

    Raises: as `_fetch`, if one is needed and the cache does not record whether the model has it.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError

    unknown = None
    for name in names:
        try:
            if path := _fetch(repository, name, revision, cached):
                return path
        except LocalEntryNotFoundError as error:
            if not (cached or constants.HF_HUB_OFFLINE):
                raise
            unknown = error
    if unknown and needed:
        raise unknown
    return None


def weights_identity(repository: str, revision: str | None = None) -> str | None:
    """The file and the hub's hash of a model's weights; None if they are in several files, or with HF_HUB_OFFLINE=1.

    The hash of an index of several files does not change with the weights in them.
    Raises: as `download`.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError

    if constants.HF_HUB_OFFLINE:
        return None
    with _wrap_hub_errors(repository, revision):
        for form in _FORMS:
            with contextlib.suppress(EntryNotFoundError):
                metadata = get_hf_file_metadata(hf_hub_url(repository, form, revision=revision))
                return None if form.endswith(_INDEX) else f"{repository}/{form}@{metadata.etag}"
    return None


def _fetch(repository: str, name: str, revision: str | None, cached: bool) -> Path | None:
    """A file in the hub's cache, downloaded if necessary; None if the model does not have it."""
    # slow to import, and needed only here
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        path = Path(hf_hub_download(repository, name, revision=revision, local_files_only=cached))
    except LocalEntryNotFoundError:  # a subclass of EntryNotFoundError, but raised when the network fails
        if try_to_load_from_cache(repository, name, revision=revision) is _CACHED_NO_EXIST:  # an earlier answer
            return None
        raise
    except EntryNotFoundError:
        return None
    _verify_hash(path, repository)
    return path


def _verify_hash(path: Path, repository: str) -> None:
    """Checks a file in the cache against the hub's hash of it, which is the name of the blob that it links to.

    Raises: CheckpointError if the hashes differ.
    """
    blob = path.resolve()
    expected = blob.name
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", expected):  # a cache without links
        return
    with blob.open("rb") as file:
        if len(expected) == 64:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        else:  # a git object id
            content = file.read()
            found = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    if found != expected:
        raise CheckpointError(
            f"{path.name} of {repository} is damaged: its hash is {found[:12]}…, expected {expected[:12]}…;"
            f" remove {blob} and try again"
        )


def check_reachable(repository: str, name: str, revision: str | None, *, repo_type: str | None = None) -> None:
    """Asks the hub for a file once, unless the cache has it, so that an unreachable hub is noticed at once.

    The hub's client would retry for half a minute.
    Raises: the network's errors, `transport_errors`.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    known = try_to_load_from_cache(repository, name, repo_type=repo_type, revision=revision)
    if not constants.HF_HUB_OFFLINE and not isinstance(known, str):
        with contextlib.suppress(HfHubHTTPError):  # the hub answers; the download will report its error
            get_hf_file_metadata(hf_hub_url(repository, name, repo_type=repo_type, revision=revision))


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
