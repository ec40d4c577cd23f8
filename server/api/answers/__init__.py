"""What clients get in OpenAI's own form: the types of the wire, and the writers that fill them.

It turns the engine's outputs into answers, whole or in chunks. It never waits for an output and
never sends a byte.
"""
