"""kvserve perplexity: what rounding the weights costs."""
