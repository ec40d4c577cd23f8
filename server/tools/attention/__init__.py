"""kvserve attention: what each token of a text attends to."""
