"""Rules for what a request asks of its text: response formats and structured outputs, as Lark.

Compiles nothing; says which field is at fault when something is malformed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from server.api.schemas.output_schemas import ResponseFormat
from server.api.schemas.requests import GenerationBody
from server.api.structured_output.schema_keys import SchemaError
from server.api.structured_output.schema_preparation import prepare_pattern, prepare_schema
from server.api.transport.json_body import parse_object
from server.engine.grammars.grammar import GrammarError, check_size
from server.errors import InvalidRequestError

Checked = TypeVar("Checked")


def blaming(param: str, work: Callable[[], Checked], *, schema: str = "") -> Checked:
    """Do something whose failure is the fault of one field.

    Args:
        param: The field.
        work: May raise GrammarError or ValueError.
        schema: The path to the schema that is worked on, if the field is wider.

    Raises:
        InvalidRequestError: It failed.
    """
    try:
        return work()
    except (GrammarError, ValueError) as error:
        path = error.path[:200] if isinstance(error, SchemaError) else ""
        place = f"{schema or param}{path}" if path else param
        raise InvalidRequestError(
            f"'{place}' cannot be used: {error}.".replace("..", "."), param=param
        ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerRules:
    """Lark rules for `answer`, or grammars beside them, and the field that asks for it."""

    param: str
    rules: str = ""
    side_grammars: tuple[Mapping[str, object], ...] = ()
    ebnf: str = ""


def answer_rules(body: GenerationBody) -> AnswerRules | None:
    """What the body asks of its text.

    Raises:
        InvalidRequestError: It asks for two things, or for something malformed.
    """
    form, outputs = body.response_format, body.structured_outputs
    asks = form is not None and form.type != "text"
    if asks and outputs is not None:
        raise InvalidRequestError(
            "'response_format' and 'structured_outputs' exclude each other.",
            param="structured_outputs",
        )
    if form is not None:
        schema = _schema_of(form)
        if schema is not None:
            return _json_rules(schema, "response_format")
    return None if outputs is None else _outputs_rules(body)


def _schema_of(form: ResponseFormat) -> Mapping[str, object] | None:
    """The schema that a format means, wherever it stands; None is any text.

    Raises:
        InvalidRequestError: It has none where one belongs, or one where none does.
    """
    given = [
        name
        for name, value in (("json_schema", form.json_schema), ("schema", form.schema_))
        if value is not None
    ]
    if len(given) > 1 or (given and form.type == "text"):
        named = " and ".join(f"'{name}'" for name in given)
        raise InvalidRequestError(
            f"'response_format' of type '{form.type}' cannot have {named}. Use type 'json_schema' "
            "with 'json_schema'.",
            param="response_format",
        )
    if form.type == "text":
        return None
    if form.json_schema is not None:
        return form.json_schema.schema_
    if form.schema_ is None and form.type == "json_schema":
        raise InvalidRequestError(
            "Missing required parameter: 'response_format.json_schema'.",
            param="response_format",
            code="missing_required_parameter",
        )
    return {"type": "object"} if form.schema_ is None else form.schema_


def _outputs_rules(body: GenerationBody) -> AnswerRules:
    """The one constraint that `structured_outputs` names."""
    outputs, param = body.structured_outputs, "structured_outputs"
    assert outputs is not None
    given = sorted(
        name.rstrip("_") for name, value in outputs if value is not None and value is not False
    )
    if len(given) != 1:
        raise InvalidRequestError(
            "'structured_outputs' must have exactly one of json, json_object, regex, choice and "
            f"grammar (got {', '.join(given) or 'none'}).",
            param=param,
        )
    if outputs.json_ is not None or outputs.json_object:
        schema = {"type": "object"} if outputs.json_ is None else _read(outputs.json_, param)
        return _json_rules(schema, param)
    if outputs.choice is not None:
        choices = " | ".join(json.dumps(one, ensure_ascii=False) for one in outputs.choice)
        return AnswerRules(param=param, rules=f"answer: CHOICE\nCHOICE: {choices}")
    if outputs.regex is not None:
        regex = outputs.regex
        slashed = _with_escaped_slashes(blaming(param, lambda: prepare_pattern(regex)))
        return AnswerRules(param=param, rules=f"answer: /{slashed}/")
    assert outputs.grammar is not None
    if "::=" in outputs.grammar:
        return AnswerRules(param=param, ebnf=outputs.grammar)
    side = {"name": "answer", "lark_grammar": outputs.grammar}
    return AnswerRules(param=param, rules="answer: @answer", side_grammars=(side,))


def _read(schema: Mapping[str, object] | str, param: str) -> Mapping[str, object]:
    """A schema, which may be given as text."""
    if not isinstance(schema, str):
        return schema

    def read() -> dict[str, object]:
        check_size(schema)
        try:
            return parse_object(schema.encode())
        except InvalidRequestError as error:
            raise ValueError(error.message.replace("The request body", "its text")) from None

    return blaming(f"{param}.json", read)


def _json_rules(schema: Mapping[str, object], param: str) -> AnswerRules:
    prepared = blaming(param, lambda: prepare_schema(schema))
    return AnswerRules(param=param, rules=f"answer: %json {json.dumps(prepared)}")


def _with_escaped_slashes(regex: str) -> str:
    """The expression between Lark's slashes: on one line, its own slashes escaped."""
    escaped = re.sub(r"(\\.)|/", lambda found: found[1] or "\\/", regex, flags=re.DOTALL)
    return escaped.replace("\n", "\\n").replace("\r", "\\r")
