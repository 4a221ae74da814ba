"""Models from the Hugging Face hub, through its own client and cache: the files that are needed, whole and genuine.

It knows which files a model has, and nothing of what stands in them but an index's list of files.
"""

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
from minigpt.importers.huggingface import OTHER_TOKENIZERS
from minigpt.importers.sharded import files_named_in
from minigpt.storage.checkpoint import CONFIG, WEIGHTS

GPT2_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
_OWNER = "openai-community"
_INDEX = ".index.json"
# The forms that weights are kept in, the best first; one is downloaded.
_FORMS = (WEIGHTS, WEIGHTS + _INDEX, "pytorch_model.bin", "pytorch_model.bin" + _INDEX)
_TOKENIZER = "tokenizer.json"
_WITH_TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_INSTEAD_OF_TOKENIZER = ("vocab.json", "merges.txt")
_FILES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json"}  # endings of paths that are not there


class UnreachableError(CheckpointError):
    """A model that only the network keeps away."""


def is_hub_name(model: str) -> bool:
    """Whether a name that is no path's is plainly one of the hub's: OpenAI's four, and any with its owner."""
    return model in GPT2_NAMES or ("/" in model and _may_be_on_hub(model))


def _may_be_on_hub(model: str) -> bool:
    return re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", model, re.ASCII) is not None and (
        Path(model).suffix not in _FILES
    )


def repository_of(model: str) -> str:
    """The hub's name of a model: OpenAI's four by their own names, any other as it is.

    Raises: CheckpointError where it can be no name on the hub.
    """
    if model in GPT2_NAMES:
        return f"{_OWNER}/{model}"
    if not _may_be_on_hub(model):
        raise CheckpointError(
            f"model ({model!r}) must be {', '.join(GPT2_NAMES)}, the hub's name of a model (owner/name), or a path that"
            " is there"
        )
    return model


def is_openai(repository: str) -> bool:
    """Whether a repository is one of OpenAI's four."""
    return repository.removeprefix(f"{_OWNER}/") in GPT2_NAMES


def download(repository: str, revision: str | None = None, *, cached: bool = False) -> Path:
    """The place of a model's weights, or of their index, in the hub's cache, with all that belongs to them beside.

    `cached` takes what the cache has, and does not ask the hub, as HF_HUB_OFFLINE=1 does for all.
    Raises: CheckpointError where they cannot be had, or what lies in the cache is not what the hub has; a kind of it,
    UnreachableError, where the network is what is missing.
    """
    with _explained(repository, revision):
        if not cached:
            reach(repository, CONFIG, revision)
        config = _fetch(repository, CONFIG, revision, cached)
        if config is None:
            raise CheckpointError(f"{repository} has no {CONFIG}, so it is no model of transformers'")
        revision = config.parent.name  # the commit, so that no file is newer than another
        weights = _fetch_first(repository, _FORMS, revision, cached)
        if weights is None:
            raise CheckpointError(f"{repository} has none of {', '.join(_FORMS)}, so there are no weights to import")
        if weights.name.endswith(_INDEX):
            for name in files_named_in(weights):
                if _fetch(repository, name, revision, cached) is None:
                    raise CheckpointError(f"{repository} has no {name}, which its {weights.name} names")
        if not is_openai(repository):  # whose words are here
            _fetch_tokenizer(repository, revision, cached)
        return weights


def _fetch_tokenizer(repository: str, revision: str, cached: bool) -> None:
    """Puts the tokenizer beside the weights: the file that says all, else the pair that does, or what tells another."""
    found = _fetch_first(repository, (_TOKENIZER, *_INSTEAD_OF_TOKENIZER), revision, cached)
    if found is None:
        for name in OTHER_TOKENIZERS:
            _fetch(repository, name, revision, cached)
        return
    if found.name != _TOKENIZER:
        for name in _INSTEAD_OF_TOKENIZER:
            _fetch(repository, name, revision, cached)
    for name in _WITH_TOKENIZER:  # which say nothing of the words: a cache without them will do
        _fetch_first(repository, (name,), revision, cached, needed=False)


