"""Run one check in this process and write its record: `python -m benchmarks.gpu.one FUNCTION DEVICE FILE`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from benchmarks.gpu.checks import Check
from benchmarks.gpu.outcome import recorded

if __name__ == "__main__":
    function, device, file = sys.argv[1:]
    result = recorded(lambda: Check("", function, 0).load()(device))
    partial = Path(file).with_suffix(".partial")
    partial.write_text(json.dumps(result))
    partial.rename(file)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # an NCCL group whose peer is gone may wait forever in its destructor
