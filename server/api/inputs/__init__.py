"""From a checked body to what the engine is told: fields judged, texts turned into token ids.

Whatever is wrong is said here in the words of whoever sent it. It never runs a model and never
writes an answer.
"""
