"""The one error tree of both packages.

    SynthgenError
    ├── ConfigError            a key of the YAML, a --set or a flag is wrong
    ├── InputError             a prompts file has a broken line
    ├── ArtifactError          something written earlier is damaged, incomplete or does not fit
    ├── DiskError              the disk is full, or will be before the stage ends
    ├── ServerError            the inference server
    │   ├── ServerUnreachable  nothing answers there
    │   ├── ServerMismatch     it answers, but is not what this run needs
    │   ├── ServerStartError   the vLLM we started died or never became healthy
    │   └── RequestFailed      one request was refused or failed after its retries
    └── TrainingError          the loss is no longer a number

Every message says what is wrong, where, with which values, and what to do. Command-line entry
points print it without a traceback and exit with `exit_code`; anything outside this tree is a bug
of ours and keeps its traceback.
"""

from __future__ import annotations


class SynthgenError(Exception):
    """The base of everything a user can mend."""

    exit_code = 2


class ConfigError(SynthgenError):
    """A key of the run's YAML, a `--set` or a flag is wrong."""


class InputError(SynthgenError):
    """A prompts file can't be read as it is."""


class ArtifactError(SynthgenError):
    """A file or directory written earlier is damaged, incomplete or does not fit this run."""


class DiskError(SynthgenError):
    """The disk is full, or would be before the stage ends."""


class ServerError(SynthgenError):
    """The inference server is at fault, or is not there."""


class ServerUnreachable(ServerError):
    """Nothing answers at the server's address."""


class ServerMismatch(ServerError):
    """The server answers, but serves something else than this run needs."""


class ServerStartError(ServerError):
    """The vLLM we started died or never became healthy."""


class RequestFailed(ServerError):
    """One request was refused, or failed after all its retries."""

    def __init__(self, message: str, *, kind: str, attempts: int, status: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.attempts = attempts
        self.status = status
        """The HTTP status of the last answer; None when none came, or a reply that can't be read."""
        self.reply: str | None = None
        """What came, when it is no trace: it was paid for."""


class TrainingError(SynthgenError):
    """Training can't go on: the loss is no longer a finite number."""


def first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error inside nested groups: the one that ended a group of tasks."""
    first = errors.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first
