"""The vocabularies and chat templates of real models, held to recorded ids and transformers.

The suite is not part of this repository: `.ci/fetch-reference-suite FOLDER` fetches it, and
KVSERVE_LLAMA_CPP_MODELS=FOLDER names it to these tests.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from nasty_text import NASTY_TEXTS
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
from transformers.utils.chat_template_utils import render_jinja_template

from model.chat_template import ChatTemplate
from model.errors import TemplateError, TokenizerError
from model.formats.gguf_file import GGUFFile
from model.text.pre_tokenizers import PRE_TOKENIZERS
from model.tokenizer import Tokenizer

NAME = "KVSERVE_LLAMA_CPP_MODELS"
FOLDER = Path(os.environ.get(NAME, "/nowhere"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NAME not in os.environ, reason=f"{NAME} names no reference suite"),
]

VOCABULARIES = sorted(FOLDER.glob("ggml-vocab-*.gguf.inp"))
TEMPLATES = sorted(FOLDER.glob("templates/*.jinja"))
SUPPORTED_MODELS = {"gpt2", "llama"}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The "weather" of a place, <é>',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where"},
                "unit": {"type": "string", "enum": ["c", "f"]},
            },
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "call_1abc",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": 'Ro"me', "days": 1.5}},
}


def turn(role: str, content: object, **more: object) -> dict[str, object]:
    return {"role": role, "content": content, **more}


CONVERSATIONS = {
    "one turn": ([turn("user", "hi")], {}),
    "system and white space": (
        [
            turn("system", "Be brief. é漢"),
            turn("user", "  a  "),
            turn("assistant", "b\n\n"),
            turn("user", 'c "q" <x>'),
        ],
        {},
    ),
    "tools": ([turn("user", "weather?")], {"tools": [TOOL]}),
    "tool calls": (
        [
            turn("user", "weather?"),
            turn("assistant", "", tool_calls=[CALL]),
            turn("tool", "4 <deg>", tool_call_id="call_1abc", name="get_weather"),
            turn("assistant", "It is 4."),
            turn("user", "thanks"),
        ],
        {"tools": [TOOL]},
    ),
    "reasoning": (
        [turn("user", "x"), turn("assistant", "ok", reasoning_content="why"), turn("user", "y")],
        {"enable_thinking": False},
    ),
    "no generation prompt": (
        [turn("user", "x"), turn("assistant", "<think>why</think>ok")],
        {"add_generation_prompt": False},
    ),
    "continued": (
        [turn("user", "x"), turn("assistant", "ok  it ")],
        {"add_generation_prompt": False, "continue_final_message": True},
    ),
    "parts": (
        [turn("user", [{"type": "text", "text": "p1"}, {"type": "text", "text": "p2"}])],
        {},
    ),
}


def test_the_suite_is_there():
    """The folder holds vocabularies and templates."""
    assert len(VOCABULARIES) > 10
    assert len(TEMPLATES) > 40


@pytest.mark.parametrize("inputs", VOCABULARIES, ids=lambda path: path.name)
def test_recorded_ids(inputs):
    """Each text of the suite gives the recorded ids, or its vocabulary is refused by name."""
    metadata = GGUFFile.open(inputs.with_suffix("")).metadata
    kind, words = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre")
    if kind not in SUPPORTED_MODELS or (kind == "gpt2" and words not in PRE_TOKENIZERS):
        with pytest.raises(TokenizerError, match=f"'{words if kind == 'gpt2' else kind}'"):
            Tokenizer.from_gguf(metadata)
        return
    ours = Tokenizer.from_gguf(metadata)
    texts = inputs.read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = inputs.with_suffix(".out").read_text().split("\n")
    assert len(texts) >= 40
    for text, line in zip(texts, lines, strict=True):
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == [int(number) for number in line.split()], text
        assert ours.decode(ids) == text


@pytest.mark.parametrize("name", ["llama-spm"])
def test_scores_equal_sentencepiece(name):
    """A SentencePiece vocabulary gives the ids that SentencePiece gives with the same pieces."""
    metadata = GGUFFile.open(FOLDER / f"ggml-vocab-{name}.gguf").metadata
    ours, oracle = Tokenizer.from_gguf(metadata), sentencepiece_of(metadata)
    for text in NASTY_TEXTS:
        if "\x00" not in text:
            assert ours.encode(text, add_special_tokens=False) == oracle.encode(text), text


def sentencepiece_of(metadata: Mapping[str, object]) -> SentencePieceProcessor:
    """Write the pieces of a GGUF vocabulary as a SentencePiece model."""
    proto = sentencepiece_model_pb2.ModelProto()
    fields = (metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    for piece, score, kind in zip(*fields, strict=True):
        proto.pieces.add(piece=piece, score=score, type=kind)
    proto.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.BPE
    proto.trainer_spec.byte_fallback = True
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.remove_extra_whitespaces = False
    return SentencePieceProcessor(model_proto=proto.SerializeToString())


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_templates_render_as_transformers_renders_them(path):
    """Each conversation renders as in transformers, or both refuse it."""
    source = path.read_text()
    ours = ChatTemplate(source, **TOKENS)
    for name, (messages, more) in CONVERSATIONS.items():
        options = {"add_generation_prompt": True, **more}
        assert rendered(ours, messages, options) == expected(source, messages, options), name


def rendered(template: ChatTemplate, messages: list, options: dict[str, object]) -> str | None:
    try:
        return "".join(segment.text for segment in template.render(messages, **options))
    except TemplateError:
        return None


def expected(source: str, messages: list, options: dict[str, object]) -> str | None:
    try:
        (text,), _ = render_jinja_template(
            [copy.deepcopy(messages)], chat_template=source, **TOKENS, **copy.deepcopy(options)
        )
    except Exception:  # noqa: BLE001 - whatever a template raises
        return None
    return text
