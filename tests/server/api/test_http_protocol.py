"""server.api.http_protocol: limits on heads, refusals in the one shape, clients of HTTP/1.0."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import httpx
import pytest
from fakes import FakeEngine
from serving import serving, wait_until

import server.api.http_protocol as module

LINE, WHOLE = 16_384, 65_536


@pytest.fixture(scope="module")
def url() -> Iterator[httpx.URL]:
    with serving(FakeEngine(), api_key="secret") as address:
        yield httpx.URL(address)


def exchange(url: httpx.URL, *pieces: bytes) -> bytes:
    """All that a server answers to these bytes until it closes."""
    with socket.create_connection((url.host, url.port), timeout=30) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
        except OSError:
            pass  # it closed before it had read everything
        answer = b""
        try:
            while part := connection.recv(65_536):
                answer += part
        except ConnectionResetError:
            pass
        return answer


def parsed(answer: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    return int(status.split()[1]), dict(line.split(b": ", 1) for line in lines), body


TOO_LONG = {
    "a request line": [b"GET /" + b"a" * LINE + b" HTTP/1.1\r\n\r\n"],
    "a query": [b"GET /?" + b"a" * LINE + b" HTTP/1.1\r\n\r\n"],
    "a header": [b"GET /health HTTP/1.1\r\nX: " + b"a" * LINE + b"\r\n\r\n"],
    "a name": [b"GET /health HTTP/1.1\r\n" + b"a" * LINE + b": x\r\n\r\n"],
    "many headers": [b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * (WHOLE // 5) + b"\r\n"],
    "an endless request line": [b"GET /", *[b"a" * 65_536] * 400],
    "an endless header": [b"GET /health HTTP/1.1\r\nX: ", *[b"a" * 65_536] * 400],
    "an endless name": [b"GET /health HTTP/1.1\r\n", *[b"a" * 65_536] * 400],
    "endless headers": [b"GET /health HTTP/1.1\r\n", *[b"X: y\r\n" * 10_000] * 400],
    "an endless key": [b"GET /kv HTTP/1.1\r\nX-Api-Key: ", *[b"a" * 65_536] * 400],
}


@pytest.mark.parametrize("pieces", TOO_LONG.values(), ids=TOO_LONG)
def test_request_lines_and_headers_have_a_limit(url, pieces):
    """431 in the one error shape, and the connection is closed, with a key or without one."""
    status, headers, body = parsed(exchange(url, *pieces))
    assert status == 431
    assert headers[b"connection"] == b"close"
    assert headers[b"content-type"] == b"application/json"
    error = json.loads(body)["error"]
    assert error["code"] == "headers_too_large"
    assert str(LINE) in error["message"] or str(WHOLE) in error["message"]
    assert httpx.get(f"{url}/health").status_code == 200


@pytest.mark.parametrize(
    "tail", [b"X: " + b"a" * 16_000_000, b"X: y\r\n" * 3_000_000], ids=["header", "headers"]
)
def test_no_more_of_a_head_is_parsed_than_the_limit(monkeypatch, url, tail):
    """However much is sent, the parser sees the limit and a few slices at most."""
    num_parsed = 0
    parse = module.HttpProtocol._parse

    def counted(self, data: bytes) -> None:
        nonlocal num_parsed
        num_parsed += len(data)
        parse(self, data)

    monkeypatch.setattr(module.HttpProtocol, "_parse", counted)
    assert b" 431 " in exchange(url, b"GET / HTTP/1.1\r\n" + tail)[:20]
    assert num_parsed <= WHOLE + 3 * module._SLICE


def test_heads_within_the_limits_are_served(url):
    """Also in many pieces, after each other on one connection, and behind a body."""
    key = b"X-Api-Key: secret\r\n"
    filling = b"".join(b"X-%d: %b\r\n" % (i, b"a" * 16_000) for i in range(3))
    head = b"GET /v1/models HTTP/1.1\r\n" + key + filling + b"\r\n"
    post = b"POST /detokenize HTTP/1.1\r\n" + key
    body = b'{"tokens": [65]}'
    sized = post + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunked = post + b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + body + b"\r\n0\r\nX: y\r\n\r\n"
    last = b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n" + key + b"\r\n"
    raw = head + sized + chunked + head + last
    pieces = [raw[i : i + 997] for i in range(0, len(raw), 997)]
    answer = exchange(url, *pieces)
    assert answer.count(b"HTTP/1.1 200 OK") == 5


def test_a_head_must_come_in_time(monkeypatch, url):
    """408 for a client that begins and does not go on."""
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.2)
    status, _, body = parsed(exchange(url, b"GET /health HTTP/1.1\r\nX:"))
    assert status == 408
    assert "0.2 seconds" in json.loads(body)["error"]["message"]


def test_malformed_http_is_refused_in_the_one_shape(url):
    """JSON for everybody, and the other form of errors where its clients asked."""
    status, headers, body = parsed(exchange(url, b"nonsense\r\n\r\n"))
    assert (status, headers[b"content-type"]) == (400, b"application/json")
    assert json.loads(body)["error"]["code"] == "invalid_http"
    raw = b"POST /v1/messages HTTP/1.1\r\nbad header\r\n\r\n"
    assert json.loads(parsed(exchange(url, raw))[2])["type"] == "error"


def test_a_client_of_http_1_0_gets_no_chunks(url):
    """Whole answers have their length, and a stream ends with the connection."""
    key = b"X-Api-Key: secret\r\n"
    body = b'{"prompt": "a", "stream": true}'
    post = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n" % len(body) + key + b"\r\n"
    status, headers, text = parsed(exchange(url, post + body))
    assert status == 200
    assert b"transfer-encoding" not in headers
    assert text.startswith(b"data: ")
    assert text.endswith(b"data: [DONE]\n\n")
    status, headers, text = parsed(exchange(url, b"GET /health HTTP/1.0\r\n\r\n"))
    assert (status, int(headers[b"content-length"])) == (200, len(text))


def test_a_body_that_nobody_reads_ends(url):
    """A client that goes on after its answer is not listened to for ever."""
    head = b"POST /nowhere HTTP/1.1\r\nContent-Length: 900000000\r\n\r\n"
    with socket.create_connection((url.host, url.port), timeout=30) as connection:
        connection.sendall(head)

        def is_closed() -> bool:
            try:
                connection.sendall(b"a" * 1_000_000)
            except OSError:
                return True
            return False

        assert wait_until(is_closed, 20)
