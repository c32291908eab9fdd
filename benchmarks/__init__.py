"""One script for each claim; each measures its peer in the same run: `python -m benchmarks.NAME`."""
