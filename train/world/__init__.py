"""Who this process is, how the processes meet, and on which device each computes."""
