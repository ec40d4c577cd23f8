"""Which windows are served, and what is said of those that are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checkpoints import RANDOM_CONFIGS

from model.formats.hf_config import read_hf_config
from server.config import EngineConfig
from server.engine.planning.window_plan import longest_text, plan_window
from server.errors import ConfigurationError

LLAMA = read_hf_config(RANDOM_CONFIGS["rand-llama-tied"].to_dict())
MISTRAL = read_hf_config(RANDOM_CONFIGS["rand-mistral"].to_dict())
GPT2 = read_hf_config(RANDOM_CONFIGS["rand-gpt2"].to_dict())


def plan(model=LLAMA, **options):
    return plan_window(EngineConfig(**options), model)


def test_without_the_option_all_tokens_stay():
    """There is no window, and a text is as long as the context."""
    assert plan() is None
    assert longest_text(None, LLAMA) == LLAMA.max_position_embeddings


def test_a_window_slides_by_an_eighth_of_itself_in_whole_blocks():
    """One block of sinks is kept by default, and texts may be longer than the context."""
    window = plan(attention_window=256)
    assert window is not None
    assert (window.size, window.sinks, window.stride) == (256, 16, 32)
    assert window.moves_sinks
    assert plan(attention_window=32).stride == 16
    assert longest_text(window, LLAMA) == 16 * LLAMA.max_position_embeddings


def test_sinks_stay_in_place_where_positions_are_learned():
    """Their vectors cannot move, and no text is longer than there are positions."""
    window = plan(GPT2, attention_window=64, attention_sinks=32)
    assert window is not None
    assert not window.moves_sinks
    assert longest_text(window, GPT2) == GPT2.max_position_embeddings


def test_no_sinks_move_nowhere():
    """With none kept nothing is computed anew."""
    window = plan(attention_window=64, attention_sinks=0)
    assert window is not None
    assert not window.moves_sinks


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (LLAMA, {"attention_sinks": 16}, "--attention-sinks is 16, but without --attention-window"),
        (
            MISTRAL,
            {"attention_window": 64},
            "this mistral model has windows of its own, of 16 tokens in 3 of 3 layers",
        ),
        (LLAMA, {"attention_window": 100}, "multiple of the block size, 16, .* 32 .got 100."),
        (LLAMA, {"attention_window": 16}, "--attention-window must be .* at least 32 .got 16."),
        (
            LLAMA,
            {"attention_window": 64, "attention_sinks": 4},
            "--attention-sinks must be a multiple of the block size, 16, and at least 0 .got 4.",
        ),
        (LLAMA, {"attention_window": 512}, "make 528 tokens, but the model's context is 512"),
    ],
)
def test_what_cannot_be_is_refused(model, options, message: str):
    """The message names the option, the bound and the value."""
    with pytest.raises(ConfigurationError, match=message):
        plan(model, **options)


def test_one_layer_with_a_window_is_enough_to_refuse():
    """A model that mixes layers has windows of its own, too."""
    mixed = replace(LLAMA, windows=(None, 48, None))
    with pytest.raises(ConfigurationError, match="48 tokens in 1 of 3 layers"):
        plan(mixed, attention_window=64)


def test_a_gpu_serves_no_window():
    """What was never run there is refused there."""
    with pytest.raises(ConfigurationError, match="CPU only, and the device is cuda"):
        plan_window(EngineConfig(attention_window=64), LLAMA, device="cuda")
