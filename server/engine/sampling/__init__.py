"""The parts of the sampler: from logits to chosen tokens and log-probabilities.

All of it works on rows of tensors, on the engine thread. It never sees text, blocks of the cache or
HTTP.
"""
