"""Command-line options made from a configuration's fields: names, help, defaults, variables.

A field of server.config is described once, there; a command gets its options from here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from server.config import configure


def with_options(kind: type[BaseSettings]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command whose first parameter is a configuration take its fields as options.

    Args:
        kind: The configuration's class.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        prefix = str(kind.model_config["env_prefix"])
        options = [
            _parameter(name, field, prefix=prefix) for name, field in kind.model_fields.items()
        ]

        def run(**values: object) -> None:
            given = {name: _joined(values.pop(name)) for name in kind.model_fields}
            command(configure(kind, given), **values)

        parameters = [parameter.replace(kind=_KEYWORD) for parameter in own] + options
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer's way
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


_REPEATED = frozenset({"api_key"})
"""Options that may be given several times."""
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _parameter(name: str, field: FieldInfo, *, prefix: str) -> inspect.Parameter:
    """A field as an option; its value stays text, as the configuration itself parses it."""
    option = typer.Option(
        envvar=f"{prefix}{name.upper()}",
        help=field.description,
        show_default=_shown(field.default),
        metavar=_metavar(field),
    )
    kind: Any = bool if _is_flag(field) else str
    if name in _REPEATED:
        kind = list[str]
    annotation: Any = Annotated[kind | None, option]
    return inspect.Parameter(name, _KEYWORD, default=None, annotation=annotation)


def _is_flag(field: FieldInfo) -> bool:
    return field.annotation in (bool, bool | None)


def _joined(value: object) -> object:
    """The values of an option that was given several times as one text."""
    return ",".join(map(str, value)) or None if isinstance(value, list) else value


def _shown(default: object) -> str | bool:
    """The default as the help shows it."""
    if isinstance(default, bool):
        return "yes" if default else "no"
    return False if default is None else str(default)


def _metavar(field: FieldInfo) -> str | None:
    """The words a field allows, or what kind of value it takes; flags need neither."""
    if _is_flag(field):
        return None
    kinds = [kind for kind in get_args(field.annotation) if kind is not NoneType]
    kind = field.annotation if get_origin(field.annotation) is Literal or not kinds else kinds[0]
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return "NUMBER" if kind in (int, float) else "TEXT"
