"""Where a verifier's files are: a local directory, or a repository of the hub, fetched file by file.

`verifier.model` is read here and nowhere else. huggingface_hub is imported when the first hub id is.
"""

from __future__ import annotations

import functools
import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthgen.corpus.console import console
from synthgen.corpus.hub import imported_hub
from synthgen.corpus.sections import VerifierConfig
from synthgen.corpus.verifier_config import CONFIG_FILE, VerifierShape, read_shape
from synthgen.errors import ArtifactError, ConfigError, ServerError, SynthgenError

HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")
REASON_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub; without a revision its main branch is meant."""

    id: str
    revision: str | None
    key: str = "verifier.model"
    """The setting or the argument that names it, for messages."""

    @property
    def revision_key(self) -> str:
        """What sets its revision."""
        return "verifier.revision" if self.key == "verifier.model" else "what stands behind the @"

    def __str__(self) -> str:
        return f"{self.id}@{self.revision}" if self.revision else self.id


def local_directory(verifier: VerifierConfig) -> Path | None:
    """`verifier.model` when it is a directory here: that reading goes before any other."""
    path = Path(verifier.model)
    return path if path.is_dir() else None


def hub_model(verifier: VerifierConfig) -> HubModel:
    """`verifier.model` as a hub id, where it is no directory.

    `models/Kimi-K2.5` may be either: while `models/` is a directory here, only a revision makes it an id.
    Raises ConfigError that says why it is neither.
    """
    absent = f"verifier.model {verifier.model}: no directory here ({Path(verifier.model).absolute()})"
    if not HUB_ID.fullmatch(verifier.model):
        raise ConfigError(
            f"{absent}, and no hub id, which is written org/name: set it to a directory with a checkpoint, "
            f"or to an id"
        )
    parent = Path(verifier.model).parent
    if verifier.revision is None and parent.is_dir():
        raise ConfigError(
            f"{absent}, and not taken as a hub id, since {parent}/ is a directory here: put the checkpoint "
            f"there, or set verifier.revision (main, a tag, a commit) if the hub's {verifier.model} is meant"
        )
    return HubModel(verifier.model, verifier.revision)


def config_directory(verifier: VerifierConfig) -> Path:
    """A directory with the verifier's config.json: the local one, or the hub's in its cache.

    Raises ConfigError, ArtifactError or ServerError as `hub_model` and `fetched` do.
    """
    return local_directory(verifier) or snapshot(hub_model(verifier))


def revision_of(verifier: VerifierConfig) -> str | None:
    """The commit that a hub's model is taken at, however it was named; of a directory, what the config says.

    Raises what `config_directory` raises.
    """
    return verifier.revision if local_directory(verifier) else config_directory(verifier).name


def shape_of(verifier: VerifierConfig) -> VerifierShape:
    """The verifier's sizes. Raises what `config_directory` and `read_shape` raise."""
    return read_shape(config_directory(verifier))


def shape_at_hand(verifier: VerifierConfig) -> VerifierShape | None:
    """The verifier's sizes when they can be had without asking the hub: what a plan goes by."""
    if directory := local_directory(verifier):
        return read_shape(directory)
    try:
        hub, model = package_for(verifier.model), hub_model(verifier)
    except ConfigError:
        return None
    cached = hub.try_to_load_from_cache(model.id, CONFIG_FILE, revision=model.revision)
    return read_shape(Path(cached).parent) if isinstance(cached, str) else None


@functools.cache
def snapshot(model: HubModel) -> Path:
    """The directory of huggingface_hub's cache that has the model's config.json; its name is the commit.

    Said once on stderr, since the id may have been meant as a path.
    """
    config = fetched(model, CONFIG_FILE)
    if config is None:
        raise ArtifactError(
            f"verifier.model {model}: the hub's repository has no {CONFIG_FILE}: is it a model in the form "
            f"of transformers?"
        )
    commit = config.parent.name
    console.print(
        f"verifier.model {model.id}: no directory here; taken from the hub at commit {commit}",
        soft_wrap=True,
    )
    return config.parent


def fetched(model: HubModel, name: str) -> Path | None:
    """One file of a model, through huggingface_hub's cache; None when the repository hasn't it.

    Offline (HF_HUB_OFFLINE=1), or while nothing answers, what is in the cache is taken.
    Raises ConfigError for a repository, revision or access that isn't there, ServerError without an answer.
    """
    hub = package_for(model.id, model.key)
    try:
        return Path(hub.hf_hub_download(model.id, name, revision=model.revision))
    except hub.errors.RemoteEntryNotFoundError:
        return None
    except (OSError, ValueError, hub.errors.HTTPError) as error:
        raise refused(model, name, error) from error


def refused(model: HubModel, name: str, error: Exception) -> SynthgenError:
    """What a user is told when `name` of a model can't be had."""
    errors = package_for(model.id, model.key).errors
    what = f"{model.key} {model}: no directory here ({Path(model.id).absolute()}), and as a hub id"
    if isinstance(error, errors.GatedRepoError):
        return ConfigError(f"{what} it is gated: accept its terms on its page on the hub and set HF_TOKEN")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ConfigError(
            f"{what} the hub has no such model, or it is private: mend the path or the id, or set HF_TOKEN"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ConfigError(f"{what} it has no revision {model.revision}: mend {model.revision_key}")
    if isinstance(error, errors.HFValidationError):
        return ConfigError(f"{what} it isn't valid: {in_one_line(error)}")
    if (
        isinstance(error, errors.OfflineModeIsEnabled)
        or importlib.import_module("huggingface_hub.constants").is_offline_mode()
    ):
        return ConfigError(
            f"{what} its {name} isn't in the cache: run once without HF_HUB_OFFLINE, or mend the path"
        )
    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else None
    return ServerError(
        f"{what} its {name} can't be had: {in_one_line(cause or error)}: see to the network (HF_ENDPOINT, "
        f"proxies) and run the same command again, or set {model.key} to a directory here"
    )


def in_one_line(error: BaseException) -> str:
    """What an error says, cut to a length that a message can carry."""
    words = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return words if len(words) <= REASON_CHARACTERS else words[:REASON_CHARACTERS] + " …"


def package_for(model: str, key: str = "verifier.model") -> Any:
    """huggingface_hub, which fetches a hub id. Raises ConfigError when it isn't installed."""
    return imported_hub(f"{key} {model} is no directory here, so it is a hub id")
