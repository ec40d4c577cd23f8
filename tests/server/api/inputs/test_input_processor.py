"""server.api.inputs.input_processor: from a parsed body to the engine's requests, or a 400."""

from __future__ import annotations

import dataclasses

import pytest
from fakes import MAX_MODEL_LEN, VOCAB_SIZE, FakeChatTemplate, FakeEngine

from server.api.generation_call import GenerationCall
from server.api.inputs.input_processor import InputProcessor
from server.api.schemas.requests import ChatBody, CompletionBody, TokenizeBody, parse
from server.errors import ContextLengthError, InvalidRequestError, ModelNotFoundError

USER = {"role": "user", "content": "hi"}


def processor(engine: FakeEngine | None = None, **defaults: float) -> InputProcessor:
    engine = engine or FakeEngine()
    info = dataclasses.replace(engine.info, default_params=defaults)
    return InputProcessor(info, engine.tokenizer, engine.chat_template, grammars=engine.grammars)


def completion(prompt: object = "a", **body: object) -> GenerationCall:
    return processor().completion(parse(CompletionBody, {"prompt": prompt, **body}))


def chat(
    *messages: dict, template: FakeChatTemplate | None = None, **body: object
) -> GenerationCall:
    inputs = processor(FakeEngine(chat_template=template))
    return inputs.chat(parse(ChatBody, {"messages": [*messages], **body}))


def test_prompts_and_choices_become_requests_in_order():
    """Choice i of the answer is request i and draws from the stream (seed, i)."""
    call = completion(["a", "bc"], n=2, seed=7)
    assert [request.token_ids for request in call.requests] == [[97], [97], [98, 99], [98, 99]]
    assert [request.choice for request in call.requests] == [0, 1, 2, 3]
    assert {request.params.seed for request in call.requests} == {7} == {call.seed}
    assert len({request.request_id for request in call.requests}) == 4


def test_parameters_reach_the_engine():
    """What the client says is what the sampler is told."""
    params = completion(
        temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.2, logit_bias={"65": 3}, stop="x", stop_token_ids=[4], min_tokens=2,
        max_completion_tokens=9, ignore_eos=True, logprobs=3,
    ).requests[0].params  # fmt: skip
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 5, 0.1)
    assert (params.presence_penalty, params.frequency_penalty) == (1, -1)
    assert (params.repetition_penalty, params.logit_bias) == (1.2, {65: 3.0})
    assert (params.stop, params.stop_token_ids) == (("x",), {4})
    assert (params.min_tokens, params.max_tokens, params.ignore_eos) == (2, 9, True)
    assert (params.logprobs, params.prompt_logprobs) == (3, None)


def test_requests_carry_their_cache_options():
    """Priority, salt and both switches of the cache pass through."""
    request = completion(priority=-3, cache_salt="s", prefix_cache=False, use_cache=False).requests[
        0
    ]
    assert (request.priority, request.cache_salt) == (-3, "s")
    assert (request.prefix_cache, request.use_cache) == (False, False)


def test_the_checkpoints_defaults_fill_what_is_not_said():
    """A client's own value wins, even a neutral one."""
    inputs = processor(temperature=0.6, top_k=20)
    params = inputs.completion(parse(CompletionBody, {"prompt": "a"})).requests[0].params
    assert (params.temperature, params.top_k, params.top_p) == (pytest.approx(0.6), 20, 1.0)
    body = parse(CompletionBody, {"prompt": "a", "temperature": 1, "top_k": -1})
    params = inputs.completion(body).requests[0].params
    assert (params.temperature, params.top_k) == (1.0, 0)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"temperature": 1e-310}, {"temperature": 0.0}),
        ({"temperature": 1e-46}, {"temperature": 0.0}),
        ({"top_p": 0}, {"top_p": 1.0, "top_k": 1}),
        ({"top_k": 0}, {"top_k": 0}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": VOCAB_SIZE}, {"top_k": 0}),
        ({"stop": []}, {"stop": ()}),
    ],
)
def test_values_that_mean_off_or_greedy(body, expected):
    """All spellings of the same wish reach the sampler as one."""
    params = completion(**body).requests[0].params
    assert {name: getattr(params, name) for name in expected} == expected


def test_a_seed_is_drawn_for_each_call_without_one():
    """It is small enough for JavaScript to repeat."""
    seeds = {completion().seed for _ in range(20)}
    assert len(seeds) == 20
    assert max(seeds) < 2**53


