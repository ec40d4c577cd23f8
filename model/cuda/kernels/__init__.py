"""The kernels themselves, in Triton: compiled for a card, interpreted in tests."""
