"""Run one check in this process and write its record: `python -m benchmarks.gpu.one FUNCTION DEVICE FILE`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.gpu import outcome
from benchmarks.gpu.checks import Check
from benchmarks.ranks import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    function, device, file = sys.argv[1:]
    outcome.keep_parts_beside(Path(file))
    outcome.write(Path(file), outcome.recorded(lambda: Check("", function, 0).load()(device)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # an NCCL group whose peer is gone may wait forever in its destructor
