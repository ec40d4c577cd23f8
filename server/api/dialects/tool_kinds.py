"""Tool kinds: which tools of a request a model can be offered, and what becomes of the others.

The policy, for every form of a chat: functions are offered, those of a namespace under its name.
A tool of another kind, which the client or its provider runs in its own way, cannot be offered; it
is dropped and said in X-Ignored-Fields, as agents send long lists of which they need a part. Where
the choice of a tool names one, dropping it would change the result: then it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from server.errors import UnsupportedValueError

OtherTools = Sequence[Mapping[str, object]]


def functions_only(
    value: object, is_function: Callable[[Mapping[str, object]], bool]
) -> tuple[object, tuple[str, ...]]:
    """The tools of a body without those of other kinds.

    Args:
        value: The list of tools as it was sent; anything else is left to the schema.
        is_function: Tells the kinds that are kept.

    Returns:
        The tools that are kept, and the names under which the others are reported.
    """
    if not isinstance(value, list):
        return value, ()
    kept = [tool for tool in value if not isinstance(tool, Mapping) or is_function(tool)]
    others = {
        f"tools[].{tool.get('type')}"[:100]
        for tool in value
        if isinstance(tool, Mapping) and not is_function(tool)
    }
    return kept, tuple(sorted(others))


def refuse_choice(kind: object) -> NoReturn:
    """Refuse a choice of a tool that cannot be offered.

    Raises:
        UnsupportedValueError: Always.
    """
    raise UnsupportedValueError(
        f"Unsupported value: 'tool_choice' does not support a tool of type '{str(kind)[:80]}' on "
        "this server. Only functions can be called; describe the tool as a function.",
        param="tool_choice",
    )


def in_namespace(namespace: str, name: str) -> str:
    """The one name of a function in a namespace, which the model sees."""
    return f"{namespace}{name}" if namespace.endswith("_") else f"{namespace}.{name}"


def out_of_namespace(name: str, namespaces: Iterable[str]) -> tuple[str | None, str]:
    """The namespace of a function that was called, and its name there."""
    for namespace in namespaces:
        rest = name.removeprefix(in_namespace(namespace, ""))
        if rest != name:
            return namespace, rest
    return None, name
