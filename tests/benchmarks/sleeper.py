"""A process that says what its PYTHONPATH is and then sleeps, in place of a training."""

import os
import time

if __name__ == "__main__":
    print(f"PYTHONPATH={os.environ['PYTHONPATH']}", flush=True)
    time.sleep(1000)
