"""Checkpoints that are either whole or absent, and the check that a resumed run continues the run that saved them."""
