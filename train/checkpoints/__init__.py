"""Checkpoints that are whole or not there, and what a resumed run must have in common with the one that saved."""
