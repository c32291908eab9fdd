"""The samples that each rank reads at each step, and the transfer of batches to the device."""
