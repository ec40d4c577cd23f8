"""server.api.transport.exchange: one name for a request, from the header to the timeline."""

from __future__ import annotations

import asyncio

import pytest

from server.api.transport.chance import Chance
from server.api.transport.exchange import (
    CURRENT,
    Exchange,
    chance,
    names_of,
    new_call_id,
    request_id,
)


@pytest.mark.parametrize("given", ["a", "a" * 128, "x.y:z@w=v+u-t_s"])
def test_a_plain_id_is_kept(given):
    """Letters, digits and the signs that stand in ids and paths pass."""
    assert request_id(given) == given


@pytest.mark.parametrize("given", [None, "", "a" * 129, "a b", "a/b", "a\n", "ä", '"'])
def test_any_other_is_replaced(given):
    """What could break a path or a line of a log never gets there."""
    made = request_id(given)
    assert made != given
    assert request_id(made) == made
    assert request_id(given) != made


@pytest.mark.parametrize("given", ["mine", "mine-with-hyphens-7", "0"])
def test_every_name_leads_to_the_request(given):
    """The engine's id is known by itself, by its call and by what the client said."""
    token = CURRENT.set(Exchange(given))
    try:
        one, other = new_call_id("cmpl"), new_call_id("cmpl")
    finally:
        CURRENT.reset(token)
    assert one != other
    assert names_of(f"{one}-12") == (f"{one}-12", one, given)


def test_a_call_outside_an_exchange_has_an_id_too():
    """The command line makes calls without HTTP."""
    assert new_call_id("cmpl") != new_call_id("cmpl")


def test_the_exchange_is_known_in_threads_and_tasks():
    """Tokenising happens in a thread, and each event is awaited in a task."""

    async def exchange(name: str) -> None:
        CURRENT.set(Exchange(name))
        await asyncio.sleep(0)
        assert f"-{name}-" in await asyncio.to_thread(new_call_id, "cmpl")

        async def inner() -> str:
            return new_call_id("cmpl")

        assert f"-{name}-" in await asyncio.create_task(inner())

    async def run() -> None:
        await asyncio.gather(*(exchange(name) for name in "abc"))

    asyncio.run(run())


def test_the_same_chance_makes_the_same_ids():
    """Whoever knows what an exchange drew names its call, and what follows, the same."""

    def drawn() -> list[str]:
        token = CURRENT.set(Exchange("mine", chance=Chance(b"secret", 1)))
        try:
            return [new_call_id("cmpl"), chance().token(5), str(chance().bits(53))]
        finally:
            CURRENT.reset(token)

    assert drawn() == drawn()
    assert len(set(drawn())) == 3
