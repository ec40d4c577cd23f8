"""OutputForms: what a request asks of its answer's form, as a grammar and a way to read it.

Puts response formats, constraints, tools and reasoning together: what the template shows, what the
model may say, and how its answer is taken apart. May run in any thread; compiles nothing before
the request is known to be well-formed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from server.api.protocols import ChatTemplateLike, TokenizerLike
from server.api.schemas.output_schemas import NamedTool
from server.api.schemas.requests import ChatBody, GenerationBody
from server.api.structured_output.answer_parser import PLAIN_TEXT, AnswerFormat
from server.api.structured_output.answer_rules import answer_rules, blaming
from server.api.structured_output.call_grammar import calls_grammar, text_or_calls_grammar
from server.api.structured_output.constraint import Constraint
from server.api.structured_output.reasoning import CLOSING, OPENING
from server.api.structured_output.schema_preparation import prepare_schema
from server.api.structured_output.tool_calls import TOOL_FORMATS, ToolFormat, format_of_template
from server.engine.grammars.grammar import GrammarSource, check_size
from server.errors import InvalidRequestError, UnsupportedValueError

_NO_PARAMETERS: Mapping[str, object] = {
    "type": "object", "properties": {}, "additionalProperties": False,
}  # fmt: skip
_OBJECT: Mapping[str, object] = {"type": "object"}
_TAIL_TOKENS = 16
"""Tokens of a prompt's end that are looked at for an open reasoning tag."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolUse:
    """What a chat request makes of its tools."""

    definitions: tuple[dict[str, object], ...] = ()
    """As the client gave them; none if no call is wanted."""
    schemas: Mapping[str, Mapping[str, object]]
    """Of the functions that may be called: name -> schema of the arguments."""
    names: tuple[str, ...] = ()
    """Of all functions, in the client's order."""
    strict: frozenset[str] = frozenset()
    """Functions whose arguments must fit even where the model itself decides to call."""
    is_required: bool
    parallel: bool


