"""Identity of this process, the meeting of all processes, and the device on which each computes."""
