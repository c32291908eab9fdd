"""Checkpoints that are either whole or absent, and what a resumed run must share with the run that saved."""
