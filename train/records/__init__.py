"""Reports of a run to people and programs."""
