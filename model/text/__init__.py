"""The parts of the tokenizer and the chat template: vocabularies, spelling and rendering.

It deals in text and ids. It never knows a tensor, a request or HTTP.
"""
