"""The program that renders chat templates, in a process of its own that can be ended at any time.

A template comes with a model and may be hostile: Jinja's sandbox keeps it from Python's internals,
the operating system keeps this process from opening files, from growing and from running on.
Reads one JSON object a line on standard input and answers with one; see TemplateRenderer.
Imports nothing of this project, so that it starts fast and holds no model.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import resource
import signal
import sys
from collections.abc import Callable
from typing import IO, Any, NoReturn

import jinja2
import jinja2.constants  # Jinja imports it on demand, when no file can be opened any more
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

MEMORY_LIMIT = 512 << 20
"""Bytes of address space."""
MAX_TEXT = 1 << 20
"""Characters that a template may make of nothing."""
MAX_GROWTH = 8
"""How often it may write each byte that it was given."""
MAX_MESSAGE = 1000
"""Characters of a template's own words."""
MAX_PATTERN = 200
"""Characters of a pattern for the time."""
ESCAPED_MARK = re.compile(r"(?<!\\)((?:\\\\)*)\\u(fdd[234])")
"""A mark of model.text.control_tokens in ASCII; backslashes of the user's own come in pairs."""


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - never changed; the base class has it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Read up to endgeneration and keep the body in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja as chat templates are written for, with every way to Python's internals an error.

    Source: https://huggingface.co/docs/transformers/chat_templating_writing
    """

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, jinja2.ext.loopcontrols],
        )
        self.filters["tojson"] = to_json
        self.globals.update(
            raise_exception=raise_exception,
            strftime_now=strftime_now,
            dict=make_dict,
            namespace=Namespace,
        )

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """Refuse an internal attribute as soon as it is named, not only when it is used."""
        raise jinja2.exceptions.SecurityError(
            f"access to attribute {attribute!r} of a {type(obj).__name__} is unsafe"
        )


class Namespace(jinja2.utils.Namespace):
    """Jinja's namespace without underscore names, which could reach internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - whatever a template holds
        """Check the names given at once."""
        for name in dict(*args[1:], **kwargs):
            _check_name(name)
        jinja2.utils.Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: object) -> None:
        """Check the name before it is set."""
        _check_name(name)
        super().__setitem__(name, value)


def make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:  # noqa: ANN401 - as dict itself
    """Make a dictionary without handing out the class itself."""
    return dict(*args, **kwargs)


def to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - a filter's arguments are the template's
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - a filter's arguments are the template's
) -> str:
    """Write JSON without HTML escapes; marks stay themselves even where ASCII is asked for."""
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    if not ensure_ascii:
        return text
    return ESCAPED_MARK.sub(lambda match: match[1] + chr(int(match[2], 16)), text)


def strftime_now(pattern: str) -> str:
    """Format the local time."""
    if len(pattern) > MAX_PATTERN:
        raise jinja2.TemplateError(
            f"strftime_now takes at most {MAX_PATTERN} characters (got {len(pattern)})"
        )
    return datetime.datetime.now().strftime(pattern)


def raise_exception(message: str) -> NoReturn:
    """Let a template refuse its messages in its own words."""
    raise jinja2.TemplateError(str(message)[:MAX_MESSAGE])


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold the name {name!r}")


def confine() -> None:
    """Give up the means to open files and to grow without bound; there is no way back."""
    # What Python and Jinja read from files on first use has to be used once before.
    strftime_now("%c")
    _reply(Environment().from_string, {"source": r"{{ '\n' + none }}", "variables": {}})
    _, open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3 if open_files == -1 else min(3, open_files)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, memory = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_LIMIT if memory == resource.RLIM_INFINITY else min(memory, MEMORY_LIMIT)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def answer(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Render what each line asks for until the input ends.

    A request is {"source", "seconds"} to check a template, with "variables" to render it; past
    its seconds the process ends. An answer is {"text"} or {"error"}.
    """
    compiled = functools.lru_cache(Environment().from_string)
    for line in requests:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["seconds"])
        reply = _reply(compiled, request, limit=MAX_TEXT + MAX_GROWTH * len(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(json.dumps(reply).encode() + b"\n")
        answers.flush()


def _reply(
    compiled: Callable[[str], jinja2.Template], request: dict[str, Any], *, limit: int = MAX_TEXT
) -> dict[str, str]:
    try:
        template = compiled(request["source"])
        variables = request.get("variables")
        return {"text": "" if variables is None else _rendered(template, variables, limit)}
    except jinja2.TemplateSyntaxError as error:
        return {"error": f"line {error.lineno}: {error.message}"[:MAX_MESSAGE]}
    except MemoryError:
        return {"error": "it needs too much memory"}
    except RecursionError:
        return {"error": "it is nested too deeply"}
    except Exception as error:  # noqa: BLE001 - whatever a template provokes is its own fault
        return {"error": (str(error) or type(error).__name__)[:MAX_MESSAGE]}


def _rendered(template: jinja2.Template, variables: dict[str, Any], limit: int) -> str:
    """The text, made piece by piece and no further than the limit."""
    pieces, size = [], 0
    for piece in template.generate(variables):
        size += len(piece)
        if size > limit:
            raise jinja2.TemplateError(f"it makes a text of more than {limit} characters")
        pieces.append(piece)
    return "".join(pieces)


if __name__ == "__main__":
    confine()
    answer(sys.stdin.buffer, sys.stdout.buffer)
