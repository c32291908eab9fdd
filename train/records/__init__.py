"""What a run reports to people and programs."""
