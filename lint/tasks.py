"""Rules for the tasks of srun: what their shells see, how many processes they start, and on which GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise, zip_longest

from lint.launches import Launch, everything, launches, nodes_of, request, trained
from lint.nodes import on_several_nodes, uses_c10d
from lint.rules import Fault
from lint.sbatch import number
from lint.shell import Script
from lint.words import Text

_OF_A_TASK = re.compile(r"\$\{?(SLURM_(?:NODEID|PROCID|LOCALID))\}?$")
_RANKS = ("RANK", "NODE_RANK", "LOCAL_RANK", "PET_NODE_RANK", "MACHINE_RANK", "GROUP_RANK")
_SET_BY = {"SLURM_GPUS": "gpus", "SLURM_GPUS_PER_NODE": "gpus-per-node", "SLURM_GPUS_PER_TASK": "gpus-per-task"}
_SETS = re.compile(r"(?:\b(?:for|read(?: -\w+)*|local|declare(?: -\w+)*)[ ]+(?=\w)|(?=\b\w+=))(\w+)")
_TASK_NAMES = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_LITERAL = re.compile(r"\\\$\{?(?:SLURM_\w+|MASTER_\w+)\}?")
_REGISTRY = re.compile(r"(?:docker://)?([\w-]+(?:\.[\w-]+)+(?::\d+)?)/([^#]*)$")
_ARRAY = re.compile(r"(?:--nodelist[= ]|-w ?)\"\$\{\w+\[@\](?!:\d+:1\})")
_EXPECTS_ALL = re.compile(r"lightning|--devices\b|LOCAL_RANK=\\?\"?\\?\$\{?SLURM_LOCALID")
_BRIEF = ("hostname", "nvidia-smi", "echo", "mkdir", "cp", "rm", "")
_OWN_SHARE = {"overlap", "exact", "exclusive", "nodelist", "x", "exclude", "mem", "gres", "relative", "r"}


def _steps(script: Script) -> list[tuple[Launch, Launch]]:
    """Return each program that may train with the srun that starts it."""
    return [(launch, launch.step) for launch in trained(script) if launch.step]


def expanded_by_the_batch_shell(script: Script) -> Iterator[Fault]:
    others = False
    for launch in (each for each in launches(script) if script.is_batch and each.step):
        if (nodes_of(script, launch) or 1) * (request(script, launch.step).tasks_per_node or 1) < 2:
            continue
        others = others or launch.kind not in ("torchrun", "accelerate")  # which read no rank from the environment
        ignored = launch.options.get("node-rank") if uses_c10d(launch) else None
        for word in launch.words:
            yield from _replaced(script, word) if not ignored or word != ignored.text else ()
    for command in script.commands if others else ():
        for each in command.words if not command.inner else ():
            for _, text in each.expansions if each.assigned in script.exported.intersection(_RANKS) else ():
                yield from _replaced(script, Text(script.unknown(text.value), text.at))


def _replaced(script: Script, word: Text) -> Iterator[Fault]:
    for at, char in enumerate(word.value):
        name = _OF_A_TASK.match(script.names.get(char, ""))
        if name:
            place = script.locate(word.at[at], len(script.names[char]))
            quotes = f"\\${name[1]}" if '"' in place.text else f"srun bash -c '… ${name[1]} …' with single quotes"
            reason = f"the batch shell replaces {name[1]} before srun starts the tasks: it is 0 on every node"
            yield Fault(place, reason, f"let each task replace it: {quotes}")


def not_exported(script: Script) -> Iterator[Fault]:
    if any(command.name in ("declare", "read", "mapfile", "readarray") for command in script.commands):
        return  # what these set is not read here
    found = launches(script)
    texts = {word.source.text.value for command in script.inside_texts for word in command.words}
    own = {name for text in texts for name in _SETS.findall(text)}
    empty = script.assigned.keys() - script.exported - own
    for launch in found:
        given = launch.step.value("export") if launch.step else ""
        for word in [*launch.words, launch.text] if launch.step and launch.inner else ():
            for match in _TASK_NAMES.finditer(word.value):
                name = match[1] or match[2]
                if name in empty and f"{name}=" not in given:
                    reason = f"{name} is not exported: in the shells of the tasks it is empty"
                    yield Fault(script.locate(word.at[match.start()], len(match[0])), reason, f"export {name}")


def dollar_stays_literal(script: Script) -> Iterator[Fault]:
    launches(script)
    for word in (word for command in script.inside_texts for word in command.words):
        found = _LITERAL.search(word.text.value) if word.node.type != "raw_string" else None
        if found:
            reason = f"{found[0][1:]} is not replaced: inside single quotes the backslash stays"
            yield Fault(script.place(word.text.cut(*found.span())), reason)


def tasks_start_all_processes_each(script: Script) -> Iterator[Fault]:
    for launch, step in _steps(script):
        tasks = request(script, step).tasks_per_node or 1
        if launch.is_agent and tasks > 1 and not step.open | launch.open and launch.value("nproc-per-node") != "1":
            each = script.shown(launch.value("nproc-per-node")) or "all its"
            yield Fault(script.place(launch.text), f"{tasks} tasks of a node start {each} processes each")


def gpus_stay_idle(script: Script) -> Iterator[Fault]:
    for launch in trained(script):
        asked, place = request(script, launch.step), script.place(launch.text)
        gpus, tasks, nodes = asked.gpus_per_node, asked.tasks_per_node, nodes_of(script, launch) or 1
        name = "nproc-per-node" if launch.kind == "torchrun" else "total" if launch.kind == "accelerate" else ""
        name = "" if name == "total" and "CUDA_VISIBLE_DEVICES" in script.text else name
        processes = (number(launch.value(name)) or 0) // (nodes if name == "total" else 1)
        if processes and gpus and processes != gpus and tasks == 1 and "cpu" not in launch.options:
            fix = f"--num_processes={gpus * nodes}" if name == "total" else f"--nproc-per-node={gpus}"
            yield Fault(script.place(launch.options[name].text), idle(processes, gpus, script.unit), fix)
        most, total = asked.count("ntasks-per-node"), asked.count("ntasks")
        if launch.kind != "python" or not launch.step or launch.step.open or not gpus or not tasks:
            continue
        if tasks > gpus and not asked.get("ntasks-per-gpu"):
            yield Fault(place, f"{tasks} tasks of a node share its {gpus} GPU{'s' * (gpus > 1)}")
        elif most and total and most == gpus and total < most * (asked.nodes or 1):
            reason = f"--ntasks={total} wins over --ntasks-per-node={most}: {total} task{'s' * (total > 1)} in all"
            yield Fault(place, reason, "leave --ntasks out")


def idle(processes: int, gpus: int, where: str) -> str:
    """Say what is wrong with these numbers."""
    if processes > gpus:
        shared = f"{gpus} GPU{'s' * (gpus > 1)}"
        return f"{processes} processes of a {where} share its {shared}: the last ones find no device"
    plural = "es" * (processes > 1)
    return f"a {where} starts {processes} process{plural}: {gpus - processes} of its {gpus} GPUs stay idle"


def slurm_variable_is_unset(script: Script) -> Iterator[Fault]:
    asked, told = request(script), set(script.assigned)
    gpus = asked.get("gres") or asked.get("gpus-per-node") or asked.get("gpus")  # else on sbatch's command line
    for command in everything(script) if "SLURM_" in script.text else ():
        words = command.words if command.name not in ("echo", "printf") else ()
        for name, text in (found for word in words for found in word.expansions):
            needs, sure = _SET_BY.get(name, ""), gpus
            if name == "SLURM_NTASKS_PER_NODE":
                needs, sure = "ntasks-per-node", asked.get("ntasks")
            plain = text.value in (f"${name}", f"${{{name}}}")
            if needs and sure and plain and not asked.get(needs) and name not in told:
                told.add(name)
                reason = f"Slurm sets {name} only for --{needs}, which this job does not have: it is empty"
                yield Fault(script.place(text), reason)


def steps_wait_for_each_other(script: Script) -> Iterator[Fault]:
    found = [each for each in launches(script) if each.kind == "srun" and each.program.value not in _BRIEF]
    if len({each.command.function for each in found}) > 1 or not script.is_batch:
        return
    waits = [command.start for command in script.commands if command.name == "wait"]
    for first, second in zip_longest(found, found[1:]):
        begin = first.command.start
        if not first.command.background or first.open:
            continue
        later = [each for each in script.commands if each.start > begin and each.name not in ("", "echo")]
        if second is None and all(each.background for each in later):
            yield Fault(script.place(first.text), "the script ends while this step runs, and with it the job", "wait")
        if second is not None:
            whole = {first.value("nodes"), second.value("nodes")} <= {"", str(request(script).nodes)}
            own = _OWN_SHARE & {*first.options, *second.options} or second.command.background or second.open
            if whole and not own and not any(begin < start < second.command.start for start in waits):
                reason = "this step waits until the one before it has ended: each takes the CPUs and GPUs of its nodes"
                yield Fault(script.place(second.text), reason)


def srun_reads_it_otherwise(script: Script) -> Iterator[Fault]:
    for step in (each for each in launches(script) if each.kind == "srun"):
        name, image = re.match(r"([A-Za-z_]\w*)=", step.program.value), step.value("container-image")
        if name:
            reason = f"srun takes {name[1]}=… for the program, and finds none of that name"
            yield Fault(script.place(step.program), reason)
        registry = _REGISTRY.match(image) if not image.endswith("sqsh") else None
        if registry:
            reason = f"pyxis takes {registry[1]} for a user of Docker Hub, not for a registry"
            yield Fault(script.place(step.options["container-image"].text), reason, f"{registry[1]}#{registry[2]}")
        for before, word in pairwise(step.command.words):
            written = f"{before.value} {word.text.value}" if before.value in ("-w", "--nodelist") else word.text.value
            if _ARRAY.match(written):
                reason = "an array in quotes gives several words, and srun takes the second one for the program"
                yield Fault(script.place(word.text), reason, word.text.value.replace("[@]", "[*]"))


def task_sees_one_gpu(script: Script) -> Iterator[Fault]:
    for launch, step in _steps(script) if _EXPECTS_ALL.search(script.text) else ():
        asked = request(script, step)
        bound = [name for name in ("gpus-per-task", "gpu-bind") if asked.get(name) not in (None, "none")]
        sharing = "allow-task-sharing" in (asked.get("gres-flags") or "")
        if bound and launch.kind == "python" and (asked.tasks_per_node or 1) > 1 and not sharing:
            own, directive = step.options.get(bound[0]), script.directive(bound[0])
            place = directive.place if directive and not own else script.place(own.text if own else launch.text)
            reason = "each task sees only its own GPU, as cuda:0: cuda:LOCAL_RANK is an invalid device ordinal"
            yield Fault(place, reason)


def srun_goes_on_without_a_node(script: Script) -> Iterator[Fault]:
    wait = "for ten minutes or more" if script.versions.torch >= (2, 2) else "until the time limit"
    for launch, step in _steps(script):
        count = nodes_of(script, launch) or 1
        stops = "kill-on-bad-exit" in step.options or "SLURM_KILL_BAD_EXIT" in script.assigned
        if count >= 8 and on_several_nodes(script, launch) and not stops:
            reason = f"when one task fails, the others of the {count} nodes wait for it {wait}"
            yield Fault(script.place(step.text), reason)


def srun_without_cpus(script: Script) -> Iterator[Fault]:
    inherits = not (22, 5) <= script.versions.slurm <= (23, 2)
    known = inherits or not script.directive("cpus-per-task") or "SRUN_CPUS_PER_TASK" in script.assigned
    for _, step in _steps(script) if not known else ():
        if not {"cpus-per-task", "overlap"} & set(step.options) and not step.open:
            reason = "in this version srun does not inherit --cpus-per-task from sbatch: each task gets one core"
            yield Fault(script.place(step.text), reason)
