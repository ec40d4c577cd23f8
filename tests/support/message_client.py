"""The official client of /v1/messages, connected to engines that say what a test needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import anthropic
import httpx
from anthropic import Anthropic
from fakes import FakeChatTemplate, FakeEngine
from serving import serving

PATH = "/v1/messages"
TEMPLATE = "tools <tool_call> <think>"
PARAMETERS = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
TOOL = {"name": "f", "description": "d", "input_schema": PARAMETERS}
ARGUMENTS = {"a": True, "b": [1, 2]}
CALL = f'<tool_call>\n{{"name": "f", "arguments": {json.dumps(ARGUMENTS)}}}\n</tool_call>'
RICH = f"<think>\nhm</think>\n\nLet me see.\n{CALL}\n{CALL}"
HI = [{"role": "user", "content": "hi"}]


def backwards(request) -> str:
    """The prompt backwards, so that answers differ."""
    return bytes(reversed(request.token_ids)).decode()


@contextmanager
def connected(engine: FakeEngine, **options: object) -> Iterator[Anthropic]:
    """A client of an engine."""
    with (
        serving(engine, **options) as url,
        Anthropic(base_url=url, api_key="any", max_retries=0) as client,
    ):
        yield client


def plain(client: Anthropic) -> httpx.Client:
    """HTTP without the client's help."""
    return httpx.Client(base_url=str(client.base_url), timeout=60)


def create(client: Anthropic, **options: object) -> anthropic.types.Message:
    return client.messages.create(**({"model": "fake", "max_tokens": 60, "messages": HI} | options))


def rich_engine(reply: str = RICH) -> FakeEngine:
    return FakeEngine(reply, chat_template=FakeChatTemplate(TEMPLATE))
