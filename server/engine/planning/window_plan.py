"""plan_window: which tokens of each request stay in the cache, from the options and the model.

Refuses what cannot be: it decides before anything is allocated, and remembers nothing.
"""

from __future__ import annotations

from cache.window import AttentionWindow
from model.config import ModelConfig
from server.config import EngineConfig
from server.errors import ConfigurationError

_PARTS = 8
"""The window slides by an eighth of itself, and computes its sinks anew as seldom."""
_CONTEXTS = 16
"""How many times its context a model serves if --max-model-len does not say."""


def plan_window(
    config: EngineConfig, model: ModelConfig, *, device: str = "cpu"
) -> AttentionWindow | None:
    """Decide what is kept; None is everything.

    Raises:
        ConfigurationError: The options do not fit each other or the model; names the option, the
            bound and the value.
    """
    size, sinks = config.attention_window, config.attention_sinks
    if size is None:
        if sinks is not None:
            raise ConfigurationError(
                f"--attention-sinks is {sinks}, but without --attention-window all tokens stay"
            )
        return None
    if device != "cpu":
        raise ConfigurationError(
            f"--attention-window is {size}, but it is served on a CPU only, and the device is "
            f"{device}: use --device cpu"
        )
    own = [window for window in model.windows if window is not None]
    if own:
        raise ConfigurationError(
            f"--attention-window is {size}, but this {model.architecture} model has windows of "
            f"its own, of {min(own)} tokens in {len(own)} of {model.num_layers} layers"
        )
    block = config.block_size
    sinks = block if sinks is None else sinks
    for option, value, least in (("window", size, 2 * block), ("sinks", sinks, 0)):
        if value % block or value < least:
            raise ConfigurationError(
                f"--attention-{option} must be a multiple of the block size, {block}, and at "
                f"least {least} (got {value})"
            )
    if size + sinks > model.max_position_embeddings:
        raise ConfigurationError(
            f"--attention-window and --attention-sinks make {size + sinks} tokens, but the "
            f"model's context is {model.max_position_embeddings}: use at most that"
        )
    stride = max(block, size // _PARTS // block * block)
    moves_sinks = sinks > 0 and not model.learned_positions
    return AttentionWindow(size=size, sinks=sinks, stride=stride, moves_sinks=moves_sinks)


def longest_text(window: AttentionWindow | None, model: ModelConfig) -> int:
    """Tokens that a text may have: the context, or with a window as many as positions allow."""
    if window is None or model.learned_positions:
        return model.max_position_embeddings
    return _CONTEXTS * model.max_position_embeddings
