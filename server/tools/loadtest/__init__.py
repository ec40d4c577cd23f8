"""kvserve loadtest: a load generator for any server of the OpenAI API, and its report."""
