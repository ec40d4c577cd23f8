"""PromptEncoder: the turns of a chat become token ids.

The template's word is final: what it refuses is refused in its own sentence. A text that cannot fit
is found by its bytes. Computes for as long as tokenising takes and may run in any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from model.errors import TemplateError, TokenizerError
from server.api.inputs.chat_turns import chat_turns
from server.api.protocols import ChatTemplateLike, TokenizerLike
from server.api.schemas.requests import Message
from server.api.structured_output.output_form import NO_TOOLS, OutputForms, ToolUse
from server.engine.engine_info import EngineInfo
from server.errors import ContextLengthError, InvalidRequestError

_RESERVED_KWARGS = frozenset(
    {"self", "tokenizer", "messages", "tools", "control_tokens", "add_generation_prompt",
     "continue_final_message"}
)  # fmt: skip
"""What a client may not hand to the template, as it has a field of its own or none."""
_PER_TOKEN = 8
"""Characters that a token seldom has."""
_AT_CUT = 64
"""Tokens by which the beginning of a text may differ from the same part of the whole."""
MAX_NORMALISATION = 4
"""No Unicode normalisation makes a text shorter than this part of its UTF-8 bytes."""


class PromptEncoder:
    """Makes the ids that the model reads.

    Args:
        info: Facts about the model.
        tokenizer: The model's.
        chat_template: The model's, if it has one.
        forms: Tells a chat of its tools where the template knows none.
    """

    def __init__(
        self,
        info: EngineInfo,
        tokenizer: TokenizerLike,
        chat_template: ChatTemplateLike | None,
        *,
        forms: OutputForms,
    ) -> None:
        self._info = info
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._forms = forms

    def text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text.

        Raises:
            InvalidRequestError: It cannot be tokenised.
        """
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except TokenizerError as error:
            raise InvalidRequestError(f"'prompt' cannot be used: {error}", param="prompt") from None

    def chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool | None,
        continue_final_message: bool,
        kwargs: Mapping[str, object],
        truncates: bool,
        tools: ToolUse = NO_TOOLS,
    ) -> list[int]:
        """The ids of a chat.

        Args:
            messages: The turns.
            add_generation_prompt: End with the header of an assistant turn; None is the default.
            continue_final_message: Leave the last message open.
            kwargs: What the client hands to the template.
            truncates: Whether a chat longer than the context is no reason to refuse it.
            tools: What the model may call.

        Raises:
            InvalidRequestError: There is no template, it refuses, or the options contradict.
            ContextLengthError: The text alone proves that it cannot fit.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "'continue_final_message' needs 'add_generation_prompt' to be false (got true).",
                param="continue_final_message",
            )
        if add_generation_prompt is None:
            add_generation_prompt = not continue_final_message
        if self._chat_template is None:
            raise InvalidRequestError(
                f"The model '{self._info.model_name}' has no chat template. "
                "Use /v1/completions instead.",
                param="messages",
                code="no_chat_template",
            )
        if not self._chat_template.shows_users:
            raise InvalidRequestError(
                f"The chat template of '{self._info.model_name}' does not show what users say. "
                "Use /v1/completions instead.",
                param="messages",
                code="no_chat_template",
            )
        turns = self._forms.turns_with_tools(chat_turns(messages), tools)
        shown = list(tools.definitions) if self._forms.describes_tools else []
        if not truncates:
            self.check_length([str(turn["content"]) for turn in turns], "messages")
        reserved = kwargs.keys() & _RESERVED_KWARGS
        if reserved:
            raise InvalidRequestError(
                f"'chat_template_kwargs' must not set '{min(reserved)}'.",
                param="chat_template_kwargs",
            )
        try:
            return self._chat_template.encode(
                self._tokenizer,
                turns,
                tools=shown or None,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **kwargs,
            )
        except TemplateError as error:
            later = [i for i, turn in enumerate(turns) if turn["role"] == "system" and i > 0]
            place = f" Role 'system' is not supported at 'messages[{later[0]}]'." if later else ""
            raise InvalidRequestError(
                f"The chat template refuses the messages: {error}{place}", param="messages"
            ) from None
        except TokenizerError as error:
            raise InvalidRequestError(
                f"'messages' cannot be used: {error}", param="messages"
            ) from None

    def template_reads(self, name: str) -> bool:
        """Whether there is a template that looks at this variable."""
        return self._chat_template is not None and self._chat_template.mentions(name)

    @property
    def reads_reasoning(self) -> bool:
        """Whether there is a template that shows the thoughts of earlier turns."""
        return self._chat_template is not None and self._chat_template.shows_reasoning

    def check_length(self, texts: Sequence[str], param: str) -> None:
        """Refuse a text that cannot fit, before all of it is tokenised.

        A token covers at most as many bytes as the longest in the vocabulary, of a text that
        normalisation may have shortened before. Where that proves nothing, a part of the text may
        have too many tokens already.

        Raises:
            ContextLengthError: It proves so.
        """
        limit = self._info.max_model_len
        num_normalised = sum(len(text.encode()) for text in texts) // MAX_NORMALISATION
        if num_normalised <= limit:  # even with a token for each byte
            return
        least = num_normalised // self._longest_token
        if least > limit:
            raise ContextLengthError(
                limit=limit, prompt=least, completion=1, param=param, exact=False
            )
        for text in texts:
            self._check_beginnings(text, param)

    def _check_beginnings(self, text: str, param: str) -> None:
        """Refuse a text by its beginnings, each several times as long as the one before."""
        limit = self._info.max_model_len
        size = _PER_TOKEN * limit
        while size < len(text):
            # What stands at the cut may be other tokens in the whole text.
            least = len(self.text(text[:size], add_special_tokens=False)) - _AT_CUT
            if least > limit:
                raise ContextLengthError(
                    limit=limit, prompt=least, completion=1, param=param, exact=False
                )
            size *= _PER_TOKEN

    @cached_property
    def _longest_token(self) -> int:
        """Bytes of the longest token."""
        ids = range(self._tokenizer.vocab_size)
        return max(len(self._tokenizer.token_bytes(token_id)) for token_id in ids) or 1
