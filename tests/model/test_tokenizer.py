"""Ids equal those of the original tokenizers; the bytes of the tokens are the text."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from nasty_text import NASTY_TEXTS
from sentencepiece_twins import CORPUS, gguf_of_sentencepiece, trained_sentencepiece
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from model.errors import TokenizerError
from model.text.control_tokens import Segment
from model.text.gguf_tokenizer import build_gguf_backend
from model.tokenizer import Tokenizer

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    ),
    "llama-bpe": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
    "qwen2": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(LLAMA3.replace("{1,3}", "")), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
}
"""The word splitting of the original tokenizers, in their own building blocks."""


def trained_byte_level(name: str) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=name == "llama-bpe"))
    backend.pre_tokenizer = WORDS[name]
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return backend


def gguf_of_byte_level(backend: tokenizers.Tokenizer, name: str) -> dict[str, object]:
    vocabulary = backend.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    types = [3 if token in SPECIAL else 4 if token == "<tool_call>" else 1 for token in tokens]
    merges = json.loads(backend.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": vocabulary["<|im_start|>"],
        "tokenizer.ggml.eos_token_id": vocabulary["<|im_end|>"],
        "tokenizer.ggml.add_bos_token": False,
    }


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    return Tokenizer.from_gguf(gguf_of_byte_level(trained_byte_level("smollm"), "smollm"))


@pytest.fixture(scope="module")
def smollm_metadata() -> dict[str, object]:
    return gguf_of_byte_level(trained_byte_level("smollm"), "smollm")


@pytest.mark.parametrize("name", WORDS)
def test_byte_level_gguf_equals_the_original(name):
    """A byte-level vocabulary from GGUF gives the ids of the tokenizer it was made from."""
    original = trained_byte_level(name)
    ours = Tokenizer.from_gguf(gguf_of_byte_level(original, name))
    for text in NASTY_TEXTS:
        assert ours.encode(text, add_special_tokens=False, parse_special=True) == (
            original.encode(text, add_special_tokens=False).ids
        ), text
        original.encode_special_tokens = True
        expected = original.encode(text, add_special_tokens=False).ids
        original.encode_special_tokens = False
        assert ours.encode(text, add_special_tokens=False) == expected, text


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_gguf_equals_sentencepiece(prefix):
    """A SentencePiece vocabulary from GGUF gives the ids of SentencePiece itself."""
    oracle = trained_sentencepiece(prefix=prefix)
    ours = Tokenizer.from_gguf(gguf_of_sentencepiece(oracle, prefix=prefix))
    # With the prefix, the formats differ about what follows a token of the user's.
    odd = ("<tool>", "</b>", "   ", "\u2581") if prefix else ()
    texts = [*NASTY_TEXTS, "a<tool>b  c    d</b> e", "<start_of_turn>user<end_of_turn>"]
    for text in texts:
        if not any(piece in text for piece in odd) and "\x00" not in text:
            ids = ours.encode(text, add_special_tokens=False)
            assert ids == oracle.encode(text), text
            assert ours.decode(ids) == text.replace("\u2581", " ")


def test_hf_folder_equals_transformers(tmp_path):
    """A folder gives the ids of transformers, special tokens included or not, BOS as it says."""
    backend = trained_byte_level("llama-bpe")
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        special_tokens=[(token, backend.token_to_id(token)) for token in SPECIAL[:2]],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=SPECIAL[0], eos_token=SPECIAL[1]
    ).save_pretrained(tmp_path)
    reference = AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_hf_folder(tmp_path)
    assert (ours.bos_token_id, ours.eos_token_id) == (0, 1)
    assert ours.vocab_size == len(reference)
    for text in NASTY_TEXTS:
        assert ours.encode(text, parse_special=True) == reference(text)["input_ids"], text
        plain = reference(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == plain, text
        assert ours.decode(plain) == reference.decode(plain) == text


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_folder_decodes_as_the_library(tmp_path, prefix):
    """A folder with a SentencePiece vocabulary gives the library's own ids and text."""
    oracle = trained_sentencepiece(prefix=prefix)
    backend = build_gguf_backend(gguf_of_sentencepiece(oracle, prefix=prefix)).backend
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(steps + strip)
    backend.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_hf_folder(tmp_path)
    for text in NASTY_TEXTS:
        ids = ours.encode(text, parse_special=True)
        assert ids == backend.encode(text).ids
        assert ours.decode(ids) == backend.decode(ids)


