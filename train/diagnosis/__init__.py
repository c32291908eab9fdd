"""The questions of `python -m train.doctor` to the ranks, its measurements between them, and its findings."""
