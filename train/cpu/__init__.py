"""What torch does slowly on a CPU, done faster; readers with GPUs may skip this room."""
