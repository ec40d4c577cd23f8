"""DraftModel: the smaller model of `--speculative model`, loaded and held against the served."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cache.manager import KVCacheManager
from cache.pool import KVCachePool
from model.executors.choice import ExecutorFactory
from model.executors.executor import PassLimits
from model.formats.loader import LoadedModel, load_model, resolve_model
from model.native_library import NativeKernels
from server.config import EngineConfig
from server.engine.drafting.draft_budget import DraftBudget
from server.engine.drafting.model_drafter import MAX_CATCH_UP_TOKENS, ModelDrafter
from server.engine.sampler import Sampler
from server.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A model that guesses for another, of the same vocabulary."""

    loaded: LoadedModel
    kernels: NativeKernels | None

    @property
    def bytes_per_token(self) -> int:
        """What a token takes in its own cache, which has as many blocks as the served model's."""
        model = self.loaded.config
        return KVCachePool.bytes_per_token(
            model.num_layers, model.num_kv_heads, model.head_dim, self.loaded.dtype
        )

    def drafter(self, limits: PassLimits, budget: DraftBudget) -> ModelDrafter:
        """What guesses with it.

        Args:
            limits: Of the served model's passes.
            budget: How many tokens a step may draft.
        """
        tokens = max(MAX_CATCH_UP_TOKENS, limits.max_num_seqs)
        limits = replace(limits, max_num_batched_tokens=tokens, max_drafts=0)
        return ModelDrafter(
            ExecutorFactory(self.loaded, cache_dtype=self.loaded.dtype).make(limits),
            KVCacheManager(num_blocks=limits.num_blocks, block_size=limits.block_size),
            Sampler(
                self.loaded.config.vocab_size,
                self.loaded.device,
                kernels=self.kernels if self.loaded.native else None,
            ),
            budget=budget,
        )


def load_draft_model(
    config: EngineConfig, *, served: LoadedModel, kernels: NativeKernels | None
) -> DraftModel | None:
    """Load the smaller model, if one is asked for.

    Raises:
        ConfigurationError: It is not given, or given for nothing, or has another vocabulary.
        ModelError: It cannot be found, read or served.
    """
    if config.speculative != "model":
        if config.draft_model is not None:
            raise ConfigurationError(
                f"--draft-model {config.draft_model} is for --speculative model "
                f"(got --speculative {config.speculative})"
            )
        return None
    if config.draft_model is None:
        raise ConfigurationError("--speculative model needs --draft-model, a smaller model")
    if config.attention_window is not None:
        raise ConfigurationError(
            "--speculative model cannot follow a text that slides through --attention-window "
            f"{config.attention_window}: use --speculative ngram"
        )
    loaded = load_model(
        resolve_model(config.draft_model),
        dtype=config.dtype,
        device=config.device,
        kernels=kernels,
        quantize=config.quantize,
    )
    _check_vocabulary(loaded, served)
    context, needed = loaded.config.max_position_embeddings, config.max_model_len
    if context < (needed or served.config.max_position_embeddings):
        raise ConfigurationError(
            f"--draft-model {config.draft_model} has a context of {context} tokens: "
            f"set --max-model-len to at most {context}"
        )
    return DraftModel(loaded, kernels)


def _check_vocabulary(draft: LoadedModel, served: LoadedModel) -> None:
    """Both must give each id the same meaning."""
    sizes = draft.config.vocab_size, served.config.vocab_size
    if sizes[0] != sizes[1]:
        raise ConfigurationError(
            f"--draft-model has a vocabulary of {sizes[0]} tokens, but the model's has {sizes[1]}: "
            "both must be the same"
        )
    known = min(draft.tokenizer.vocab_size, served.tokenizer.vocab_size)
    for token_id in range(known):
        names = [one.tokenizer.id_to_token(token_id) for one in (draft, served)]
        if names[0] != names[1]:
            raise ConfigurationError(
                f"--draft-model has another vocabulary than the model: token {token_id} is "
                f"{names[0]!r} there and {names[1]!r} here"
            )
