"""litellm against the server, as an OpenAI host and as a vLLM host."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # its default is to ask the network
litellm = pytest.importorskip("litellm")

pytestmark = pytest.mark.clients
HI = [{"role": "user", "content": "What is the capital of France?"}]
PROVIDERS = ("openai", "hosted_vllm")


@pytest.fixture(params=PROVIDERS)
def ask(request, url):
    def complete(**options):
        return litellm.completion(
            model=f"{request.param}/smollm2",
            **{"messages": HI, "temperature": 0, "max_tokens": 24, "num_retries": 0} | options,
            api_base=url,
            api_key="any",
        )

    return complete


def test_completion(ask):
    """An answer with its usage."""
    answer = ask()
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0
    assert isinstance(answer.created, int)


def test_stream(ask):
    """Chunks join to the answer, and usage arrives."""
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ask().choices[0].message.content
    assert any(getattr(chunk, "usage", None) for chunk in chunks)
    assert chunks[-2].choices[0].finish_reason or chunks[-1].choices[0].finish_reason


def test_what_openai_does_not_know_passes_through(ask):
    """Sampling fields of other servers reach this one."""
    assert (
        ask(top_k=1, temperature=1.5).choices[0].message.content == ask().choices[0].message.content
    )


def test_tools(ask):
    """A required call is parsed."""
    shape = {"type": "object", "properties": {"city": {"enum": ["Paris", "London"]}},
             "required": ["city"], "additionalProperties": False}  # fmt: skip
    tool = {"type": "function", "function": {"name": "weather", "parameters": shape}}
    answer = ask(tools=[tool], tool_choice="required", max_tokens=60)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert answer.choices[0].finish_reason == "tool_calls"


def test_errors(ask):
    """Overflow and other faults of the caller become the client's own exceptions."""
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(messages=[{"role": "user", "content": "word " * 5000}])
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        ask(temperature=-1)
