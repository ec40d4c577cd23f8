"""Model families: one file per architecture, saying how its files are read.

A family knows its fields in config.json and in GGUF metadata, its defaults and its tensors' names.
It fills a ModelConfig; it opens no file and touches no weight. A new file here is found by itself.
"""
