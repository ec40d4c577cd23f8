"""kvserve compare: what the cache gains."""
