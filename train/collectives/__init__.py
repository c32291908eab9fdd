"""Messages between ranks: agreements, broadcasts, statistics of a global batch, reports of a missing rank."""
