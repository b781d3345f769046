"""Servers of our own: what is started, and what is said when one dies."""

from __future__ import annotations

import asyncio

import pytest

from eagle.accept.measure import while_alive
from eagle.accept.servers import Server
from synthgen.client.control import Control
from synthgen.errors import ServerError, ServerStartError, ServerUnreachable


def server(*, dead: bool) -> Server:
    """One of ours, alive or not."""

    def require_alive() -> None:
        if dead:
            raise ServerStartError("vLLM (drafted) ended with code -9; it said: out of memory")

    return Server(name="drafted", control=Control("http://127.0.0.1:9/v1"), require_alive=require_alive)


async def lose_it() -> None:
    """What a client sees of a server that dies, from inside a group of tasks."""

    async def one() -> None:
        raise ServerUnreachable("http://127.0.0.1:9/v1 is gone")

    async with asyncio.TaskGroup() as group:
        group.create_task(one())


def test_a_dead_servers_own_words_are_what_is_raised() -> None:
    """Not what its clients saw of its death."""
    with pytest.raises(ServerStartError, match="ended with code -9; it said: out of memory"):
        while_alive(lose_it(), [server(dead=True)])


def test_an_error_of_a_living_server_is_its_own() -> None:
    """Out of the group of tasks, and in the error tree."""
    with pytest.raises(ServerUnreachable, match="is gone"):
        while_alive(lose_it(), [server(dead=False)])


def test_a_bug_is_not_waited_on() -> None:
    """Only a server's errors ask who is alive."""

    async def bug() -> None:
        raise KeyError("ours")

    with pytest.raises(KeyError):
        while_alive(bug(), [server(dead=True)])
    assert not issubclass(KeyError, ServerError)
