"""Rules for the tasks of srun: what their shells see, how many processes they start, and on which GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lint.launches import Launch, Step, everything, launches, nodes_of, request
from lint.nodes import on_several_nodes, uses_c10d
from lint.rules import Fault, Versions, rule, rule_if
from lint.sbatch import number
from lint.shell import Script, Text

_OF_A_TASK = re.compile(r"\$\{?(SLURM_(?:NODEID|PROCID|LOCALID))\}?$")
_RANKS = ("RANK", "NODE_RANK", "LOCAL_RANK", "PET_NODE_RANK", "MACHINE_RANK", "GROUP_RANK")
_SET_BY = {"SLURM_GPUS": "gpus", "SLURM_GPUS_PER_NODE": "gpus-per-node", "SLURM_GPUS_PER_TASK": "gpus-per-task"}
_TASK_NAMES = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_LITERAL = re.compile(r"\\\$\{?(?:SLURM_\w+|MASTER_\w+)\}?")
_REGISTRY = re.compile(r"(?:docker://)?([\w-]+(?:\.[\w-]+)+(?::\d+)?)/([^#]*)$")
_ARRAY = re.compile(r"\$\{\w+\[@\]")
_EXPECTS_ALL = re.compile(r"lightning|--devices\b|LOCAL_RANK=\\?\"?\\?\$\{?SLURM_LOCALID")
_BRIEF = ("hostname", "nvidia-smi", "echo", "mkdir", "cp", "rm", "")
_OWN_SHARE = ("overlap", "exact", "exclusive", "nodelist", "x", "exclude", "mem", "gres", "relative", "r")


def _steps(script: Script) -> list[tuple[Launch, Step]]:
    """Return each program that may train with the srun that starts it."""
    return [(launch, launch.step) for launch in launches(script) if launch.step and launch.trains]


@rule
def expanded_by_the_batch_shell(script: Script) -> Iterator[Fault]:
    others = False
    for launch in launches(script) if script.is_batch else ():
        tasks = (nodes_of(script, launch) or 1) * (request(script, launch.step).tasks_per_node or 1)
        if not launch.step or launch.kind == "srun" or tasks < 2:
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


@rule
def not_exported(script: Script) -> Iterator[Fault]:
    own = {word.assigned for command in script.inside_texts for word in command.words}
    if any(command.name in ("declare", "read", "mapfile", "readarray") for command in script.commands):
        return  # what these set is not read here
    for launch in launches(script):
        given = launch.step.values.get("export", "") if launch.step else ""
        for word in [*launch.words, launch.text] if launch.step and launch.inner else ():
            for match in _TASK_NAMES.finditer(word.value):
                name = match[1] or match[2]
                if (
                    name in script.assigned
                    and name not in script.exported
                    and name not in own
                    and f"{name}=" not in given
                ):
                    place = script.locate(word.at[match.start()], len(match[0]))
                    yield Fault(
                        place, f"{name} is not exported: in the shells of the tasks it is empty", f"export {name}"
                    )


@rule
def dollar_stays_literal(script: Script) -> Iterator[Fault]:
    launches(script)
    for word in (word for command in script.inside_texts for word in command.words):
        found = _LITERAL.search(word.text.value) if word.node.type != "raw_string" else None
        if found:
            place = script.locate(word.text.at[found.start()], len(found[0]))
            yield Fault(place, f"{found[0][1:]} is not replaced: inside single quotes the backslash stays")


@rule
def tasks_start_all_processes_each(script: Script) -> Iterator[Fault]:
    for launch, step in _steps(script):
        tasks = request(script, step).tasks_per_node or 1
        if launch.is_agent and tasks > 1 and not step.open | launch.open and launch.value("nproc-per-node") != "1":
            each = script.shown(launch.value("nproc-per-node")) or "all its"
            yield Fault(script.place(launch.text), f"{tasks} tasks of a node start {each} processes each")


@rule
def gpus_stay_idle(script: Script) -> Iterator[Fault]:
    for launch in launches(script) if script.is_batch else ():
        asked, option = request(script, launch.step), launch.options.get("nproc-per-node")
        processes, gpus, tasks = number(option.value) if option else None, asked.gpus_per_node, asked.tasks_per_node
        if option and processes and gpus and processes != gpus and launch.kind == "torchrun" and tasks == 1:
            yield Fault(script.place(option.text), idle(processes, gpus, "node"), f"--nproc-per-node={gpus}")
        most, total = asked.count("ntasks-per-node"), asked.count("ntasks")
        if launch.kind != "python" or not launch.step or launch.step.open or not gpus or not tasks:
            continue
        if tasks > gpus and not asked.get("ntasks-per-gpu"):
            yield Fault(script.place(launch.text), f"{tasks} tasks of a node share its {gpus} GPU{'s' * (gpus > 1)}")
        elif most and total and most == gpus and total < most * (asked.nodes or 1):
            reason = f"--ntasks={total} wins over --ntasks-per-node={most}: {total} task{'s' * (total > 1)} in all"
            yield Fault(script.place(launch.text), reason, "leave --ntasks out")


def idle(processes: int, gpus: int, where: str) -> str:
    """Say what is wrong with these numbers."""
    if processes > gpus:
        return (
            f"{processes} processes of a {where} share its {gpus} GPU{'s' * (gpus > 1)}: the last ones find no device"
        )
    plural = "es" * (processes > 1)
    return f"a {where} starts {processes} process{plural}: {gpus - processes} of its {gpus} GPUs stay idle"


@rule
def slurm_variable_is_unset(script: Script) -> Iterator[Fault]:
    asked, told = request(script), set()
    gpus = asked.get("gres") or asked.get("gpus-per-node") or asked.get("gpus")  # else on sbatch's command line
    for command in everything(script) if "SLURM_" in script.text else ():
        for word in command.words if command.name not in ("echo", "printf") else ():
            for name, text in word.expansions:
                needs, plain = _SET_BY.get(name, ""), text.value in (f"${name}", f"${{{name}}}")
                if name == "SLURM_NTASKS_PER_NODE" and asked.get("ntasks"):
                    needs = "ntasks-per-node"
                sure = needs and plain and not asked.get(needs) and (gpus or needs == "ntasks-per-node")
                if sure and name not in script.assigned and name not in told:
                    told.add(name)
                    reason = f"Slurm sets {name} only for --{needs}, which this job does not have: it is empty"
                    yield Fault(script.place(text), reason)


@rule
def steps_wait_for_each_other(script: Script) -> Iterator[Fault]:
    found = [(each, each.step) for each in launches(script) if each.kind == "srun" and each.step]
    found = [(each, step) for each, step in found if step.program.value not in _BRIEF]
    if len({each.command.function for each, _ in found}) > 1 or not script.is_batch:
        return
    waits = [command.start for command in script.commands if command.name == "wait"]
    for at, (first, step) in enumerate(found):
        begin = first.command.start
        if not first.command.background or step.open:
            continue
        if at + 1 == len(found) and not any(start > begin for start in waits) and not _goes_on(script, begin):
            yield Fault(script.place(first.text), "the script ends while this step runs, and with it the job", "wait")
        for second, other in found[at + 1 : at + 2]:
            whole = {step.values.get("nodes"), other.values.get("nodes")} <= {None, str(request(script).nodes)}
            own = set(_OWN_SHARE) & {*step.options, *other.options} or second.command.background or other.open
            if whole and not own and not any(begin < start < second.command.start for start in waits):
                reason = "this step waits until the one before it has ended: each takes the CPUs and GPUs of its nodes"
                yield Fault(script.place(second.text), reason)


def _goes_on(script: Script, begin: int) -> bool:
    """Return True if the script does something in the foreground further down."""
    later = [command for command in script.commands if command.start > begin and command.name not in ("", "echo")]
    return any(not command.background for command in later)


@rule
def srun_reads_it_otherwise(script: Script) -> Iterator[Fault]:
    for launch in launches(script):
        step = launch.step
        if step is None or launch.kind != "srun":
            continue
        name = re.match(r"([A-Za-z_]\w*)=", step.program.value)
        if name:
            yield Fault(
                script.place(step.program), f"srun takes {name[1]}=… for the program, and finds none of that name"
            )
        image, nodelist = step.options.get("container-image"), step.options.get("nodelist")
        registry = _REGISTRY.match(image.value) if image and not image.value.endswith("sqsh") else None
        if image and registry:
            reason = f"pyxis takes {registry[1]} for a user of Docker Hub, not for a registry"
            yield Fault(script.place(image.text), reason, f"{registry[1]}#{registry[2]}")
        if nodelist and any(_ARRAY.match(script.names.get(char, "")) for char in nodelist.value):
            yield Fault(
                script.place(nodelist.text), "an array's names are joined by spaces, but --nodelist wants commas"
            )


@rule
def task_sees_one_gpu(script: Script) -> Iterator[Fault]:
    for launch, step in _steps(script) if _EXPECTS_ALL.search(script.text) else ():
        asked = request(script, step)
        bound = [name for name in ("gpus-per-task", "gpu-bind") if asked.get(name) not in (None, "none")]
        sharing = "allow-task-sharing" in (asked.get("gres-flags") or "")
        if bound and launch.kind == "python" and (asked.tasks_per_node or 1) > 1 and not sharing:
            own, directive = step.options.get(bound[0]), script.directive(bound[0])
            place = directive.place if directive and not own else script.place(own.text if own else launch.text)
            yield Fault(
                place, "each task sees only its own GPU, as cuda:0: cuda:LOCAL_RANK is an invalid device ordinal"
            )


@rule
def srun_goes_on_without_a_node(script: Script) -> Iterator[Fault]:
    for launch, step in _steps(script):
        count, stops = nodes_of(script, launch) or 1, {"kill-on-bad-exit", "K"} & set(step.options)
        if (
            count >= 8
            and on_several_nodes(script, launch)
            and not stops
            and "SLURM_KILL_BAD_EXIT" not in script.assigned
        ):
            reason = f"when one task fails, the others of the {count} nodes wait for it for ten minutes or more"
            yield Fault(script.place(step.text), reason)


def _does_not_inherit(versions: Versions) -> bool:
    return (22, 5) <= versions.slurm <= (23, 2)


@rule_if(_does_not_inherit)
def srun_without_cpus(script: Script) -> Iterator[Fault]:
    known = not script.directive("cpus-per-task") or "SRUN_CPUS_PER_TASK" in script.assigned
    for _, step in _steps(script) if not known else ():
        if not {"cpus-per-task", "overlap"} & set(step.options) and not step.open:
            reason = "in this version srun does not inherit --cpus-per-task from sbatch: each task gets one core"
            yield Fault(script.place(step.text), reason)
