"""The client keeps connections, opens them ahead, and speaks to real servers."""

import asyncio
import shutil
import ssl
import subprocess

import pytest
from fakes import FakeEngine
from serving import serving
from virtual_time import Script, VirtualServer, run_virtually

from server.tools.loadtest.http_client import HttpClient
from server.tools.loadtest.http_connection import ExchangeError


class Ignored:
    """Takes no interest."""

    def on_sent(self, now: float) -> None: ...

    def on_status(self, status: int) -> None: ...

    def on_data(self, data: bytes, now: float) -> None: ...


def test_connections_are_opened_ahead():
    """Requests at once use the connections that are open, and no more are opened than needed."""
    server = VirtualServer(lambda _: Script([(1.0, b"x")]))

    async def work():
        async with HttpClient("http://test", timeout=9) as http:
            await http.open(3)
            await http.open(2)
            assert len(server.lines) == 3
            await asyncio.gather(*(http.post("/x", b"{}", Ignored()) for _ in range(4)))
            assert len(server.lines) == 4
            await http.open(4)
        assert all(line.is_closing() for line in server.lines)

    run_virtually(work(), server)
    assert len(server.lines) == 4
    assert server.times == [0.0] * 4


def test_a_kept_connection_that_the_server_closed_is_no_failure():
    """What is sent over one that closes before a byte comes is sent once more, over a new one."""
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    scripts = [[(0.1, whole)], [(0.1, None)], [(0.1, whole)]]
    server = VirtualServer(lambda number: Script(scripts[number], framed=False))
    sent = []

    class Counting(Ignored):
        def on_sent(self, now: float) -> None:
            sent.append(now)

    async def work():
        async with HttpClient("http://test", timeout=9) as http:
            await http.post("/x", b"{}", Counting())
            await http.post("/x", b"{}", Counting())

    run_virtually(work(), server)
    assert sent == pytest.approx([0.0, 0.1, 0.2])
    assert len(server.lines) == 2


@pytest.mark.parametrize("second", [[(0.1, None)], [(0.1, b"HTTP/1.1 2"), (0.1, None)]])
def test_it_is_sent_again_once_and_only_if_nothing_came(second):
    """A new connection that is closed too, or a byte before the end, is a failure."""
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    scripts = [[(0.1, whole)], second, [(0.1, None)]]
    server = VirtualServer(lambda number: Script(scripts[number], framed=False))

    async def work():
        async with HttpClient("http://test", timeout=9) as http:
            await http.post("/x", b"{}", Ignored())
            with pytest.raises(ExchangeError, match="closed"):
                await http.post("/x", b"{}", Ignored())

    run_virtually(work(), server)
    assert len(server.times) == (2 if len(second) > 1 else 3)


def test_a_slow_connection_is_a_timeout(monkeypatch):
    """A server that does not take the connection fails the request in time."""

    async def never(self, *_, **__):
        await asyncio.sleep(100)

    monkeypatch.setattr("virtual_time.VirtualLoop.create_connection", never)

    async def work():
        async with HttpClient("http://test", timeout=9) as http:
            with pytest.raises(ExchangeError, match="no connection in 9 s") as caught:
                await http.get("/")
            assert caught.value.kind == "timeout"

    run_virtually(work())


def test_real_servers_understand_it():
    """Whole answers and errors of a real server arrive, over one connection."""

    async def work(url):
        async with HttpClient(url, timeout=60) as http:
            good = await http.get("/v1/models")
            return good, await http.get("/v1/nothing")

    with serving(FakeEngine()) as url:
        (status, body), (missing, _) = asyncio.run(work(url))
    assert (status, missing) == (200, 404)
    assert b'"object":"list"' in body.replace(b" ", b"")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of 127.0.0.1 that it signed itself, and its key."""
    if not (openssl := shutil.which("openssl")):
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("certificate")
    paths = folder / "certificate.pem", folder / "key.pem"
    kind = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=test"
    names = "-addext subjectAltName=IP:127.0.0.1 -days 2"
    command = [openssl, *kind.split(), *names.split(), "-out", paths[0], "-keyout", paths[1]]
    subprocess.run(command, check=True, capture_output=True)
    return paths


async def _ask_encrypted(certificate) -> tuple[int, bytes]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        await reader.read()
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with HttpClient(url, timeout=60) as http:
            return await http.get("/")


def test_encrypted_servers_are_spoken_to(certificate, monkeypatch):
    """Behind https there is the same, if the certificate is one that this machine trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    assert asyncio.run(_ask_encrypted(certificate)) == (200, b"ok")


def test_certificates_are_verified(certificate, monkeypatch):
    """A server for which nobody vouches is not spoken to."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with pytest.raises(ExchangeError, match="certificate verify failed"):
        asyncio.run(_ask_encrypted(certificate))
