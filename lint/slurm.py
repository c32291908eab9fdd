"""Rules for `#SBATCH` lines, requeueing and ports."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jobspec.problems import Place
from jobspec.spec.sbatch_options import OPTIONS, meant
from lint.launches import everything, request
from lint.rules import Fault
from lint.shell import Script

_FOR_SHELLS = re.compile(r"\$(?:\w+|\{[^}]*\}?|\([^)]*\)?)|`[^`]*`?")
_HOME = re.compile(r"~\w*(?=/|$)")
_PATTERNS = ("output", "error", "input")  # options whose value may hold %u, %x and %j
_PORTS = ("MASTER_PORT", "PORT", "RDZV_PORT", "PET_MASTER_PORT")
_SHUF = re.compile(r"shuf.*-i[ ]*\d+-(\d+)")
_RANDOM = re.compile(r"\$?RANDOM\s*(?:%\s*(\d+)\s*)?\+\s*(\d+)|(\d+)\s*\+\s*\$?RANDOM\s*(?:%\s*(\d+))?")


def option_means_nothing(script: Script) -> Iterator[Fault]:
    ignored = [found for found in script.directives if found.ignored == "command"]
    for found in ignored[:1]:
        after = f", and {len(ignored) - 1} more after it" if len(ignored) > 1 else ""
        yield Fault(found.place, f"sbatch reads no further than the first command: this option is ignored{after}")
    for found in script.directives:
        if found.ignored == "spelling" and found.known and not script.directive(found.name):
            fix = f"#SBATCH --{found.name}={found.value}; or ## to switch it off"
            yield Fault(found.place, "sbatch reads only lines that begin with #SBATCH: this option is ignored", fix)
        literal = _FOR_SHELLS.search(found.value) or (found.name in (*_PATTERNS, "chdir") and _HOME.match(found.value))
        if literal and found.name in OPTIONS and found.name != "comment" and not found.ignored:
            fix = f"write out what it stands for, or use the command line: sbatch --{found.name}=… SCRIPT"
            if found.name in _PATTERNS:
                fix = f"%u (your user name), %x (the job's name), %j (its number); else {fix}"
            yield Fault(found.place, f"no shell reads #SBATCH lines: to sbatch, {literal[0]} is plain text", fix)


def sbatch_refuses_it(script: Script) -> Iterator[Fault]:
    if script.is_batch and not script.text.startswith("#!"):
        place = script.locate(0, max(1, len(script.text.split("\n", 1)[0])))
        yield Fault(place, "sbatch refuses a script whose first line does not begin with #!", "#!/bin/bash as line 1")
    for found in script.directives:
        instead = None if found.known or found.ignored else meant(found.name)
        if instead:
            yield Fault(found.place, f"sbatch has no option --{found.name}, and refuses the script", f"--{instead}")


def requeue_overwrites_log(script: Script) -> Iterator[Fault]:
    asked, appends = script.directive("requeue"), script.asked.get("open-mode", "").startswith("a")
    again = [each for each in script.commands if each.name == "scontrol" and "requeue" in [x.value for x in each.words]]
    places = [asked.place] if asked else [script.place(each.words[0].text) for each in again]
    for place in places[:1] if script.is_batch and not appends else ():
        yield Fault(place, "a requeued job overwrites the log of the run before it")


def port_cannot_be(script: Script) -> Iterator[Fault]:
    for place, value in _ports(script):
        random = _RANDOM.search(value)
        most = int(value) if value.isdigit() and len(value) < 9 else 0
        if random:
            most = int(random[2] or random[3]) + int(random[1] or random[4] or 32767)
        if most > 65535:
            yield Fault(place, f"a port can be {most}, but ports end at 65535")


def port_may_be_taken(script: Script) -> Iterator[Fault]:
    asked, told = request(script), set()
    whole = script.directive("exclusive") or asked.get("mem") == "0" or (asked.gpus_per_node or 4) >= 4
    for place, value in _ports(script) if script.is_batch else ():
        shuffled = _SHUF.search(value)
        if value.isdigit() and not whole and 0 < int(value[:6]) <= 65535 and value not in told:
            told.add(value)
            yield Fault(place, f"every job takes port {value}: two jobs on one node cannot both run")
        elif shuffled and int(shuffled[1][:6]) > 32768:
            yield Fault(place, "a random port may be one that Linux has handed out to a client (32768-60999)")


def _ports(script: Script) -> Iterator[tuple[Place, str]]:
    """Yield every rendezvous port that a script sets, and its place."""
    for name, words in script.assigned.items():
        yield from ((script.place(word.text), word.value) for word in words if name.upper() in _PORTS)
    for command in everything(script):
        for at, word in enumerate(command.words):
            option, equals, value = word.value.partition("=")
            if option.replace("_", "-") in ("--master-port", "--main-process-port", "--rdzv-endpoint"):
                following = "".join(after.value for after in command.words[at + 1 : at + 2])
                yield script.place(word.text), (value if equals else following).rpartition(":")[2]
