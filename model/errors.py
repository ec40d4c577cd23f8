"""Why a model cannot be read: one clear sentence each, for the person who started the server.

ModelError
├── ConfigError       a field of config.json or of the GGUF metadata
├── CheckpointError   a weight file: missing, surplus, misshapen or broken
├── TokenizerError    the vocabulary or its rules
├── TemplateError     the chat template, or the messages it refuses
└── ExportError       what another format cannot say

Raised while a model is loaded, TemplateError also for a request. Never carries a traceback's text.
"""


class ModelError(Exception):
    """What a model's files hold cannot be used."""


class ConfigError(ModelError):
    """A configuration field is missing, malformed or not supported; the message names it."""


class CheckpointError(ModelError):
    """A weight file is broken or does not fit its configuration; the message names the tensor."""


class TokenizerError(ModelError):
    """A vocabulary is broken or follows rules that are not supported."""


class TemplateError(ModelError):
    """A chat template is broken, takes too long, or refuses the messages."""


class ExportError(ModelError):
    """A model cannot be written in another format; the message names what stands in the way."""
