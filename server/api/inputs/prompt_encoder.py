"""PromptEncoder: the turns of a chat become token ids.

The template's word is final: what it refuses is refused in its own sentence. A text that cannot fit
is found by its bytes. Computes for as long as tokenising takes and may run in any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from model.errors import TemplateError
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

    def chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, object],
        truncates: bool,
        tools: ToolUse = NO_TOOLS,
    ) -> list[int]:
        """The ids of a chat.

        Args:
            messages: The turns.
            add_generation_prompt: End with the header of an assistant turn.
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
        if self._chat_template is None:
            raise InvalidRequestError(
                f"The model '{self._info.model_name}' has no chat template. "
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
            raise InvalidRequestError(
                f"The chat template refuses the messages: {error}", param="messages"
            ) from None

    def template_reads(self, name: str) -> bool:
        """Whether there is a template that looks at this variable."""
        return self._chat_template is not None and self._chat_template.mentions(name)

    def check_length(self, texts: Sequence[str], param: str) -> None:
        """Refuse a text whose bytes alone prove that its tokens cannot fit.

        A token covers at most as many bytes as the longest in the vocabulary, of a text that
        normalisation may have shortened before. So a huge body costs no tokenising.

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

    @cached_property
    def _longest_token(self) -> int:
        """Bytes of the longest token."""
        ids = range(self._tokenizer.vocab_size)
        return max(len(self._tokenizer.token_bytes(token_id)) for token_id in ids) or 1
