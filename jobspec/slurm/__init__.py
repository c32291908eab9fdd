"""The parts of a batch script for Slurm; jobspec/targets/slurm.py puts them together."""
