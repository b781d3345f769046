"""States while they are needed: a capturing server is asked ahead of who takes them, within a bound of bytes.

A sample holds room from the moment it is asked for until whoever took its states releases it. A server
that goes away is waited for; a sample whose states can't be had is a failure, in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
import threading
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from eagle.collect import StatesFailure
from eagle.patience import Patience
from eagle.states import Rows, SampleStates
from synthgen.client.api import ApiClient
from synthgen.corpus.samples import Sample
from synthgen.errors import ArtifactError, RequestFailed, SynthgenError

T = TypeVar("T")
TRIES = 2
"""Of a sample whose file is missing or damaged: one that was lost with a server isn't the sample's fault."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A sample to ask for, the bytes that it may take, and to how many tokens its states are cut.

    known: why there are none, where that is known: it isn't asked for, and holds room as the others do.
    """

    sample: Sample
    num_bytes: int
    num_tokens: int
    known: StatesFailure | None = None


class OnDemand:
    """Asks for samples in order on a thread of its own; its methods may be called from any other.

    max_bytes: room for all samples that are asked for and not yet released. max_asked: samples asked for
    at once; `client` has half of them in flight, the others wait for their files or their turn.
    """

    def __init__(self, source: Patience, client: ApiClient, *, max_bytes: int, max_asked: int) -> None:
        self._source = source
        self._client = client
        self._max_bytes = max_bytes
        self._max_asked = max_asked
        self._loop = asyncio.new_event_loop()
        # One sample at a time is on the disk and in memory at once.
        self._loop.set_default_executor(ThreadPoolExecutor(1, thread_name_prefix="states-reader"))
        self._held_bytes = 0
        self._ended_by: SynthgenError | None = None
        self._answers: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Ask in the block. At its end nothing is in flight."""
        thread = threading.Thread(target=self._loop.run_forever, name="states-on-demand", daemon=True)
        thread.start()
        try:
            self._run(self._open())
            yield
        finally:
            self._run(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    def ask(self, wanted: Iterable[Wanted]) -> None:
        """Ask for these, in order, as far as there is room; whoever waits for earlier ones is woken."""
        if not self._loop.is_closed():
            self._run(self._restart(iter(wanted)))

    def take(self, count: int) -> list[SampleStates | StatesFailure]:
        """The states of the next samples, or why there are none.

        Raises what Patience does for all samples, CancelledError when no more are wanted.
        """
        answers = self._answers  # who asks for others meanwhile leaves these to end
        return [self._next(answers) for _ in range(count)]

    def _next(self, answers: queue.SimpleQueue[Future[Any]]) -> SampleStates | StatesFailure:
        answer = answers.get()
        try:
            found: SampleStates | StatesFailure | None = answer.result()
            if found is None:  # all that was asked for is taken
                raise CancelledError
        except CancelledError:
            answers.put(answer)  # the next one doesn't wait either
            if self._ended_by is not None:
                raise self._ended_by from None
            raise
        return found

    def release(self, num_bytes: int) -> None:
        """Give back the room of samples that were taken."""
        self._loop.call_soon_threadsafe(self._give_back, num_bytes)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # ---------------------------------------------------------------- on the loop

    async def _open(self) -> None:
        self._freed = asyncio.Event()
        await self._client.__aenter__()

    async def _close(self) -> None:
        await self._cancel()
        await self._client.__aexit__(None, None, None)
        await self._loop.shutdown_default_executor()

    async def _cancel(self) -> None:
        """End all that was asked for."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:  # some may only now begin
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _restart(self, wanted: Iterator[Wanted]) -> None:
        await self._cancel()
        self._ended_by = None
        self._held_bytes = 0
        self._asking = asyncio.Semaphore(self._max_asked)
        answers: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        self._answers = answers
        asked = asyncio.run_coroutine_threadsafe(self._ask_all(wanted, answers), self._loop)
        asked.add_done_callback(answers.put)  # so that nobody waits for what will not come

    async def _ask_all(self, wanted: Iterator[Wanted], answers: queue.SimpleQueue[Future[Any]]) -> None:
        for one in wanted:
            await self._room(one.num_bytes)
            await self._asking.acquire()
            answers.put(asyncio.run_coroutine_threadsafe(self._answer(one), self._loop))

    async def _room(self, num_bytes: int) -> None:
        while self._held_bytes and self._held_bytes + num_bytes > self._max_bytes:
            self._freed.clear()
            await self._freed.wait()
        self._held_bytes += num_bytes

    def _give_back(self, num_bytes: int) -> None:
        self._held_bytes -= num_bytes
        self._freed.set()

    async def _answer(self, one: Wanted) -> SampleStates | StatesFailure:
        try:
            return await self._states_of(one)
        except SynthgenError as error:  # for all samples: who waits for an earlier one's file waits in vain
            self._ended_by = self._ended_by or error
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            raise
        finally:
            self._asking.release()

    async def _states_of(self, one: Wanted) -> SampleStates | StatesFailure:
        if one.known is not None:
            return one.known
        tries = 0
        while True:
            try:
                return _compact(await self._source.states_of(one.sample), one.num_tokens)
            except RequestFailed as error:
                return StatesFailure(sample_id=one.sample.id, message=str(error))
            except ArtifactError as error:
                tries += 1
                if tries == TRIES:
                    return StatesFailure(sample_id=one.sample.id, message=str(error))


def _compact(states: SampleStates, num_tokens: int) -> SampleStates:
    """States of the first tokens, without the memory of all that came along with them."""
    cut = states.cut(num_tokens)
    return dataclasses.replace(cut, aux=Rows(cut.aux.values.contiguous(), cut.aux.scales))