NO_TOOLS = ToolUse(schemas={}, is_required=False, parallel=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputForm:
    """What becomes of one request's text."""

    constraint: Constraint | None = None
    """The grammar that it must fit."""
    answer_format: AnswerFormat = PLAIN_TEXT
    shown_token_ids: frozenset[int] = frozenset()
    """Control tokens that the answer's parser must see."""


class OutputForms:
    """Knows what the model can be asked for.

    Args:
        tokenizer: The model's.
        template: The model's, if it has one.
        tool_call_parser: The name of a format, "none", or "auto" to see what the template shows.
    """

    def __init__(
        self,
        tokenizer: TokenizerLike,
        template: ChatTemplateLike | None,
        *,
        tool_call_parser: str = "auto",
    ) -> None:
        self._tokenizer = tokenizer
        source = "" if template is None else template.source
        self._reasons = OPENING in source or CLOSING in source
        self.describes_tools = "tools" in source
        """Whether the template shows tools to the model; if not, somebody else must."""
        self.tool_format: ToolFormat | None = (
            format_of_template(source)
            if tool_call_parser == "auto"
            else TOOL_FORMATS.get(tool_call_parser)
        )

    @property
    def enforces_strict(self) -> bool:
        """Whether a call that nobody required can be told from text when it begins."""
        return self.tool_format is not None and bool(self.tool_format.begin)

    def tool_use(self, body: ChatBody) -> ToolUse:
        """What a chat request makes of its tools.

        Raises:
            InvalidRequestError: The choice names no tool, or there is none to choose from.
        """
        choice = body.tool_choice
        wanted = choice.function.name if isinstance(choice, NamedTool) else None
        schemas = {tool.function.name: tool.function.parameters for tool in body.tools}
        if len(schemas) < len(body.tools):
            raise InvalidRequestError("'tools' must have different names.", param="tools")
        if wanted is not None and wanted not in schemas:
            raise InvalidRequestError(
                f"'tool_choice' names the function '{wanted[:80]}', which is not in 'tools'.",
                param="tool_choice",
            )
        is_required = wanted is not None or choice == "required"
        if is_required and not schemas:
            raise InvalidRequestError(
                "'tool_choice' requires a call, but there are no 'tools'.", param="tool_choice"
            )
        if is_required and self.tool_format is None:
            raise UnsupportedValueError(
                "'tool_choice' cannot require a call: this server was started with "
                "--tool-call-parser none.",
                param="tool_choice",
            )
        if choice == "none" or not schemas:
            return NO_TOOLS
        callable_ = {
            name: schema or _NO_PARAMETERS
            for name, schema in schemas.items()
            if wanted is None or name == wanted
        }
        return ToolUse(
            definitions=tuple(tool.model_dump(exclude_unset=True) for tool in body.tools),
            schemas=callable_,
            names=tuple(schemas),
            strict=frozenset(t.function.name for t in body.tools if t.function.strict),
            is_required=is_required,
            parallel=body.parallel_tool_calls and wanted is None,
        )

    def turns_with_tools(
        self, turns: Sequence[dict[str, object]], tools: ToolUse
    ) -> list[dict[str, object]]:
        """The turns of a chat whose template knows no tools: they are told of in words."""
        if self.describes_tools:
            return list(turns)
        told = [_spelt_out(turn, self.tool_format) for turn in turns]
        if not tools.definitions or self.tool_format is None:
            return told
        text = _description(tools, self.tool_format)
        if told and told[0].get("role") == "system":
            first = {**told[0], "content": f"{told[0].get('content')}\n\n{text}"}
            return [first, *told[1:]]
        return [{"role": "system", "content": text}, *told]

    def form(
        self, body: GenerationBody, tools: ToolUse = NO_TOOLS, *, prompt: Sequence[int] = ()
    ) -> OutputForm:
        """The form of a request's answer; its grammar is not compiled yet.

        Args:
            body: A completion, or a chat.
            tools: Of a chat.
            prompt: Of a chat.

        Raises:
            InvalidRequestError: The constraint is malformed or too large; names the field.
        """
        is_chat = isinstance(body, ChatBody)
        is_open = is_chat and self._reasons and self._ends_open(prompt)
        tool_format = self.tool_format if tools.definitions else None
        constraint = self._constraint(body, tools, is_open=is_open)
        answer_format = AnswerFormat(
            reasons=is_chat and self._reasons,
            reasoning_is_open=is_open,
            tool_format=tool_format,
            tool_names=frozenset(tools.schemas),
            is_call=tools.is_required,
        )
        marks = [OPENING, CLOSING] if answer_format.reasons else []
        marks += [] if tool_format is None else tool_format.marks
        return OutputForm(
            constraint=constraint,
            answer_format=answer_format,
            shown_token_ids=frozenset(self._special_ids(marks).values()),
        )

    def _constraint(
        self, body: GenerationBody, tools: ToolUse, *, is_open: bool
    ) -> Constraint | None:
        """The grammar of an answer, thoughts included that the prompt has begun."""
        answer = answer_rules(body)
        if not tools.is_required and answer is None:
            return self._free_constraint(tools, is_open=is_open)
        param = "tools" if answer is None else answer.param
        rules: list[str] = []
        side: list[Mapping[str, object]] = []
        starts: list[str] = []
        if answer is not None and not tools.is_required:
            rules.append(answer.rules)
            side += answer.side_grammars
            starts.append("answer")
        if tools.definitions and self.tool_format is not None:
            rules.append(self._calls_rules(tools))
            starts.append("calls")
            param = "tools" if tools.is_required else param
        if is_open:
            rules.append(self._thoughts_rules())
        start = f"start: {'thoughts ' if is_open else ''}({' | '.join(starts)})"
        source = GrammarSource(_container("\n".join([start, *rules]), side))
        if answer is not None and answer.ebnf and "answer" in starts:
            if is_open or len(starts) > 1:
                raise UnsupportedValueError(
                    "'structured_outputs.grammar' in EBNF cannot stand beside tools or thoughts. "
                    "Write it in Lark instead.",
                    param=param,
                )
            source = GrammarSource(answer.ebnf, is_ebnf=True)
        return _constraint(source, param)

    def _free_constraint(self, tools: ToolUse, *, is_open: bool) -> Constraint | None:
        """The grammar of a text whose calls must fit, if any of its tools is strict."""
        if not (tools.strict and self.enforces_strict):
            return None
        assert self.tool_format is not None
        schemas = _prepared(tools, lambda name, schema: schema if name in tools.strict else _OBJECT)
        rules = text_or_calls_grammar(
            self.tool_format,
            schemas,
            parallel=tools.parallel,
            mark_ids=self._special_ids(self.tool_format.marks),
            text_ids=self._special_ids([OPENING, CLOSING] if self._reasons else []).values(),
        )
        start = f"start: {'thoughts ' if is_open else ''}answer"
        thoughts = [self._thoughts_rules()] if is_open else []
        source = GrammarSource(_container("\n".join([start, rules, *thoughts]), []))
        return _constraint(source, "tools")

    def _calls_rules(self, tools: ToolUse) -> str:
        assert self.tool_format is not None
        schemas = _prepared(tools, lambda _name, schema: schema)
        return calls_grammar(
            self.tool_format,
            schemas,
            parallel=tools.parallel,
            mark_ids=self._special_ids(self.tool_format.marks),
        )

    def _thoughts_rules(self) -> str:
        """Text up to the closing tag, which may be a control token."""
        closing = self._special_ids((CLOSING,))
        if closing:
            return f"thoughts: /(.|\\n)*/ <[{closing[CLOSING]}]> /\\n{{0,2}}/"
        return "thoughts: thinking /\\n{0,2}/\nthinking[lazy]: /(.|\\n)*<\\/think>/"

    def _ends_open(self, prompt: Sequence[int]) -> bool:
        tail = self._tokenizer.decode(prompt[-_TAIL_TOKENS:], skip_special_tokens=False)
        return tail.rstrip().endswith(OPENING)

    def _special_ids(self, marks: Sequence[str]) -> dict[str, int]:
        """The marks that are control tokens, with their ids."""
        ids = {mark: self._tokenizer.token_to_id(mark) for mark in marks}
        return {
            mark: token_id
            for mark, token_id in ids.items()
            if token_id is not None and self._tokenizer.is_special(token_id)
        }


def _prepared(
    tools: ToolUse, choose: Callable[[str, Mapping[str, object]], Mapping[str, object]]
) -> dict[str, dict[str, object]]:
    """The schema of each function that may be called, as the grammar engine reads it.

    Raises:
        InvalidRequestError: One cannot be enforced; names the tool and the place in its schema.
    """
    prepared: dict[str, dict[str, object]] = {}
    for index, name in enumerate(tools.names):
        if name in tools.schemas:
            schema = choose(name, tools.schemas[name])
            where = f"tools[{index}].function.parameters"
            prepared[name] = blaming(where, partial(prepare_schema, schema))
    return prepared


def _constraint(source: GrammarSource, param: str) -> Constraint:
    """A grammar that is not too large to be compiled."""
    blaming(param, lambda: check_size(source.text))
    return Constraint(source, param)


def _container(lark: str, side_grammars: Sequence[Mapping[str, object]]) -> str:
    return json.dumps({"grammars": [{"lark_grammar": lark}, *side_grammars]})


def _description(tools: ToolUse, tool_format: ToolFormat) -> str:
    """Tools in words, for a model whose template has none."""
    functions = "\n".join(json.dumps(one["function"]) for one in tools.definitions)
    example = f'{{"name": "the function\'s name", "{tool_format.arguments}": {{...}}}}'
    return (
        f"You can call these functions:\n{functions}\n"
        f"To call one, answer with nothing but a JSON object: {example}"
    )


def _spelt_out(turn: dict[str, object], tool_format: ToolFormat | None) -> dict[str, object]:
    """An assistant's turn with its calls as the text they were."""
    calls = turn.get("tool_calls")
    if not isinstance(calls, list):
        return turn
    key = "arguments" if tool_format is None else tool_format.arguments
    texts = [
        f'{{"name": {json.dumps(call["function"]["name"])}, "{key}": '
        f"{call['function']['arguments'] or '{}'}}}"
        for call in calls
    ]
    kept = {name: value for name, value in turn.items() if name != "tool_calls"}
    content = [str(turn["content"])] if turn.get("content") else []
    return {**kept, "content": "\n".join([*content, *texts])}