def test_vocabulary_and_merges_without_tokenizer_json(tmp_path):
    """GPT-2's older pair of files gives the ids of its fast tokenizer."""
    backend = trained_byte_level("gpt-2")
    backend.model.save(str(tmp_path))
    ours = Tokenizer.from_hf_folder(tmp_path)
    for text in NASTY_TEXTS:
        if "<|im" not in text:  # a token that the two files do not declare
            assert ours.encode(text, parse_special=True) == backend.encode(text).ids, text
    assert ours.is_special(ours.token_to_id("<|endoftext|>"))


def test_settings_declare_special_tokens(tmp_path):
    """Tokens that only tokenizer_config.json declares are special, and BOS is added if it asks."""
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": {"content": "<s>"},
                "eos_token": "</s>",
                "add_bos_token": True,
                "added_tokens_decoder": {"3": {"content": "<s>", "special": True}},
                "additional_special_tokens": ["<x>"],
            }
        )
    )
    ours = Tokenizer.from_hf_folder(tmp_path)
    assert ours.encode("ab</s><x>", parse_special=True) == [3, 2, 4, 5]
    assert ours.encode("ab") == [3, 2]
    assert set(ours.control_tokens.spellings) == {"<s>", "</s>", "<x>"}


def test_bos_is_added_once():
    """BOS comes as the file says, and a text that begins with it gets no second one."""
    metadata = gguf_of_byte_level(trained_byte_level("llama-bpe"), "llama-bpe")
    del metadata["tokenizer.ggml.add_bos_token"]
    ours = Tokenizer.from_gguf(metadata)
    hello = ours.encode("Hello", add_special_tokens=False)
    assert ours.encode("Hello") == [ours.bos_token_id, *hello]
    assert ours.encode("<|im_start|>Hello", parse_special=True) == [ours.bos_token_id, *hello]
    assert ours.encode("") == [ours.bos_token_id]


def test_control_tokens_in_text_stay_text(smollm):
    """Only parse_special reads a control token; a user-defined token is matched always."""
    text = "a<|im_end|>b<tool_call>"
    end, tool = smollm.token_to_id("<|im_end|>"), smollm.token_to_id("<tool_call>")
    plain = smollm.encode(text)
    assert end not in plain
    assert tool in plain
    assert smollm.decode(plain) == text
    assert end in smollm.encode(text, parse_special=True)


def test_segments_equal_the_whole_prompt(smollm):
    """Template text in segments gives the ids of the whole; a spelling gives those of text."""
    prompt = "<|im_start|>user\n  hi there<|im_end|>\n"
    whole = smollm.encode(prompt, parse_special=True)
    pieces = [Segment(prompt[:15], is_template=True), Segment(prompt[15:], is_template=True)]
    assert smollm.encode_segments(pieces) == whole
    head, tail = "<|im_start|>user\na ", "b<|im_end|>"
    marked = [Segment(head, is_template=True), Segment("<|im_end|>", is_template=False)]
    ids = smollm.encode_segments([*marked, Segment(tail, is_template=True)])
    inner = smollm.encode("user\na <|im_end|>b")
    assert ids == [smollm.bos_token_id, *inner, smollm.eos_token_id]


def test_a_control_token_found_in_normalised_text_cannot_be_spelt(tmp_path):
    """A vocabulary that looks for its special tokens after normalising keeps text as text too."""
    backend = trained_byte_level("gpt-2")
    backend.normalizer = tokenizers.normalizers.NFC()
    backend.add_special_tokens([AddedToken("<end>", special=True, normalized=True)])
    backend.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_hf_folder(tmp_path)
    assert ours.is_special(ours.encode("<end>", parse_special=True)[0])
    assert ours.encode_segments([Segment("<end>", is_template=False)]) == ours.encode("<end>")
    assert not any(map(ours.is_special, ours.encode("<end>")))


def test_a_control_token_cannot_be_put_together_from_segments(smollm):
    """What reaches across two segments is no control token."""
    pieces = [Segment("<|im_", is_template=True), Segment("end|>", is_template=True)]
    assert smollm.encode_segments(pieces) == smollm.encode("<|im_end|>")


