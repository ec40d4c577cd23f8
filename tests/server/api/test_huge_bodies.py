"""Bodies of megabytes, with a server, a client and whoever else asks in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from server_process import ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.smollm2, pytest.mark.timeout(600)]

WORDS = "word " * 1_000_000
PART = [{"type": "text", "text": "hi"}]
CHAT = [{"role": role, "content": "hi"} for role in ("user", "assistant")] * 5000 + [
    {"role": "user", "content": "bye"}
]
PARTS = [{"role": turn["role"], "content": PART} for turn in CHAT]
ITEMS = [
    {"role": role, "content": [{"type": f"{kind}_text", "text": "hi"}]}
    for role, kind in (("user", "input"), ("assistant", "output"))
] * 5000
LONG = [{"role": "user", "content": WORDS}]
IDS = [1000] * 1_000_000
_POST = """
import sys, urllib.request, urllib.error
request = urllib.request.Request(sys.argv[1], sys.stdin.buffer.read())
try:
    print(urllib.request.urlopen(request).status)
except urllib.error.HTTPError as error:
    print(error.status)
"""


@pytest.fixture(scope="module")
def server(smollm2_gguf) -> Iterator[ServerProcess]:
    with server_process(smollm2_gguf, kv_cache_memory=256 * 2**20, log_level="error") as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"prompt": WORDS, "truncate_prompt_tokens": 9}, 200),
        ("/v1/completions", {"prompt": IDS, "truncate_prompt_tokens": 9}, 200),
        ("/v1/completions", {"prompt": IDS}, 400),
        ("/v1/completions", {"prompt": "a", "n": 32, "max_tokens": 50, "logprobs": 20}, 200),
        ("/v1/chat/completions", {"messages": CHAT}, 400),
        ("/v1/chat/completions", {"messages": CHAT, "truncate_prompt_tokens": 9}, 200),
        ("/v1/chat/completions", {"messages": PARTS}, 400),
        ("/v1/chat/completions/input_tokens", {"messages": CHAT}, 200),
        ("/v1/chat/completions/input_tokens", {"messages": LONG}, 200),
        ("/v1/responses", {"input": CHAT}, 400),
        ("/v1/responses", {"input": ITEMS}, 400),
        ("/v1/responses/input_tokens", {"input": CHAT}, 200),
        ("/v1/messages", {"messages": CHAT, "max_tokens": 1}, 400),
        ("/v1/messages", {"messages": PARTS, "max_tokens": 1}, 400),
        ("/v1/messages/count_tokens", {"messages": CHAT}, 200),
        ("/v1/messages/count_tokens", {"messages": LONG}, 200),
        ("/tokenize", {"prompt": "word " * 100_000}, 200),
        ("/tokenize", {"prompt": WORDS, "return_token_strs": True}, 200),
        ("/tokenize", {"messages": CHAT}, 200),
        ("/detokenize", {"tokens": IDS}, 200),
        ("/detokenize", {"tokens": [*IDS, 10**9]}, 400),
        ("/v1/completions", {"prompt": [1, *([0.5] * 900_000)]}, 400),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_huge_bodies_do_not_hold_up_the_others(server, path, body, status):
    """While one is prepared, /health goes on to answer, again and again."""
    raw = json.dumps(body | {"max_tokens": 1} if path == "/v1/chat/completions" else body).encode()
    command = [sys.executable, "-c", _POST, f"{server.url}{path}"]
    num_answers = 0
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        feeder = threading.Thread(target=_feed, args=(child, raw))
        feeder.start()
        feeder.join()
        while child.poll() is None:
            assert client.get("/health").status_code == 200
            num_answers += 1
            time.sleep(0.01)
        assert child.stdout.read().split() == [str(status).encode()]
    assert num_answers > 3


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": WORDS},
        {"prompt": "a", "bogus": [[]] * 1_000_000},
        {"prompt": "a", "bogus": {str(number): 1 for number in range(400_000)}},
        {"prompt": ["a"] * 1_000_000},
        {"prompt": "a", "temperature": WORDS},
        {f"unknown_{number}": 1 for number in range(100_000)},
    ],
    ids=["text", "lists", "names", "texts", "type", "fields"],
)
def test_what_is_refused_at_sight_is_refused_shortly(server, body):
    """The error is no longer than a screen, whatever the body holds."""
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]
    assert len(answer.content) < 4096


def _feed(child: subprocess.Popen, raw: bytes) -> None:
    child.stdin.write(raw)
    child.stdin.close()