def test_scoring_needs_no_room_for_a_token():
    """A prompt as long as the context can be scored; one token more cannot."""
    body = {"echo": True, "logprobs": 2, "max_tokens": 0}
    request = completion([65] * MAX_MODEL_LEN, **body).requests[0]
    assert (request.params.max_tokens, request.params.prompt_logprobs) == (0, 2)
    with pytest.raises(ContextLengthError):
        completion([65] * (MAX_MODEL_LEN + 1), **body)


@pytest.mark.parametrize("key", ["-1", "258", "abc", "1.0", "07", " 7", "\u0667", "1_0", "9" * 30])
def test_biases_need_ids_of_the_vocabulary(key):
    """A key in any other spelling is refused, not guessed."""
    with pytest.raises(InvalidRequestError) as error:
        completion(logit_bias={key: 1})
    assert error.value.param == "logit_bias"


def test_truncation_keeps_the_last_tokens():
    """It makes room before the context is checked."""
    call = completion("x" * 2000 + "ab", truncate_prompt_tokens=2, echo=True)
    assert call.prompts[0].token_ids == (97, 98)
    assert call.prompts[0].text == "ab"


def test_an_echo_repeats_the_prompt_as_it_was_given():
    """Text is not decoded from its tokens; ids are."""
    assert completion("é", echo=True).prompts[0].text == "é"
    assert completion([104, 105], echo=True).prompts[0].text == "hi"
    assert completion("a").prompts[0].text == ""


def test_messages_become_turns():
    """Developers are system, parts are lines, replayed calls and names are kept."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    request = chat(
        {"role": "developer", "content": "d"},
        {"role": "user", "content": parts},
        {"role": "user", "content": []},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
    ).requests[0]
    text = bytes(request.token_ids).decode()
    call_in_words = '{"name": "f", "arguments": {}}'  # as the template has none
    assert text == f"system:d;user:a\nb;user:;assistant:{call_in_words};tool:4;assistant:"


def test_template_options_reach_the_template():
    """Except those that are fields of the request themselves."""
    template = FakeChatTemplate()
    kwargs = {"enable_thinking": False}
    chat(USER, template=template, chat_template_kwargs=kwargs, reasoning_effort="low")
    assert template.kwargs == {"enable_thinking": False, "reasoning_effort": "low"}
    with pytest.raises(InvalidRequestError, match="must not set 'messages'"):
        chat(USER, chat_template_kwargs={"messages": []})


def test_a_hint_the_template_does_not_read_is_reported():
    """reasoning_effort changes nothing here, and that is said."""
    body = parse(ChatBody, {"messages": [USER], "reasoning_effort": "low"})
    assert processor().ignored_hints(body) == ("reasoning_effort",)
    body = parse(ChatBody, {"messages": [USER]})
    assert processor().ignored_hints(body) == ()


def test_strict_tools_are_reported_where_they_cannot_be_held():
    """A call that nobody required is told from text only by a mark before it."""
    function = {"name": "f", "strict": True}
    asked = {"messages": [USER], "tools": [{"type": "function", "function": function}]}
    marked = processor(FakeEngine(chat_template=FakeChatTemplate("tools <tool_call>")))
    assert processor().ignored_hints(parse(ChatBody, asked)) == ("tools[].function.strict",)
    assert marked.ignored_hints(parse(ChatBody, asked)) == ()
    required = parse(ChatBody, asked | {"tool_choice": "required"})
    assert processor().ignored_hints(required) == ()


def test_other_models_are_not_found():
    """The served name is named."""
    with pytest.raises(ModelNotFoundError, match="serves 'fake'"):
        completion(model="other")


def test_a_huge_text_is_refused_without_tokenising():
    """Its bytes prove that it cannot fit, whatever its tokens are."""
    engine = FakeEngine()
    engine.tokenizer.encode = None
    with pytest.raises(ContextLengthError, match="at least"):
        processor(engine).completion(parse(CompletionBody, {"prompt": "x" * 100_000}))
    body = parse(ChatBody, {"messages": [{"role": "user", "content": "x" * 100_000}]})
    with pytest.raises(ContextLengthError):
        processor(engine).chat(body)


def test_tokenize_takes_text_or_messages():
    """Exactly one of them."""
    inputs = processor()
    assert inputs.tokenize(parse(TokenizeBody, {"prompt": "hi"})) == [104, 105]
    assert inputs.tokenize(parse(TokenizeBody, {"prompt": ""})) == []
    assert inputs.tokenize(parse(TokenizeBody, {"messages": [USER]}))
    for body in ({}, {"prompt": "a", "messages": [USER]}):
        with pytest.raises(InvalidRequestError, match="either 'prompt' or 'messages'"):
            inputs.tokenize(parse(TokenizeBody, body))
