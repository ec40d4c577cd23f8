"""content_forms: what a chat template reads: content as text or as parts, and thoughts or not.

A template that reads parts finds none in a text, and the other way round: the user's words would be
missing from the prompt without a word. So the template is asked once, with words to look for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from model.errors import TemplateError

Render = Callable[[Sequence[Mapping[str, object]]], str]
_ROLES = ("system", "user", "assistant")
_ORDERS = (("system", "user", "assistant", "user"), ("user", "assistant", "user"), ("user",))
"""Conversations to try, the first that the template takes; some know no system or no answer."""


def as_parts(text: object) -> object:
    """A text as the list of parts that some templates read."""
    return [{"type": "text", "text": text}] if isinstance(text, str) else text


def roles_in_parts(render: Render) -> frozenset[str] | None:
    """Ask a template which roles' content it reads as parts.

    Args:
        render: Renders a conversation, or raises TemplateError.

    Returns:
        The roles; those that it reads both ways are given as text. None if it shows what users
        say in neither form.
    """
    refused = False
    for order in _ORDERS:
        texts = {role: _probe(role) for role in order}
        shown = _shown(render, order, frozenset())
        in_parts = _shown(render, order, frozenset(texts))
        if shown is None and in_parts is None:
            refused = True
            continue
        as_text = shown or frozenset()
        found = (in_parts or frozenset()) - as_text
        if "user" in found | as_text:
            return found | ({"tool"} if "user" in found else frozenset())
        refused = False
        break
    # A template that refuses every conversation says so itself, whenever it is asked.
    return frozenset() if refused else None


def shows_thoughts(render: Render) -> bool:
    """Whether a template writes the thoughts of an earlier turn, at least before its calls.

    Args:
        render: Renders a conversation, or raises TemplateError.
    """
    function = {"name": "look", "arguments": "{}"}
    thinks = {"role": "assistant", "content": "", "reasoning_content": _probe("thinker")}
    asks = {"role": "user", "content": "Look."}
    calls = {"id": "call00000", "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": "call00000", "content": "Nothing."}
    for turns in ((asks, {**thinks, "tool_calls": [calls]}, result), (asks, thinks)):
        try:
            if _probe("thinker") in render(turns):
                return True
        except TemplateError:
            continue
    return False


def _shown(render: Render, order: Sequence[str], in_parts: frozenset[str]) -> frozenset[str] | None:
    """The roles whose words the rendered text holds; None if the template refuses."""
    turns = [
        {"role": role, "content": as_parts(_probe(role)) if role in in_parts else _probe(role)}
        for role in order
    ]
    try:
        text = render(turns)
    except TemplateError:
        return None
    return frozenset(role for role in _ROLES if role in order and _is_written(role, text))


def _is_written(role: str, text: str) -> bool:
    """Whether the words are there as words, and not as the spelling of a list around them."""
    return _probe(role) in text and f"'{_probe(role)}'" not in text


def _probe(role: str) -> str:
    return f"kvserve reads what the {role} says"
