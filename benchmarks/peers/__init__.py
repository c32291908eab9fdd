"""What we are measured against, written the way it is published."""
