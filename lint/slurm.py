"""Rules for `#SBATCH` lines, for srun and what its tasks see, start and get, and for ports."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from jobspec.problems import Place
from jobspec.spec.sbatch_options import OPTIONS, meant
from lint.launches import Launch, everything, launches, trained
from lint.rules import Fault
from lint.sbatch import number
from lint.shell import Script
from lint.words import Text

_FOR_SHELLS = re.compile(r"\$(?:\w+|[{(][^})]*[})]?)|`[^`]*`?|^~\w*(?=/)")
_PORTS = ("MASTER_PORT", "PORT", "RDZV_PORT", "PET_MASTER_PORT")
_RANDOM = re.compile(r"\$?RANDOM\s*(?:%\s*(\d+)\s*)?\+\s*(\d+)|(\d+)\s*\+\s*\$?RANDOM\s*(?:%\s*(\d+))?")
_MODULO = re.compile(r"%\s*(\d+)[\s)]*\+\s*(\d+)|(\d+)\s*\+[\s(]*[^\s%()+*/-]+\s*%\s*(\d+)")
_OF_A_TASK = re.compile(r"\$\{?(SLURM_(?:NODEID|PROCID|LOCALID))\}?$")
_RANKS = {"RANK", "NODE_RANK", "LOCAL_RANK", "PET_NODE_RANK", "MACHINE_RANK", "GROUP_RANK"}
_TASK_NAMES = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_LITERAL = re.compile(r"\\\$\{?(?:SLURM_\w+|MASTER_\w+)\}?")
_REGISTRY = re.compile(r"(?:docker://)?([\w-]+(?:\.[\w-]+)+(?::\d+)?)/([^#]*)$")
_ARRAY = re.compile(r"(?<!\S)(?:--nodelist[= ]|-w ?)(\"\$\{\w+\[@\](?!:\d+:1\})[^\"]*\")")
# Programs of steps that end at once, and options of steps that share their nodes with others.
_BRIEF = {"hostname", "nvidia-smi", "echo", "mkdir", "cp", "rm", ""}
_OWN_SHARE = {"overlap", "exact", "exclusive", "nodelist", "exclude", "mem", "gres", "relative"}
_GPUS = {"gres", "gpus-per-node", "gpus"}
# The option that sets a variable; and others, of which the script must have one: else the command line may have it.
_SET_BY = {
    "SLURM_GPUS": ("gpus", _GPUS),
    "SLURM_GPUS_PER_NODE": ("gpus-per-node", _GPUS),
    "SLURM_GPUS_PER_TASK": ("gpus-per-task", _GPUS),
    "SLURM_NTASKS_PER_NODE": ("ntasks-per-node", {"ntasks"}),
}


def option_means_nothing(script: Script) -> Iterator[Fault]:
    for found in script.directives:
        literal = _FOR_SHELLS.search(found.value)
        if found.ignored == "below":
            yield Fault(found.place, "sbatch reads no further than the first command: this option is ignored")
        elif found.ignored and found.known and found.name not in script.asked:
            reason = "sbatch reads only lines that begin with #SBATCH: this option is ignored"
            yield Fault(found.place, reason, f"#SBATCH --{found.name}; or ## to switch it off")
        elif literal and not found.ignored and found.name in OPTIONS and found.name != "comment":
            yield Fault(found.place, f"no shell reads #SBATCH lines: to sbatch, {literal[0]} is plain text")


def sbatch_refuses_it(script: Script) -> Iterator[Fault]:
    if script.directives and not script.text.startswith("#!"):
        place = script.locate(0, len(script.text.split("\n", 1)[0]))
        yield Fault(place, "sbatch refuses a script whose first line does not begin with #!", "#!/bin/bash as line 1")
    for found in script.directives:
        instead = None if found.known or found.ignored else meant(found.name)
        if instead:
            yield Fault(found.place, f"sbatch has no option --{found.name}, and refuses the script", f"--{instead}")


def port_cannot_be(script: Script) -> Iterator[Fault]:
    for text, value in _ports(script):
        varies = _RANDOM.search(value) or _MODULO.search(value)
        most = number(value) or 0
        if varies:
            most = int(varies[2] or varies[3]) + int(varies[1] or varies[4] or 32768) - 1
        if most > 65535:
            yield Fault(text, f"a port can be {most}, but ports end at 65535")


def port_may_be_taken(script: Script) -> Iterator[Fault]:
    asked, told = script.asked, set[int]()
    whole = "exclusive" in script.asked or asked.get("mem") == "0" or (asked.gpus_per_node or 4) >= 4
    for text, value in _ports(script) if script.directives and not whole else ():
        port = number(value)
        if port and port <= 65535 and port not in told:
            told.add(port)
            yield Fault(text, f"every job takes port {value}: two jobs on one node cannot both run")


def _ports(script: Script) -> Iterator[tuple[Place | Text, str]]:
    """Yield every rendezvous port that a script sets, with its place."""
    yield from ((place, value) for name, value, _, place in script.settings if name.upper() in _PORTS)
    for options in (launch.options for launch in launches(script)):
        for value, text in (options[name] for name in ("master-port", "rdzv-endpoint") if name in options):
            port = value.rpartition(":")[2]
            yield text.cut(len(text.value) - len(port), len(text.value)), port


def slurm_variable_is_unset(script: Script) -> Iterator[Fault]:
    told = set(script.assigned)
    words = [word for command in everything(script) if command.name not in ("echo", "printf") for word in command.words]
    for name, text in (found for word in words for found in word.expansions if "SLURM_" in word.text.value):
        option, others = _SET_BY.get(name, ("", set()))
        is_plain = text.value in (f"${name}", f"${{{name}}}")
        if others & script.asked.keys() and option not in script.asked and is_plain and name not in told:
            told.add(name)
            yield Fault(text, f"Slurm sets {name} only for --{option}, which this job does not have: it is empty")


def steps_wait_for_each_other(script: Script) -> Iterator[Fault]:
    steps = [each for each in launches(script) if each.kind == "srun" and each.program.value not in _BRIEF]
    if not script.directives or len({step.command.function for step in steps}) > 1:
        return
    for last in steps[-1:]:
        later = [each for each in script.commands if each.start > last.command.start and each.name not in ("", "echo")]
        if last.command.background and all(each.background for each in later):
            yield Fault(last.text, "the script ends while this step runs, and with it the job", "wait")
    for first, second in pairwise(steps):
        between = [each.name for each in script.commands if first.command.start < each.start < second.command.start]
        waits = first.command.background and not second.command.background and "wait" not in between
        whole = {first.value("nodes"), second.value("nodes")} <= {"", str(script.asked.nodes)}
        shares = _OWN_SHARE & {*first.options, *second.options} or first.open or second.open
        if waits and whole and not shares:
            reason = "this step waits until the one before it has ended: each takes the CPUs and GPUs of its nodes"
            yield Fault(second.text, reason)


def srun_reads_it_otherwise(script: Script) -> Iterator[Fault]:
    for step in (each for each in launches(script) if each.kind == "srun"):
        name, image = re.match(r"([A-Za-z_]\w*)=", step.program.value), step.value("container-image")
        if name:
            yield Fault(step.program, f"srun takes {name[1]}=… for the program, and finds none of that name")
        registry = _REGISTRY.match(image) if not image.endswith("sqsh") else None
        if registry:
            reason = f"pyxis takes {registry[1]} for a user of Docker Hub, not for a registry"
            yield Fault(step.options["container-image"].text, reason, f"{registry[1]}#{registry[2]}")
        array = _ARRAY.search(script.text, step.command.start, step.command.end + 1)
        if array:
            reason = "an array in quotes gives several words, and srun takes the second one for the program"
            yield Fault(script.locate(array.start(1), len(array[1])), reason, array[1].replace("[@]", "[*]"))


def expanded_by_the_batch_shell(script: Script) -> Iterator[Fault]:
    texts, reads_ranks = list[Text](), False
    for launch, _ in _steps(launches(script)) if script.directives else ():
        if (launch.nodes or 1) * (launch.asked.tasks_per_node or 1) > 1:
            ignored = launch.options.get("node-rank") if launch.uses_c10d else None
            texts += [word for word in launch.words if not ignored or word != ignored.text]
            if not launch.is_agent:  # it reads what is set for it, as in bash -c "RANK=$SLURM_PROCID python …"
                reads_ranks = True
                texts += [word.text for word in launch.command.words if word.assigned in _RANKS]
    for word in (word for command in script.commands if not command.function for word in command.words):
        if reads_ranks and word.assigned in script.exported & _RANKS:
            texts += [Text(script.unknown(text.value), text.at) for _, text in word.expansions]
    for each in texts:
        for at, char in enumerate(each.value):
            written = script.names.get(char, "")
            if name := _OF_A_TASK.match(written):
                place = script.locate(each.at[at], len(written))
                reason = f"the batch shell replaces {name[1]} before srun starts the tasks: it is 0 on every node"
                yield Fault(place, reason, f"\\${name[1]}, so that each task replaces it" if '"' in place.text else "")


def not_exported(script: Script) -> Iterator[Fault]:
    found, not_exported = _steps(launches(script)), script.assigned.keys() - script.exported
    inside = {word.source.text.value for command in script.inside_texts for word in command.words}
    for launch, step in found:
        for word in [*launch.words, launch.text] if launch.inner else ():
            for match in _TASK_NAMES.finditer(word.value):
                name = match[1] or match[2]
                sets = re.compile(rf"(?<![\w${{]){name}\b")  # such as NAME=value, or read NAME
                is_set = f"{name}=" in step.value("export") or any(sets.search(text) for text in inside)
                if name in not_exported and not is_set:
                    reason = f"{name} is not exported: in the shells of the tasks it is empty"
                    yield Fault(word.cut(*match.span()), reason, f"export {name}")


def dollar_stays_literal(script: Script) -> Iterator[Fault]:
    launches(script)  # which reads the texts inside
    for word in (word for command in script.inside_texts for word in command.words):
        found = _LITERAL.search(word.text.value) if word.node.type != "raw_string" else None
        if found:
            reason = f"{found[0][1:]} is not replaced: inside single quotes the backslash stays"
            yield Fault(word.text.cut(*found.span()), reason)


def _steps(found: Iterable[Launch]) -> list[tuple[Launch, Launch]]:
    """Return each launch of some with the srun in front of it."""
    return [(launch, launch.step) for launch in found if launch.step]


def tasks_start_all_processes_each(script: Script) -> Iterator[Fault]:
    for launch, step in _steps(trained(script)):
        tasks, processes = launch.asked.tasks_per_node or 1, launch.value("nproc-per-node")
        if launch.is_agent and tasks > 1 and not step.open | launch.open and processes != "1":
            processes = script.shown(processes) or "all its"
            yield Fault(launch.text, f"{tasks} tasks of a node start {processes} processes each")


def gpus_stay_idle(script: Script) -> Iterator[Fault]:
    shared = any(launch.command.background and launch.kind not in _BRIEF for launch in launches(script))
    for launch in trained(script):
        asked = launch.asked
        gpus, tasks = asked.gpus_per_node, asked.tasks_per_node
        if not gpus or not tasks:
            continue
        yield from _told_of_processes(script, launch, gpus) if tasks == 1 and not shared else ()
        if launch.kind != "python" or not launch.step or launch.step.open:
            continue
        most, total = asked.count("ntasks-per-node"), asked.count("ntasks")
        if tasks > gpus and not asked.get("ntasks-per-gpu"):
            yield Fault(launch.text, idle(tasks, gpus, script.unit))
        elif most and total and most == gpus and total < most * (asked.nodes or 1):
            reason = f"--ntasks={total} wins over --ntasks-per-node={most}: GPUs stay idle"
            yield Fault(launch.text, reason, "leave --ntasks out")


def _told_of_processes(script: Script, launch: Launch, gpus: int) -> Iterator[Fault]:
    """Compare the processes of each node that torchrun is told of, or of all that accelerate is, with the GPUs."""
    name, flag, nodes = "nproc-per-node", "--nproc-per-node", 1
    if launch.kind == "accelerate":
        name, flag = "total", "--num_processes"
        nodes = launch.nodes or number(launch.value("nnodes") or "1") or 0
    told = number(launch.value(name)) if launch.kind in ("torchrun", "accelerate") else None
    processes = told // nodes if told and nodes and "cpu" not in launch.options else gpus
    if processes and processes != gpus:
        yield Fault(launch.options[name].text, idle(processes, gpus, script.unit), f"{flag}={gpus * nodes}")


def idle(processes: int, gpus: int, where: str) -> str:
    numbers = f"{processes} process{'es' * (processes > 1)} for the {gpus} GPU{'s' * (gpus > 1)} of a {where}"
    return f"{numbers}: {'the last ones find no device' if processes > gpus else 'some stay idle'}"


def srun_goes_on_without_a_node(script: Script) -> Iterator[Fault]:
    wait = "for ten minutes or more" if script.versions.torch >= (2, 2) else "until the time limit"
    for launch, step in _steps(trained(script)):
        count = launch.nodes or 1
        stops = "kill-on-bad-exit" in step.options or "SLURM_KILL_BAD_EXIT" in script.assigned
        if count >= 8 and launch.is_on_several and not stops:
            yield Fault(step.text, f"when one task fails, the others of the {count} nodes wait for it {wait}")


def srun_without_cpus(script: Script) -> Iterator[Fault]:
    asked = "cpus-per-task" in script.asked and "SRUN_CPUS_PER_TASK" not in script.assigned
    for _, step in _steps(trained(script)) if asked and (22, 5) <= script.versions.slurm <= (23, 2) else ():
        if not {"cpus-per-task", "overlap"} & step.options.keys() and not step.open:
            reason = "in this version srun does not inherit --cpus-per-task from sbatch: each task gets one core"
            yield Fault(step.text, reason)
