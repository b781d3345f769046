"""One measurement from start to end, on servers that are started for it or that run already."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from eagle.accept.build import OfflineFigures, prompt_steps, report_of
from eagle.accept.heldout import heldout_documents
from eagle.accept.offline import Judge, offline_of
from eagle.accept.report import AcceptanceReport, Offline
from eagle.accept.same_tokens import reply_documents, samples_of
from eagle.accept.servers import BASE, DRAFTED, UNTRAINED, Server
from eagle.accept.steps import PromptSteps
from eagle.accept.traps import default_layers
from eagle.accept.visit import Measured, visit
from eagle.batches import Document
from synthgen.client.control import Control, api_key
from synthgen.client.launch import Serving, VllmProcess, capturing, drafting, plain, started, uncached
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import Bar, bar
from synthgen.corpus.journal import read_journal
from synthgen.corpus.records import SeedPrompt
from synthgen.corpus.verifier_files import shape_of
from synthgen.errors import ArtifactError, ConfigError, ServerError, first_of

NOTICE_S = 1.0
"""A server that has died is seen to be dead a moment after its connection breaks."""
REPLIES = "the draft on the states of the counted replies"
HELDOUT = "the draft on validation samples"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Servers that run already."""

    url: str
    """With a draft."""
    base_url: str | None
    """Without one."""


def measure(config: RunConfig, draft: Path | None = None) -> tuple[AcceptanceReport, list[PromptSteps]]:
    """Serve the verifier with a draft (the run's export, if none is given) and without, and measure both.

    Raises ArtifactError when there are no held-out prompts, ServerStartError with the server's own words when
    one doesn't start or dies, ServerError when one was restarted meanwhile.
    """
    draft = draft or config.export_path
    measured = _begun(config)
    measured.warnings += default_layers(draft, shape_of(config.verifier).num_layers)
    with bar("accept", _requests(config, measured)) as progress:
        for group in _groups(config, draft):
            with started(config, *group.values()) as processes:
                servers = _ours(config, group, processes)
                while_alive(visit(config, servers, measured, progress), servers.values())
        offline = _offline(config, draft, measured, progress)
    return report_of(config, measured, offline), prompt_steps(config, measured)


def measure_given(config: RunConfig, given: Given) -> tuple[AcceptanceReport, list[PromptSteps]]:
    """Measure servers that run already, and start none.

    Raises ServerMismatch when one isn't what it should be, ServerUnreachable when one is gone, ServerError
    when one was restarted meanwhile.
    """
    measured = _begun(config)
    urls = {BASE: given.base_url} if given.base_url else {}
    key = api_key(config.server.api_key_env)
    servers = {
        name: Server(name=name, control=Control(url, key), require_alive=_theirs)
        for name, url in (urls | {DRAFTED: given.url}).items()
    }
    requests = len(servers) * _compared(config, measured) + len(measured.prompts)
    with bar("accept", requests) as progress:
        while_alive(visit(config, servers, measured, progress), servers.values())
    said = ("the draft on hidden states: with --url nothing is known of the draft that is served",)
    return report_of(config, measured, OfflineFigures(not_measured=said)), prompt_steps(config, measured)


def _begun(config: RunConfig) -> Measured:
    heldout = list(read_journal(config.heldout_path, SeedPrompt))
    if not heldout:
        raise ArtifactError(
            f"{config.heldout_path} has no held-out prompts: run `synthgen generate CONFIG` first, with "
            f"prompts.heldout more than 0"
        )
    settings = config.accept
    return Measured(prompts=heldout[: settings.prompts], singles=heldout[: settings.single_prompts])


def _compared(config: RunConfig, measured: Measured) -> int:
    """Requests that one server gets while speed is compared."""
    return len(measured.singles) * config.accept.rounds * len(config.accept.concurrencies)


def _requests(config: RunConfig, measured: Measured) -> int:
    drafts = len(config.accept.num_draft_tokens) + config.accept.untrained + config.accept.offline_replies
    return 2 * _compared(config, measured) + drafts * len(measured.prompts)


