"""read_hf_config: from the content of a config.json to a ModelConfig.

What is not supported is refused with the field's name, its value and what would be accepted;
nothing is guessed and nothing ignored that would change a result. Never opens a file.
"""

from __future__ import annotations

from collections.abc import Mapping

from model.config import ModelConfig
from model.families.fields import Fields
from model.families.known import FAMILIES


def read_hf_config(config: Mapping[str, object]) -> ModelConfig:
    """Read the content of a config.json.

    Args:
        config: The parsed JSON. A multimodal gemma3 is read as its text part.

    Raises:
        ConfigError: A field is missing, malformed, or asks for what is not supported.
    """
    fields = Fields(config)
    fields.refuse("quantization_config", neutral=())
    if fields.get("model_type") == "gemma3":
        fields = fields.within("text_config").over({"model_type": "gemma3_text"})
    return FAMILIES[fields.text("model_type", known=FAMILIES)].read_hf(fields)
