"""Faster ways to do what torch does slowly on a CPU; readers with GPUs may skip this folder."""
