"""The checks for the first hour with a GPU, one file each; `python -m benchmarks.gpu` runs them all."""
