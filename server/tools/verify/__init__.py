"""kvserve verify: the one-answer contract, checked to the bit."""
