"""An export as a dataset repository on the Hugging Face hub.

The token is huggingface_hub's own: HF_TOKEN or what `hf auth login` stored. It is never read here, nor shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthgen.corpus.hub import imported_hub
from synthgen.errors import ConfigError, ServerError

KEPT_HERE = ["run.yaml"]
"""Has the paths and addresses of this machine."""


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub that has answered, and the repository to write there."""

    api: Any
    repo: str
    private: bool
    """Of a repository that is made now; one that is there stays as it is."""


def open_hub(repo: str, *, private: bool) -> Hub:
    """Ask the hub who we are, so that nothing is written for a push that can't succeed.

    Raises ConfigError without huggingface_hub, a good name or a token, ServerError when nothing answers.
    """
    hub = imported_hub(f"--push-to-hub {repo}")
    try:
        hub.utils.validate_repo_id(repo)
    except ValueError as error:
        raise ConfigError(f"--push-to-hub {repo}: {error}. Write it as OWNER/NAME") from error
    if hub.constants.HF_HUB_OFFLINE:
        raise ConfigError(f"--push-to-hub {repo}: HF_HUB_OFFLINE is set: unset it to push")
    if hub.get_token() is None:
        raise ConfigError(
            f"--push-to-hub {repo}: no token: set HF_TOKEN to one that may write, or run `hf auth login`"
        )
    api = hub.HfApi()
    _asked(hub, repo, "whoami", api.whoami)
    return Hub(api, repo, private)


def push(target: Hub, directory: Path, title: str) -> str:
    """Upload an export, all but its run.yaml, in one commit; return the address of the repository.

    What a repository that was there has in data/ and the export hasn't is deleted by that commit.
    Raises ServerError when the hub refuses or is gone; the export stays as it is.
    """
    hub = imported_hub(f"--push-to-hub {target.repo}")
    made = _asked(
        hub,
        target.repo,
        "create",
        target.api.create_repo,
        repo_id=target.repo,
        repo_type="dataset",
        private=target.private,
        exist_ok=True,
    )
    _asked(
        hub,
        target.repo,
        "upload",
        target.api.upload_folder,
        repo_id=target.repo,
        repo_type="dataset",
        folder_path=directory,
        commit_message=title,
        ignore_patterns=KEPT_HERE,
        delete_patterns=["data/*"],
    )
    return str(made)


def _asked(hub: Any, repo: str, what: str, call: Any, **arguments: Any) -> Any:
    try:
        return call(**arguments)
    except (OSError, hub.errors.HTTPError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ServerError(
            f"--push-to-hub {repo}: {what} failed at {hub.constants.ENDPOINT}: {reason}. See whether the hub "
            f"can be reached and the token may write there, then run the same command again"
        ) from error
