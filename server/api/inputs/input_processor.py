"""InputProcessor: a parsed body becomes a prompt, token ids and checked engine requests.

Whatever is wrong with a request and can be known before it runs is found here, and said with the
field, the bound and the value. Its methods compute for as long as tokenising takes and may run in
any thread; they never touch the engine, only facts about the model that do not change.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from server.api.generation_call import AnswerOptions, EncodedPrompt, GenerationCall
from server.api.inputs.chat_turns import REASONING
from server.api.inputs.prompt_encoder import PromptEncoder
from server.api.inputs.sampling_fields import (
    bad_word_ids,
    check_token_ids,
    max_tokens,
    sampling_params,
)
from server.api.protocols import ChatTemplateLike, TokenizerLike
from server.api.schemas.requests import (
    MAX_SEQUENCES,
    Body,
    ChatBody,
    CompletionBody,
    GenerationBody,
    TokenizeBody,
)
from server.api.structured_output.answer_rules import blaming
from server.api.structured_output.output_form import OutputForm, OutputForms, ToolUse
from server.api.transport.exchange import chance, new_call_id
from server.engine.engine_info import EngineInfo
from server.engine.grammars.grammar import GrammarCompiler
from server.errors import ContextLengthError, InvalidRequestError, ModelNotFoundError
from server.request import Request

DEFAULT_COMPLETION_TOKENS = 16
"""What a completion may generate if it does not say, as in the OpenAI reference."""


class InputProcessor:
    """Checks requests against the model.

    Args:
        info: Facts about the model.
        tokenizer: The model's.
        chat_template: The model's, if it has one.
        grammars: Compiles what constrains an answer.
        tool_call_parser: How the model writes tool calls; see ServerConfig.
    """

    def __init__(
        self,
        info: EngineInfo,
        tokenizer: TokenizerLike,
        chat_template: ChatTemplateLike | None,
        *,
        grammars: GrammarCompiler,
        tool_call_parser: str = "auto",
    ) -> None:
        self._info = info
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._forms = OutputForms(tokenizer, chat_template, tool_call_parser=tool_call_parser)
        self._encoder = PromptEncoder(info, tokenizer, chat_template, forms=self._forms)

    def completion(self, body: CompletionBody) -> GenerationCall:
        """Make a call of a completions request.

        Raises:
            InvalidRequestError: It cannot be served as it is.
        """
        self.check_model(body.model)
        scoring = max_tokens(body) == 0
        if scoring and not body.echo:
            raise InvalidRequestError(
                "'max_tokens' must be at least 1 (got 0); 0 scores the prompt and needs 'echo'.",
                param="max_tokens",
            )
        texts, id_lists = _prompt_forms(body)
        _check_sequences(len(texts) + len(id_lists), body.n)
        encoded = [self._encode_prompt(text, body) for text in texts]
        encoded += [self._checked_ids(ids, body) for ids in id_lists]
        prompts = [
            EncodedPrompt(token_ids=tuple(ids), text=self._echo_text(body, ids, index, texts))
            for index, ids in enumerate(encoded)
        ]
        form = self._forms.form(body)
        options = _answer_options(body, form, logprobs=body.logprobs, echo=body.echo)
        return self._call(body, prompts, options, form=form)

    def chat(self, body: ChatBody) -> GenerationCall:
        """Make a call of a chat request.

        Raises:
            InvalidRequestError: It cannot be served as it is.
        """
        self.check_model(body.model)
        if max_tokens(body) == 0:
            name = "max_completion_tokens" if body.max_tokens is None else "max_tokens"
            raise InvalidRequestError(f"'{name}' must be at least 1 (got 0).", param=name)
        if body.top_logprobs and not body.logprobs:
            raise InvalidRequestError(
                f"'top_logprobs' needs 'logprobs' to be true (got {body.top_logprobs}).",
                param="top_logprobs",
            )
        tools = self._forms.tool_use(body)
        token_ids = self._chat_ids(body, tools, truncates=body.truncate_prompt_tokens is not None)
        prompt = EncodedPrompt(token_ids=tuple(_truncate(token_ids, body)))
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        form = self._forms.form(body, tools, prompt=prompt.token_ids)
        options = _answer_options(body, form, logprobs=logprobs)
        return self._call(body, [prompt], options, form=form)

    def constrain(self, call: GenerationCall, is_over: threading.Event | None = None) -> None:
        """Compile the grammar of a call for its requests; takes up to seconds.

        Args:
            call: Not handed over yet.
            is_over: Set when nobody waits for it any more.

        Raises:
            InvalidRequestError: The grammar is invalid, or takes too much; names the field.
        """
        constraint = call.constraint
        if constraint is None:
            return
        grammar = blaming(
            constraint.param, lambda: self._grammars.compile(constraint.source, is_over)
        )
        for request in call.requests:
            request.grammar = grammar.copy()

    def is_compiled(self, call: GenerationCall) -> bool:
        """Whether the grammar of a call is known, so that compiling it takes no time."""
        return call.constraint is None or self._grammars.knows(call.constraint.source)

    def count_tokens(self, body: ChatBody) -> int:
        """How many tokens the prompt of a chat has, whether they fit or not.

        Raises:
            InvalidRequestError: The template refuses, or the tools contradict.
        """
        self.check_model(body.model)
        return len(self._chat_ids(body, self._forms.tool_use(body), truncates=True))

    def tokenize(self, body: TokenizeBody) -> list[int]:
        """The ids that a completion or a chat of this text would count.

        Raises:
            InvalidRequestError: Not exactly one of prompt and messages, or the template refuses.
        """
        self.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequestError("Give either 'prompt' or 'messages'.", param="prompt")
        if body.messages is not None:
            chat = ChatBody(
                messages=body.messages,
                tools=body.tools,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                chat_template_kwargs=body.chat_template_kwargs,
            )
            return self._chat_ids(chat, self._forms.tool_use(chat), truncates=True)
        return self._encoder.text(body.prompt or "", add_special_tokens=body.add_special_tokens)

    def ignored_hints(self, body: Body) -> tuple[str, ...]:
        """Fields that work where the template reads them, and here it does not."""
        if not isinstance(body, ChatBody):
            return ()
        reads = self._encoder.template_reads
        unread = [
            f"chat_template_kwargs.{name}" for name in body.chat_template_kwargs if not reads(name)
        ]
        if body.reasoning_effort is not None and not reads("reasoning_effort"):
            unread.append("reasoning_effort")
        if any(turn.reasoning_content or turn.reasoning for turn in body.messages):
            unread += () if self._encoder.reads_reasoning else (REASONING,)
        is_free = body.tool_choice == "auto" and not self._forms.enforces_strict
        if is_free and any(tool.function.strict for tool in body.tools):
            unread.append("tools[].function.strict")
        return tuple(unread)

    def check_model(self, model: str | None) -> None:
        """Refuse a model that is not served here; none at all means the one there is.

        Raises:
            ModelNotFoundError: The name is another one.
        """
        if model is not None and model != self._info.model_name:
            raise ModelNotFoundError(
                f"The model '{model[:200]}' does not exist. This server serves "
                f"'{self._info.model_name}'.",
                param="model",
            )

    def _chat_ids(self, body: ChatBody, tools: ToolUse, *, truncates: bool) -> list[int]:
        """The ids of a chat request's messages; see `PromptEncoder.chat`."""
        kwargs = dict(body.chat_template_kwargs)
        if body.reasoning_effort is not None:
            kwargs.setdefault("reasoning_effort", body.reasoning_effort)
        return self._encoder.chat(
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            kwargs=kwargs,
            truncates=truncates,
            tools=tools,
        )

    def _encode_prompt(self, text: str, body: CompletionBody) -> list[int]:
        if body.truncate_prompt_tokens is None:
            self._encoder.check_length([text], "prompt")
        return _truncate(self._encoder.text(text), body)

    def _checked_ids(self, ids: Sequence[int], body: CompletionBody) -> list[int]:
        check_token_ids(ids, self._info, "prompt")
        return _truncate(list(ids), body)

    def _echo_text(
        self, body: CompletionBody, ids: Sequence[int], index: int, texts: Sequence[str]
    ) -> str:
        """The prompt as the answer repeats it: as it was given, or what the ids say."""
        if not body.echo:
            return ""
        if texts and body.truncate_prompt_tokens is None:
            return texts[index]
        return self._tokenizer.decode(ids, skip_special_tokens=body.skip_special_tokens)

    def _call(
        self,
        body: GenerationBody,
        prompts: Sequence[EncodedPrompt],
        options: AnswerOptions,
        *,
        form: OutputForm,
    ) -> GenerationCall:
        """Put the engine's requests together, one for each prompt and choice."""
        prefix = "chatcmpl" if isinstance(body, ChatBody) else "cmpl"
        call_id = new_call_id(prefix)
        seed = body.seed if body.seed is not None else chance().bits(53)
        bad_words = bad_word_ids(body.bad_words, self._tokenizer)
        param = "messages" if prefix == "chatcmpl" else "prompt"
        requests: list[Request] = []
        for prompt in prompts:
            room = self._completion_tokens(body, len(prompt.token_ids), param)
            params = sampling_params(
                body, self._info, options=options, seed=seed, max_tokens=room, bad_words=bad_words
            )
            for _ in range(body.n):
                index = len(requests)
                request = Request(
                    request_id=f"{call_id}-{index}",
                    token_ids=list(prompt.token_ids),
                    params=params,
                    choice=index,
                    priority=body.priority,
                    cache_salt=body.cache_salt,
                    prefix_cache=body.prefix_cache,
                    use_cache=body.use_cache,
                )
                requests.append(request)
        return GenerationCall(
            id=call_id,
            created=chance().began,
            model=self._info.model_name,
            seed=seed,
            n=body.n,
            prompts=tuple(prompts),
            requests=tuple(requests),
            options=options,
            answer_format=form.answer_format,
            constraint=form.constraint,
        )

    def _completion_tokens(self, body: GenerationBody, num_prompt_tokens: int, param: str) -> int:
        """How many tokens may be generated beside the prompt.

        Raises:
            InvalidRequestError: The prompt is empty.
            ContextLengthError: There is no room for what was asked.
        """
        if num_prompt_tokens == 0:
            raise InvalidRequestError(f"'{param}' must not be empty (got 0 tokens).", param=param)
        limit = self._info.max_model_len
        asked = max_tokens(body)
        needed = 1 if asked is None else asked
        if num_prompt_tokens + needed > limit:
            raise ContextLengthError(
                limit=limit, prompt=num_prompt_tokens, completion=needed, param=param
            )
        if asked is not None:
            return asked
        rest = limit - num_prompt_tokens
        is_chat = isinstance(body, ChatBody)
        return rest if is_chat else min(rest, DEFAULT_COMPLETION_TOKENS)