def _groups(config: RunConfig, draft: Path) -> list[dict[str, Serving]]:
    """Servers to start, group by group; those with other numbers of draft tokens each alone."""
    first, *others = config.accept.num_draft_tokens
    main = {
        BASE: plain(config, name=BASE),
        DRAFTED: drafting(config, draft, port_offset=1, name=DRAFTED, num_draft_tokens=first),
    }
    if config.accept.untrained:
        main[UNTRAINED] = drafting(config, config.untrained_path, port_offset=2, name=UNTRAINED)
    more = {
        (name := f"{DRAFTED}-{tokens}"): drafting(
            config, draft, port_offset=1, name=name, num_draft_tokens=tokens
        )
        for tokens in others
    }
    groups = [main] if config.accept.servers_at_once else [{n: s} for n, s in main.items()]
    groups += [{name: serving} for name, serving in more.items()]
    return [{name: uncached(serving) for name, serving in group.items()} for group in groups]


def _ours(
    config: RunConfig, group: Mapping[str, Serving], processes: Sequence[VllmProcess]
) -> dict[str, Server]:
    key = api_key(config.server.api_key_env)
    return {
        name: Server(name=name, control=Control(one.base_url, key), require_alive=one.require_alive)
        for name, one in zip(group, processes, strict=True)
    }


def _theirs() -> None:
    """Nothing is known of a server that somebody else started."""


def while_alive(work: Coroutine[None, None, T], servers: Collection[Server]) -> T:
    """Run the requests; servers are started outside, where a Ctrl-C takes effect at once.

    When one of ours has died, what it said is raised in place of what its clients saw.
    """
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as errors:
        error = first_of(errors)
        _require_alive(error, servers)
        raise error from errors
    except ServerError as error:
        _require_alive(error, servers)
        raise


def _require_alive(error: BaseException, servers: Collection[Server]) -> None:
    if isinstance(error, ServerError):
        time.sleep(NOTICE_S)
        for server in servers:
            server.require_alive()


def _offline(config: RunConfig, draft: Path, measured: Measured, progress: Bar) -> OfflineFigures:
    """The draft on the states of the counted replies and of the validation samples.

    What can't be had of them is left out: the live figures are worth keeping.
    """
    said: list[str] = []
    sources: dict[str, list[tuple[Document, str]]] = {}
    if config.accept.offline_replies:
        with _left_out(REPLIES, said):
            sources[REPLIES] = _replies(config, measured, progress)
    else:
        said.append(f"{REPLIES}: accept.offline_replies is false")
    with _left_out(HELDOUT, said):
        sources[HELDOUT] = heldout_documents(config)
    found: dict[str, Offline | None] = {}
    with _left_out("the draft on hidden states", said):
        judge = Judge.of(config, draft, max(config.accept.num_draft_tokens))
        for name, documents in sources.items():
            judged = [judge.judge(document, domain) for document, domain in documents]
            found[name] = offline_of(judged, config.accept.num_draft_tokens[0], config.seed)
    return OfflineFigures(replies=found.get(REPLIES), heldout=found.get(HELDOUT), not_measured=tuple(said))


@contextlib.contextmanager
def _left_out(what: str, said: list[str]) -> Iterator[None]:
    """Put down why something isn't measured, and go on."""
    try:
        yield
    except (ArtifactError, ConfigError, ServerError) as error:
        said.append(f"{what}: {error}")


def _replies(config: RunConfig, measured: Measured, progress: Bar) -> list[tuple[Document, str]]:
    """The counted replies with their states and domains."""
    assert measured.markers is not None
    samples = samples_of(config, measured.counted[DRAFTED], measured.markers)
    with started(config, serving := capturing(config)) as processes:
        (server,) = _ours(config, {serving.name: serving}, processes).values()
        documents = while_alive(reply_documents(config, server.url, samples, progress), [server])
    with contextlib.suppress(OSError):
        config.spool_path.rmdir()
    domains = {sample.id: sample.domain for sample in samples}
    return [(document, domains[document.sample_id]) for document in documents]
