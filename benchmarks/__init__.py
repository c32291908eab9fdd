"""Benchmarks: one script for each claim, which measures its peer in the same run: `python -m benchmarks.NAME`."""
