"""Connections carry one request after the other, and say when bytes arrived and what went wrong."""

import asyncio

import pytest
from virtual_time import Script, VirtualServer, run_virtually

from server.tools.loadtest.http_client import HttpClient
from server.tools.loadtest.http_connection import ExchangeError

OK = b"HTTP/1.1 200 OK\r\n"


class Told:
    """All that a request was told of, in order."""

    def __init__(self) -> None:
        self.events = []

    def on_sent(self, now: float) -> None:
        self.events.append(("sent", now))

    def on_status(self, status: int) -> None:
        self.events.append(("status", status))

    def on_data(self, data: bytes, now: float) -> None:
        self.events.append((data, now))

    @property
    def body(self) -> bytes:
        return b"".join(what for what, _ in self.events if isinstance(what, bytes))


def post(*wire, times=1, timeout=None):
    """Send requests one after the other, each answered by the same bytes, each after a delay."""
    server = VirtualServer(lambda _: Script(wire, framed=False))
    told = [Told() for _ in range(times)]

    async def work():
        async with HttpClient("http://test", timeout=timeout) as http:
            for answer in told:
                await http.post("/x", b"{}", answer)

    run_virtually(work(), server)
    return told, server


def test_bytes_are_told_as_they_arrive():
    """Sending, the status and each part of the body are told at their times."""
    wire = OK + b"Content-Length: 5\r\n\r\nab"
    (told,), _ = post((0.5, wire), (0.25, b"cde"))
    assert told.events == [("sent", 0.0), ("status", 200), (b"ab", 0.5), (b"cde", 0.75)]


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        (OK + b"Content-Length: 2\r\n\r\nok", b"ok"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n", b"ok"),
        (b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nok", b"ok"),
        (OK + b"Content-Length: 0\r\n\r\n", b""),
    ],
)
def test_kept_connections_are_used_again(wire, body):
    """However an answer is framed, the next request needs no new connection."""
    told, server = post(*[(0.1, wire[at : at + 1]) for at in range(len(wire))], times=3)
    assert [answer.body for answer in told] == [body] * 3
    assert {answer.events[1] for answer in told} == {("status", 200)}
    assert len(server.lines) == 1


@pytest.mark.parametrize(
    "wire",
    [
        [(0.1, OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nok")],
        [(0.1, b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok")],
        [(0.1, OK + b"\r\nok"), (0.1, None)],
        [(0.1, OK + b"Content-Length: 2\r\n\r\nok"), (0.0, None)],
    ],
)
def test_closed_connections_are_not_used_again(wire):
    """After an answer that ends its connection the next request gets another."""
    told, server = post(*wire, times=2)
    assert [answer.body for answer in told] == [b"ok"] * 2
    assert len(server.lines) == 2


@pytest.mark.parametrize(
    ("wire", "kind", "detail"),
    [
        ([(0.1, None)], "connection lost", "the server closed the connection"),
        ([(0.1, OK + b"Content-Length: 9\r\n\r\nok"), (0.1, None)], "connection lost", "closed"),
        ([(0.1, OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"), (0.1, None)],
         "connection lost", "closed"),
        ([(0.1, ConnectionResetError("reset"))], "connection lost", "reset"),
        ([(0.1, b"SSH-2.0-OpenSSH\r\n")], "connection lost", "this is no HTTP"),
        ([(5.1, OK)], "timeout", "nothing came for 5 s"),
        ([(4.9, OK), (4.9, b"Content-Length: 1\r\n\r\n"), (5.1, b"x")], "timeout", "5 s"),
    ],
)  # fmt: skip
def test_failures_say_of_what_kind_they_are(wire, kind, detail):
    """What breaks an exchange is an error with a kind, and its connection is given up."""
    server = VirtualServer(lambda _: Script(wire, framed=False))

    async def work():
        async with HttpClient("http://test", timeout=5) as http:
            for _ in range(2):
                with pytest.raises(ExchangeError, match=detail) as caught:
                    await http.post("/x", b"{}", Told())
                assert caught.value.kind == kind

    run_virtually(work(), server)
    assert len(server.lines) == 2


def test_a_request_that_is_given_up_ends_its_connection():
    """Cancelling a request closes its connection, so that the server stops and nobody reads on."""
    server = VirtualServer(lambda _: Script([(9.0, OK)], framed=False))

    async def work():
        async with HttpClient("http://test", timeout=None) as http:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await http.post("/x", b"{}", Told())
            assert server.lines[0].is_closing()
            return asyncio.get_running_loop().time()

    assert run_virtually(work(), server) == 1


def test_bytes_that_nobody_asked_for_end_the_connection():
    """What comes after an answer is not taken for the next one."""
    whole = OK + b"Content-Length: 2\r\n\r\nok"
    told, server = post((0.1, whole), (0.0, whole), times=2)
    assert [answer.body for answer in told] == [b"ok"] * 2
    assert len(server.lines) == 2
