"""ChatTemplate: a conversation turned into the prompt that the model was trained on.

Prepares the messages as the reference implementation does, has the template rendered by a
TemplateRenderer, and keeps users' text from becoming control tokens. Decides nothing about HTTP.
Reference: `apply_chat_template` of transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from model.errors import TemplateError
from model.text.content_forms import as_parts, roles_in_parts, shows_thoughts
from model.text.control_tokens import ControlTokens, Segment
from model.text.template_renderer import TemplateLimitError, TemplateRenderer
from model.tokenizer import Tokenizer

TemplateMessage = Mapping[str, object]

_CONTINUE_HERE = "CONTINUE_FINAL_MESSAGE_TAG "
"""Appended to the message to be continued; the prompt ends where it shows up."""
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
"""What templates call the thoughts of a turn."""
_NO_TOKENS = ControlTokens(())


class ChatTemplate:
    """The chat template of one model.

    Args:
        source: The Jinja text, or several by name: "default", and "tool_use" for requests with
            tools.
        special_tokens: What the template may refer to by name: bos_token, eos_token and so on.

    Raises:
        TemplateError: The text is no template.
    """

    def __init__(self, source: str | Mapping[str, str], **special_tokens: str) -> None:
        self._sources = {"default": source} if isinstance(source, str) else dict(source)
        self._special_tokens = special_tokens
        self._renderer = TemplateRenderer()
        for text in self._sources.values():
            self._renderer.check(text)
        self._in_parts = {name: self._ask_for_parts(name) for name in self._sources}

    def render(
        self,
        messages: Sequence[TemplateMessage],
        *,
        control_tokens: ControlTokens = _NO_TOKENS,
        tools: Sequence[TemplateMessage] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: object,
    ) -> list[Segment]:
        """Render a conversation.

        Args:
            messages: The turns, plain JSON data; content is passed on as it is, text or parts.
            control_tokens: Spellings that only the template may use.
            tools: Function schemas.
            add_generation_prompt: End with the header of an assistant turn.
            continue_final_message: Leave the last message open instead.
            kwargs: Further variables for the template.

        Returns:
            The prompt; segments that are not the template's must stay text.

        Raises:
            TemplateError: The template refuses the messages, in its own words, or fails.
        """
        if continue_final_message and add_generation_prompt:
            raise TemplateError(
                "continue_final_message and add_generation_prompt exclude each other"
            )
        last_text = ""
        if continue_final_message:
            messages, last_text = _tag_final_text(messages)
        variables = {
            **self._variables(add_generation_prompt=add_generation_prompt),
            "tools": control_tokens.mark(tools),
            **{name: control_tokens.mark(value) for name, value in kwargs.items()},
        }
        name = self._choose(has_tools=tools is not None)
        source, in_parts = self._sources[name], self._in_parts[name] or frozenset()
        failure: TemplateError | None = None
        for variant in _variants(messages):
            turns = control_tokens.mark_all(_in_parts(variant, in_parts))
            try:
                text = self._renderer.render(source, {**variables, "messages": turns})
                if continue_final_message:
                    text = _cut_at_tag(text, last_text)
            except TemplateLimitError:
                raise
            except TemplateError as error:
                failure = failure or error
            else:
                return control_tokens.split(text)
        assert failure is not None, "there is at least one variant"
        raise failure

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[TemplateMessage],
        *,
        tools: Sequence[TemplateMessage] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: object,
    ) -> list[int]:
        """Render a conversation as `render` does and turn it into ids.

        The ids are those of the reference, except that a control token spelt in a message is the
        ordinary text it is.

        Raises:
            TemplateError: The template refuses the messages or fails.
            TokenizerError: A message is not text.
        """
        segments = self.render(
            messages,
            control_tokens=tokenizer.control_tokens,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **kwargs,
        )
        return tokenizer.encode_segments(segments)

    @property
    def source(self) -> str:
        """All that the templates say, to look for what they know."""
        return "\n".join(self._sources.values())

    def mentions(self, name: str) -> bool:
        """Tell whether a variable of this name occurs in any of the templates."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        return any(word.search(source) for source in self._sources.values())

    def _variables(self, *, add_generation_prompt: bool) -> dict[str, object]:
        """What every rendering has."""
        return {
            **self._special_tokens,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }

    def _ask_for_parts(self, name: str) -> frozenset[str] | None:
        """The roles whose content one of the templates reads as parts; None if it shows none."""
        variables = self._variables(add_generation_prompt=False)
        source = self._sources[name]
        return roles_in_parts(
            lambda turns: self._renderer.render(source, {**variables, "messages": turns})
        )

    @cached_property
    def shows_reasoning(self) -> bool:
        """Whether thoughts of earlier turns reach the prompt."""
        return shows_thoughts(self._written) or shows_thoughts(
            lambda turns: self._written(turns, tools=[])
        )

    def _written(
        self, turns: Sequence[TemplateMessage], tools: Sequence[TemplateMessage] | None = None
    ) -> str:
        """The whole prompt as text."""
        return "".join(segment.text for segment in self.render(turns, tools=tools))

    @property
    def shows_users(self) -> bool:
        """Whether what users say reaches the prompt."""
        return all(roles is not None for roles in self._in_parts.values())

    def _choose(self, *, has_tools: bool) -> str:
        """Choose among the templates of a model as the reference does."""
        name = "tool_use" if has_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            raise TemplateError(
                f"the model has several chat templates ({', '.join(sorted(self._sources))}) "
                "and none is the default"
            )
        return name


