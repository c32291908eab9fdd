"""What ranks say to one another: agreements, broadcasts, statistics of a global batch, reports of a missing rank."""
