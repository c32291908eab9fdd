"""Rules for the form of `#SBATCH` lines; rules for what they request are in scripts.py."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jobspec.spec.sbatch_options import OPTIONS, meant
from lint.rules import Fault, rule
from lint.shell import Script

_FOR_SHELLS = re.compile(r"\$(?:\w+|\{[^}]*\}?|\([^)]*\)?)|`[^`]*`?")
_HOME = re.compile(r"~\w*(?=/|$)")
_PATTERNS = ("output", "error", "input")  # options whose value may hold %u, %x and %j
_PATHS = (*_PATTERNS, "chdir")


@rule("https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3068")
def option_after_a_command(script: Script) -> Iterator[Fault]:
    ignored = [found for found in script.directives if found.ignored]
    for found in ignored[:1]:
        after = f", and {len(ignored) - 1} more after it" if len(ignored) > 1 else ""
        reason = f"sbatch reads no further than the first command: this option is ignored{after}"
        yield Fault(found.place, reason, "put all #SBATCH lines directly below the first line of the script")


@rule("https://github.com/LBANN/lbann/pull/1425")
def option_is_unknown(script: Script) -> Iterator[Fault]:
    """Report only names that resemble an option of sbatch: a plugin of the cluster may add others."""
    for found in script.directives:
        instead = None if found.known or found.ignored else meant(found.name)
        if instead:
            yield Fault(found.place, f"sbatch has no option --{found.name}, and refuses the script", f"--{instead}")


@rule("https://github.com/mila-iqia/mila-docs/issues/6")
def sbatch_expands_no_variables(script: Script) -> Iterator[Fault]:
    """Leave out options of plugins, which may expand variables, and scripts that the shell writes."""
    for found in script.directives:
        if found.name not in OPTIONS or found.name == "comment" or found.ignored or found.in_other_script:
            continue
        literal = _FOR_SHELLS.search(found.value) or (found.name in _PATHS and _HOME.match(found.value))
        if literal:
            reason = f"no shell reads #SBATCH lines: to sbatch, {literal[0]} is plain text"
            fix = f"write out what it stands for, or use the command line: sbatch --{found.name}=… SCRIPT"
            if found.name in _PATTERNS:
                fix = f"sbatch replaces %u (your user name), %x (the job's name) and %j (its number); else {fix}"
            elif found.name == "chdir" and "SLURM_SUBMIT_DIR" in literal[0]:
                fix = "leave --chdir out: without it, the script starts in the folder from which you call sbatch"
            yield Fault(found.place, reason, fix)