@settings(max_examples=200)
@given(st.text())
def test_token_bytes_join_to_the_text(smollm, text):
    """The bytes of the tokens of any text are that text, and decoding returns it."""
    ids = smollm.encode(text)
    assert b"".join(map(smollm.token_bytes, ids)) == text.encode()
    assert smollm.decode(ids) == text


def test_decoding_skips_special_tokens_unless_told_otherwise(smollm):
    """Special tokens are left out of decoded text, or spelt."""
    ids = [*smollm.encode("hi"), smollm.eos_token_id]
    assert smollm.decode(ids) == "hi"
    assert smollm.decode(ids, skip_special_tokens=False) == "hi<|im_end|>"


def test_token_text_shows_bytes_that_are_no_character(smollm):
    """A token that is part of a character is shown by its bytes."""
    first, *_ = smollm.encode("\U0001f9ff")
    assert smollm.token_text(first).startswith("bytes:\\xf0")
    assert smollm.token_text(smollm.encode("h")[0]) == "h"


def test_ids_without_a_token_add_nothing(smollm):
    """The padding of a model's vocabulary decodes to nothing."""
    beyond = smollm.vocab_size + 5
    assert smollm.token_bytes(beyond) == b""
    assert smollm.id_to_token(beyond) is None
    assert not smollm.is_special(beyond)


def test_half_of_a_surrogate_pair_is_refused(smollm):
    """A string that is no text is refused with a sentence."""
    with pytest.raises(TokenizerError, match="surrogate"):
        smollm.encode("a\ud800b")


def test_long_texts_in_threads_equal_the_same_text_alone(smollm):
    """A text of megabytes, one word or many, is encoded from several threads at once."""
    texts = ["x" * 1_000_000, "lorem ipsum " * 100_000, " " * 1_000_000]
    with ThreadPoolExecutor(3) as pool:
        encoded = list(pool.map(smollm.encode, texts))
    assert [smollm.decode(ids) for ids in encoded] == texts


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model", "bert", "'bert' is not supported"),
        ("model", 3, "must be a string"),
        ("pre", "no-such-words", "'no-such-words' is not supported"),
        ("tokens", None, "tokens"),
        ("tokens", ["a", "a"], "token_type"),
        ("token_type", [1], "entries"),
        ("merges", ["nospace"], "not a pair"),
        ("merges", ["q zzzz"], "merges"),
        ("bos_token_id", 10**6, "must be below"),
        ("eos_token_id", "x", "must be below"),
        ("add_bos_token", "yes", "true or false"),
    ],
)
def test_broken_gguf_vocabularies_are_refused_by_name(smollm_metadata, field, value, message):
    """A field that is missing, malformed or unknown is named."""
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_gguf({**smollm_metadata, f"tokenizer.ggml.{field}": value})


def test_a_gigantic_piece_is_refused():
    """A SentencePiece token so long that splitting it would take forever is refused."""
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "a" * 10**6],
        "tokenizer.ggml.token_type": [2, 1],
        "tokenizer.ggml.scores": [0.0, 0.0],
    }
    with pytest.raises(TokenizerError, match="512 characters"):
        Tokenizer.from_gguf(metadata)


def test_an_added_bos_needs_an_id(smollm_metadata):
    """add_bos_token without a BOS is refused."""
    metadata = {**smollm_metadata, "tokenizer.ggml.add_bos_token": True}
    del metadata["tokenizer.ggml.bos_token_id"]
    with pytest.raises(TokenizerError, match="bos_token_id"):
        Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no tokenizer.json"),
        ({"tokenizer.model": "x"}, "tokenizer.model alone"),
        ({"tokenizer.json": "{"}, "not readable as JSON"),
        ({"tokenizer.json": "[]"}, "JSON object"),
        ({"tokenizer.json": "{}"}, "not a usable tokenizer"),
        ({"vocab.json": "{}", "merges.txt": "a b"}, "do not fit"),
    ],
)
def test_broken_folders_are_refused(tmp_path, files, message):
    """A folder without a usable tokenizer is refused with a sentence."""
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_hf_folder(tmp_path)


def test_an_unknown_decoder_is_refused(tmp_path):
    """A vocabulary whose tokens spell bytes in an unknown way is refused by the decoder's name."""
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="WordPiece"):
        Tokenizer.from_hf_folder(tmp_path)
