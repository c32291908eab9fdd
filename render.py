#!/usr/bin/env python3
"""Start the command line of this checkout: jobspec/commands.py.  Where it is installed, it is `render-job`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # before packages of others called jobspec or train

from jobspec.commands import command_line

if __name__ == "__main__":
    command_line()
