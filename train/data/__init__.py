"""Which rank reads which sample at which step, and how batches reach the device."""
