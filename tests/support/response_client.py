"""The official client of /v1/responses, connected to engines that say what a test needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fakes import FakeChatTemplate, FakeEngine
from openai import OpenAI
from serving import serving

TEMPLATE = "tools <tool_call> <think>"
PARAMETERS = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
TOOL = {"type": "function", "name": "f", "description": "d", "parameters": PARAMETERS}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": true}}\n</tool_call>'
RICH = f"<think>\nhm</think>\n\nLet me see.\n{CALL}\n{CALL}"


def backwards(request) -> str:
    """The prompt backwards, so that answers differ."""
    return bytes(reversed(request.token_ids)).decode()


@contextmanager
def connected(engine: FakeEngine, **options: object) -> Iterator[OpenAI]:
    """A client of an engine."""
    with (
        serving(engine, **options) as url,
        OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        yield client


def rich_engine(reply: str = RICH) -> FakeEngine:
    return FakeEngine(reply, chat_template=FakeChatTemplate(TEMPLATE))