def read_folder_templates(path: Path) -> str | dict[str, str] | None:
    """Return the chat templates of a folder in Hugging Face layout, None without any.

    chat_template.jinja and additional_chat_templates/*.jinja come before the entry in
    tokenizer_config.json, which is a text or a list of named ones.

    Raises:
        TemplateError: A file cannot be read.
    """
    try:
        found = _template_files(path) or _template_entry(path)
    except (OSError, ValueError) as error:
        raise TemplateError(f"the chat template in {path} cannot be read: {error}") from error
    return found["default"] if set(found) == {"default"} else found or None


def _template_files(path: Path) -> dict[str, str]:
    files = {file.stem: file for file in sorted(path.glob("additional_chat_templates/*.jinja"))}
    if (main := path / "chat_template.jinja").is_file():
        files["default"] = main
    return {name: file.read_text(encoding="utf-8") for name, file in files.items()}


def _template_entry(path: Path) -> dict[str, str]:
    for name in ("chat_template.json", "tokenizer_config.json"):
        file = path / name
        content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        entry = content.get("chat_template") if isinstance(content, dict) else None
        if isinstance(entry, str):
            return {"default": entry}
        if isinstance(entry, list):
            return {str(item["name"]): str(item["template"]) for item in entry}
    return {}


def read_gguf_templates(metadata: Mapping[str, object]) -> str | dict[str, str] | None:
    """Return the chat templates in the metadata of a GGUF file, None without any."""
    key = "tokenizer.chat_template"
    found = {
        "default" if name == key else name.removeprefix(f"{key}."): value
        for name, value in metadata.items()
        if isinstance(value, str) and (name == key or name.startswith(f"{key}."))
    }
    return found["default"] if set(found) == {"default"} else found or None


def _variants(messages: Sequence[TemplateMessage]) -> Iterator[list[dict[str, object]]]:
    """Yield the messages as the reference passes them, then milder forms for older templates.

    The reference leaves out what is null and hands the arguments of a call over as an object; some
    templates need the content to be text at least, and some the arguments to be text.
    """
    plain = [_without_nulls(message) for message in messages]
    with_objects = [{**turn, **_parsed_calls(turn)} for turn in plain]
    yield with_objects
    missing = any("content" not in turn for turn in plain)
    if missing:
        yield [{"content": "", **turn} for turn in with_objects]
    if with_objects != plain:
        yield [{"content": "", **turn} for turn in plain]
    merged = _with_one_system_turn(with_objects)
    if len(merged) < len(with_objects):
        yield [{"content": "", **turn} for turn in merged]


def _with_one_system_turn(turns: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """The turns with all that systems say at the beginning, for templates that take it only there.

    Turns of parts are left where they are.
    """
    said = [turn for turn in turns if turn.get("role") == "system"]
    texts = [turn.get("content") for turn in said]
    if not said or not all(isinstance(text, str) for text in texts):
        return list(turns)
    first = {**said[0], "content": "\n\n".join(filter(None, map(str, texts)))}
    return [first, *(turn for turn in turns if turn.get("role") != "system")]


def _without_nulls(message: TemplateMessage) -> dict[str, object]:
    """Leave out what is null, and give reasoning the names that templates know it by."""
    turn = {name: value for name, value in message.items() if value is not None}
    reasoning = next((turn[name] for name in REASONING_NAMES if name in turn), None)
    if reasoning is not None:
        turn = {"thinking": reasoning, **turn, "reasoning_content": reasoning}
    return turn


def _in_parts(turns: Sequence[dict[str, object]], roles: frozenset[str]) -> list[dict[str, object]]:
    """The turns with the content of these roles as parts."""
    return [
        {**turn, "content": as_parts(turn["content"])}
        if turn.get("role") in roles and "content" in turn
        else turn
        for turn in turns
    ]


def _parsed_calls(turn: Mapping[str, object]) -> dict[str, object]:
    """Return the turn's tool calls with arguments as objects where they are the JSON of one."""
    calls = turn.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return {}
    return {"tool_calls": [_parsed_call(call) for call in calls]}


def _parsed_call(call: object) -> object:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else None
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        return call
    return {**call, "function": {**function, "arguments": parsed}}


def _tag_final_text(messages: Sequence[TemplateMessage]) -> tuple[list[TemplateMessage], str]:
    """Append the tag to the text that is to be continued, and return that text as well."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        return [*messages[:-1], {**messages[-1], "content": content + _CONTINUE_HERE}], content
    parts = list(content) if isinstance(content, list | tuple) else []
    for index in reversed(range(len(parts))):
        text = parts[index].get("text") if isinstance(parts[index], Mapping) else None
        if isinstance(text, str):
            parts[index] = {**parts[index], "text": text + _CONTINUE_HERE}
            return [*messages[:-1], {**messages[-1], "content": parts}], text
    raise TemplateError("continue_final_message needs text in the last message")


def _cut_at_tag(rendered: str, last_text: str) -> str:
    """End the prompt at the tag; if the template trimmed the tag, trim what is before it too."""
    at = rendered.rfind(_CONTINUE_HERE.strip())
    written = "".join(segment.text for segment in ControlTokens.split(rendered))
    if at < 0 or last_text.strip() not in written:
        raise TemplateError(
            "continue_final_message is set, but the template does not keep the last message"
        )
    prompt = rendered[:at]
    return prompt if rendered.startswith(_CONTINUE_HERE, at) else prompt.rstrip()
