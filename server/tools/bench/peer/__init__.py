"""Peers of the benchmark, which whoever renews the documentation's figures runs beside ours."""
