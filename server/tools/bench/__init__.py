"""kvserve bench: prompt and decode speed against the memory's limit."""
