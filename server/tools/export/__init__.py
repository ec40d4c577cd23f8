"""kvserve export: the model in a format of other runtimes."""
