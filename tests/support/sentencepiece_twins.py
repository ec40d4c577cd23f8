"""A vocabulary trained by SentencePiece itself, and the metadata a GGUF file has of it."""

from __future__ import annotations

import io

from nasty_text import NASTY_TEXTS
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

CORPUS = [text for text in NASTY_TEXTS if text] * 3


def trained_sentencepiece(*, prefix: bool) -> SentencePieceProcessor:
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS for line in text.split("\n") if line]),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        control_symbols=["<start_of_turn>", "<end_of_turn>"],
        user_defined_symbols=["<tool>", "\u2581\u2581\u2581", "</b>"],
        minloglevel=2,
    )
    return SentencePieceProcessor(model_proto=model.getvalue())


def gguf_of_sentencepiece(oracle: SentencePieceProcessor, *, prefix: bool) -> dict[str, object]:
    ids = range(oracle.vocab_size())
    user_defined = [oracle.piece_to_id(piece) for piece in ("<tool>", "\u2581\u2581\u2581", "</b>")]
    pieces = [oracle.id_to_piece(index) for index in ids]
    for index in user_defined:
        pieces[index] = pieces[index].replace("\u2581", " ")

    def kind(index: int) -> int:
        return (
            (oracle.is_unknown(index) and 2)
            or (oracle.is_control(index) and 3)
            or (index in user_defined and 4)
            or (oracle.is_byte(index) and 6)
            or 1
        )

    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [oracle.get_score(index) for index in ids],
        "tokenizer.ggml.token_type": [kind(index) for index in ids],
        "tokenizer.ggml.bos_token_id": oracle.bos_id(),
        "tokenizer.ggml.eos_token_id": oracle.eos_id(),
        "tokenizer.ggml.unknown_token_id": oracle.unk_id(),
        "tokenizer.ggml.add_space_prefix": prefix,
    }
