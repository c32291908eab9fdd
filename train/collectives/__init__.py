"""Messages between ranks: agreements, broadcasts, exact sums, statistics of a global batch, missing ranks."""