def _fetch_first(
    repository: str, names: Sequence[str], revision: str, cached: bool, *, needed: bool = True
) -> Path | None:
    """The first of these files that there is; offline, the first that the cache has. None where the model has none.

    Raises: as `_fetch`, where the cache has none of them, does not know that there is none, and one is needed.
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


def identity(repository: str, revision: str | None = None) -> str | None:
    """What tells a model's weights from all others, by the hub's own hash of them; None where the hub is not asked."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError

    if constants.HF_HUB_OFFLINE:
        return None
    with _explained(repository, revision):
        for form in _FORMS:
            with contextlib.suppress(EntryNotFoundError):
                metadata = get_hf_file_metadata(hf_hub_url(repository, form, revision=revision))
                return f"{repository}/{form}@{metadata.etag}"
    return None


def _fetch(repository: str, name: str, revision: str | None, cached: bool) -> Path | None:
    """The file of that name in the hub's cache, downloaded if it is not there yet; None where the model has none."""
    # slow to import, and of use here only
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        path = Path(hf_hub_download(repository, name, revision=revision, local_files_only=cached))
    except LocalEntryNotFoundError:  # a kind of EntryNotFoundError, but of the network's making
        if try_to_load_from_cache(repository, name, revision=revision) is _CACHED_NO_EXIST:  # the hub has said so
            return None
        raise
    except EntryNotFoundError:
        return None
    _check(path, repository)
    return path


def _check(path: Path, repository: str) -> None:
    """Makes sure that a file in the cache is what the hub has: the cache names each by the hub's hash of it."""
    blob = path.resolve()
    stated = blob.name
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", stated):  # no cache with links, or no hash
        return
    with blob.open("rb") as file:
        if len(stated) == 64:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        else:  # as git names it
            content = file.read()
            found = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    if found != stated:
        raise CheckpointError(
            f"{path.name} of {repository} is damaged: its hash is {found[:12]}… where the hub's is {stated[:12]}…;"
            f" remove {blob} and try again"
        )


def reach(repository: str, name: str, revision: str | None, *, repo_type: str | None = None) -> None:
    """Asks the hub for a file once, unless the cache has it: one that cannot be reached is known at once so, and not
    after the half a minute of attempts that the hub's client makes.

    Raises: the errors of the network.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    known = try_to_load_from_cache(repository, name, repo_type=repo_type, revision=revision)
    if not constants.HF_HUB_OFFLINE and not isinstance(known, str):
        with contextlib.suppress(HfHubHTTPError):  # a hub that answers is asked again, and explains itself then
            get_hf_file_metadata(hf_hub_url(repository, name, repo_type=repo_type, revision=revision))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps the hub's client from saying once for each attempt what its error says in the end."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def transport_errors() -> tuple[type[Exception], ...]:
    """What a download may raise: the operating system's errors, and those of whichever HTTP library the hub's client is
    built on, which are among its own errors' parents."""
    from huggingface_hub.errors import HfHubHTTPError

    return cast("tuple[type[Exception], ...]", (OSError, *HfHubHTTPError.__bases__))


def reason_of(error: BaseException) -> str:
    """What a failed download says went wrong, in a few words."""
    cause = error.__cause__ or error
    sentence = str(cause).partition("\n")[0].partition(". ")[0]
    return re.sub(r"^\[Errno -?\d+\] ", "", sentence) or type(cause).__name__


@contextlib.contextmanager
def _explained(repository: str, revision: str | None) -> Iterator[None]:
    """Turns what the hub, its client or the network says into one sentence."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        with quiet():
            yield
    except CheckpointError:  # an OSError too, and explained already
        raise
    except GatedRepoError as error:
        raise CheckpointError(
            f"{repository} is gated: ask for it at https://huggingface.co/{repository}, then name your token by"
            " `hf auth login` or HF_TOKEN"
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{repository} has no revision {revision!r}; give a branch, a tag or a commit") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        close = difflib.get_close_matches(repository, GPT2_NAMES, n=1)
        meant = f"did you mean {close[0]!r}?" if close else "a private one needs a token (`hf auth login` or HF_TOKEN)"
        raise CheckpointError(f"the hub has no model {repository!r}, nor is there such a path; {meant}") from error
    except transport_errors() as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            mend = "free some space, or move the hub's cache with HF_HOME"
        else:
            mend = "offline, give a local copy with --from PATH; a mirror is named by HF_ENDPOINT"
        raise UnreachableError(f"{repository} could not be downloaded ({reason_of(error)}); {mend}") from error
