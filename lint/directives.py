"""Rules for the form of `#SBATCH` lines; rules for what they request are in scripts.py."""

from __future__ import annotations

from collections.abc import Iterator

from jobspec.reading.sbatch_options import meant
from lint.rules import Fault, rule
from lint.shell import Script


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