def _prompt_forms(body: CompletionBody) -> tuple[list[str], list[list[int]]]:
    """The prompts as texts and as lists of ids; one of the two is empty."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt], []
    texts = [entry for entry in prompt if isinstance(entry, str)]
    id_lists = [entry for entry in prompt if isinstance(entry, list)]
    ids = [entry for entry in prompt if isinstance(entry, int)]
    return texts, [*id_lists, *([ids] if ids else [])]


def _check_sequences(num_prompts: int, n: int) -> None:
    if num_prompts * n > MAX_SEQUENCES:
        raise InvalidRequestError(
            f"'n' times the number of prompts must be at most {MAX_SEQUENCES} "
            f"(got {n} x {num_prompts}).",
            param="n",
        )


def _truncate(token_ids: list[int], body: GenerationBody) -> list[int]:
    keep = body.truncate_prompt_tokens
    return token_ids if keep is None else token_ids[-keep:]


def _answer_options(
    body: GenerationBody, form: OutputForm, *, logprobs: int | None, echo: bool = False
) -> AnswerOptions:
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequestError(
            f"'prompt_logprobs' needs 'stream' to be false (got {body.prompt_logprobs}).",
            param="prompt_logprobs",
        )
    usage = bool(body.stream_options.include_usage)
    return AnswerOptions(
        stream=body.stream,
        include_usage=usage,
        continuous_usage=usage and bool(body.stream_options.continuous_usage_stats),
        echo=echo,
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs,
        return_token_ids=body.return_token_ids,
        skip_special_tokens=body.skip_special_tokens,
        include_stop=body.include_stop_str_in_output,
        shown_token_ids=form.shown_token_ids,
    )
