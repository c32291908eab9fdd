"""An sbatch script as a draft of a spec."""

from __future__ import annotations

import re

from lint.launches import request
from lint.sbatch import Directive
from lint.shell import locator
from migrate.draft import Draft
from migrate.program import duration, say_around, say_command, say_processes
from migrate.shell import Program, Script, number

_SIZES = ("nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres", "cpus-per-task")
KEYS = {name: f"slurm.{name}" for name in ("partition", "account", "qos", "constraint", "reservation", "array")}
KEYS |= {"container-workdir": "workdir"}
"""Keys of options of sbatch and srun; those not named in this file become `slurm.options` or `slurm.srun_options`."""

_RENDERED = ("no-requeue", "open-mode", "kill-on-bad-exit", "wait", "jobid")
_OF_JOB = (*KEYS, *_RENDERED, "time", "job-name", "mem", "output", "error", "nodelist", "chdir")
_STEP = {"o": "output", "e": "error", "J": "job-name", "p": "partition", "A": "account", "t": "time", "D": "chdir"}
_BIND = {"apptainer": ("-B", "--bind"), "singularity": ("-B", "--bind")}
_APPTAINER = "-B --bind --pwd --env --overlay -H --home -W --env-file"
_DOCKER = """
    -v --volume -e --env --gpus --shm-size --ipc --network --net --name -w --workdir --ulimit -u --user --mount
    --cap-add --device --runtime --entrypoint
"""
_TAKES = dict(apptainer=_APPTAINER, singularity=_APPTAINER, docker=_DOCKER, podman=_DOCKER)


def read_script(text: str, file: str) -> Draft:
    """Return the draft of one script."""
    draft = Draft(file, "slurm")
    draft.keep_secrets_of(text)
    draft.is_ours = "\n# Rendered by `render.py " in text[:1000]
    script = Script.parse(text, locator(text, file))
    program = Program(script)
    for directive in script.directives:
        _say_directive(draft, directive)
    names = {directive.name for directive in script.directives}
    if "signal" in names and "requeue" not in names:
        draft.say("preemption.max_requeues", 0, "not said", "the script asks for no --requeue")
    _say_sizes(draft, program)
    container = _say_container(draft, program)
    say_command(draft, program)
    say_around(draft, program, container)
    name = re.sub(r"[^a-z0-9]+", "-", file.rpartition("/")[2].partition(".")[0].lower()).strip("-")
    if not draft.has("name") and re.fullmatch("[a-z][a-z0-9-]{0,62}", name):
        draft.say("name", name, "the file's name")
    return draft


def _say_directive(draft: Draft, directive: Directive) -> None:
    name, value, where = directive.name, directive.value, f"line {directive.place.line}"
    written = f"--{name}{f'={value}' if value else ''}"
    if directive.ignored or not directive.known:
        why = {"spelling": "not spelled #SBATCH", "command": "stands below the first command", "": "unknown to sbatch"}
        draft.lose("slurm.options", written, where, f"sbatch does not read it: {why[directive.ignored]}")
    elif name in _SIZES:
        pass
    else:
        say_option(draft, name, value, where)


def say_option(draft: Draft, name: str, value: str, where: str, section: str = "slurm.options") -> None:
    """Say one option of sbatch, or of srun as one of `slurm.srun_options`."""
    if name == "job-name":
        slug = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")
        slug = slug if slug[:1].isalpha() else f"job-{slug}"
        draft.say("name", slug, where, f"{value} in the script" if slug != value else "")
    elif name == "time" and (seconds := _seconds(value)):
        draft.say("time_limit", duration(seconds), where)
    elif name == "mem" and (found := re.fullmatch(r"(\d+)([MGT]?)B?", value)) and int(found[1]):
        draft.say("resources.memory", f"{found[1]}{found[2] or 'M'}iB", where)
    elif name == "signal":
        grace = value.rpartition("@")[2] if "@" in value else "60"
        old = draft.said.pop(("preemption", "grace"), None)
        where = f"{where}, {old.where}" if old else where
        draft.say("preemption.grace", duration(number(grace) or 0), where, "at this signal processes get SIGTERM")
    elif name == "requeue" and draft.has("preemption.grace"):
        draft.join(draft.said["preemption", "grace"], where)
    elif name == "requeue":
        draft.say("preemption.grace", "2m", where, "the processes get SIGTERM so long before the end")
    elif name == "export":
        for each in value.split(","):
            variable, equals, held = each.partition("=")
            if equals:
                draft.say_in("env", variable, held, where)
            elif each.upper() == "ALL":
                draft.rendered.append(f"{where}: --export=ALL")
            else:
                draft.lose("slurm.options", f"--export={each}", where, "the whole environment is passed on")
    elif name == "container-image":
        draft.say("image", value.replace("#", "/", 1).removeprefix("docker://"), where)
        draft.say("slurm.runtime", "pyxis", where)
    elif name == "container-mounts":
        for each in value.split(","):
            _say_mount(draft, each, where)
    elif name in _RENDERED or (name == "output" and draft.is_ours):
        draft.rendered.append(f"{where}: --{name}{f'={value}' if value else ''}")
    elif name in KEYS:
        draft.say(KEYS[name], value, where)
    elif name == "time":
        draft.lose("slurm.options", f"--time={value}", where, "not a time")
    else:
        draft.say_in(section, name, number(value) if number(value) is not None else value or True, where)


def _say_sizes(draft: Draft, program: Program) -> None:
    script, launch = program.script, program.main
    step = launch.step if launch else None
    asked = request(script, step)
    job = request(script)
    lines: dict[str, str] = {}
    for each in script.directives:
        if each.name in _SIZES and not each.ignored:
            lines[each.name] = ", ".join(filter(None, [lines.get(each.name, ""), f"line {each.place.line}"]))

    def where(*names: str) -> str:
        return ", ".join(dict.fromkeys(lines[name] for name in names if name in lines)) or "not said"

    given = job.get("nodes")
    least, _, most = (given or "").partition("-")
    nodes, tasks, per_node = job.nodes, job.count("ntasks"), job.count("ntasks-per-node")
    if given is None and tasks and per_node:
        draft.say("nodes", -(-tasks // per_node), where("ntasks", "ntasks-per-node"))
    elif most and number(least) and number(most) and least != most:
        draft.say("nodes", {"min": int(least), "max": int(most)}, where("nodes"))
    elif nodes or given is None:
        draft.say("nodes", nodes or 1, where("nodes", "ntasks"), "" if nodes else "sbatch decides it, if not said")
    else:
        draft.lose("nodes", f"--nodes={given}", where("nodes"), "not a number")
    count = draft.said.get(("nodes",))
    number_of = count.value if count is not None and hasattr(count, "value") and isinstance(count.value, int) else 1
    gpus = asked.gpus_per_node or job.gpus_per_node
    of_gpus = where("gpus-per-node", "gres", "gpus", "gpus-per-task")
    agent = launch is not None and (launch.is_agent or launch.kind == "deepspeed")
    on_all = asked.tasks_per_node if step else 1
    say_processes(draft, program, on_all, gpus, number_of, where("ntasks-per-node", "ntasks"))
    procs = draft.said.get(("procs_per_node",))
    if gpus and of_gpus != "not said":
        draft.join(procs, of_gpus)
    if launch is not None and not agent:
        draft.say("slurm.launcher", "srun", program.where(launch.text.at[:1] or [0]), "one task per process")
    kinds = [each.partition(":")[2] for each in (job.get("gres") or "").split(",") if each.startswith("gpu:")]
    kinds += [job.get(name) or "" for name in ("gpus-per-node", "gpus", "gpus-per-task")]
    kind = next((each.rpartition(":")[0] for each in kinds if ":" in each), "")
    if kind:
        draft.say("gpu", kind, of_gpus)
    rest = ",".join(each for each in (job.get("gres") or "").split(",") if each and not each.startswith("gpu"))
    if rest:
        draft.say_in("slurm.options", "gres", rest, where("gres"))
    if not gpus and of_gpus != "not said":
        draft.lose("gpus_per_node", "GPUs of a node", of_gpus, "their number is not known")
    elif not gpus:
        draft.say(
            "device", "cpu", "not said", "the script asks for no GPUs; write cuda if the nodes give theirs anyway"
        )
    cpus = job.count("cpus-per-task")
    if cpus:
        tasks_there = job.tasks_per_node or 1
        draft.say("resources.cpus", cpus * tasks_there, where("cpus-per-task", "ntasks-per-node"))
    elif job.get("cpus-per-task"):
        draft.lose("resources", f"--cpus-per-task={job.get('cpus-per-task')}", where("cpus-per-task"), "not a number")
    named = " ".join(one.where for one in draft.said.values()) + " "
    draft.rendered += [f"{at}: --{name}" for name, at in lines.items() if f"{at} " not in named.replace(",", " ")]
    for name, option in step.options.items() if step else ():
        name = _STEP.get(name, name)
        value, at = script.shown(option.value), program.where(option.text.at)
        if not name:  # flags of one letter, which are read below
            continue
        if name in ("nodes", "ntasks", "ntasks-per-node") and not re.search(r"\$\{?SLURM|^\d", value):
            draft.lose("procs_per_node", f"srun --{name}={value}", at, "not a number that the script says")
        elif name in (*_SIZES, *_RENDERED) or (name in _OF_JOB and job.get(name) == value):
            draft.rendered.append(f"{at}: srun --{name}{f'={value}' if value else ''}")
        elif name.startswith("container-") or name == "export":
            say_option(draft, name, value, at, "slurm.srun_options")
        elif name in _OF_JOB:
            draft.lose("slurm.srun_options", f"srun --{name}={value}", at, "of the step alone")
        else:
            say_option(draft, name, value, at, "slurm.srun_options")
    for word in program.outer[1:] if step else ():
        if word is step.program or not word.value.startswith("-"):  # type: ignore[union-attr]
            break
        if re.fullmatch("-[EHkhlOQsuvVXZ]+", word.value):
            if "l" in word.value:
                draft.say("slurm.srun_options.label", True, program.where(word.at))
            if word.value.strip("-lu"):
                draft.lose("slurm.srun_options", f"srun {word.value}", program.where(word.at), "write its long name")


def _say_container(draft: Draft, program: Program) -> bool:
    name, words = program.container()
    if program.main is None:
        return draft.has("image")
    step = program.main.step
    where = program.where((step or program.main).text.at[:1])
    begin = next((at for at, word in enumerate(program.outer) if step and word is step.program), 0)
    if name not in _TAKES:
        if front := program.in_front(begin):
            draft.lose("command", front, where, "stands in front of the program")
        return draft.has("image")
    takes, at = _TAKES[name].split(), 0
    while at < len(words) and words[at] in ("exec", "run", "shell"):
        at += 1
    while at < len(words) and words[at].startswith("-"):
        flag, equals, value = words[at].partition("=")
        if not equals and flag in takes and at + 1 < len(words):
            at += 1
            value = words[at]
        value = program.script.shown(value)
        if flag in (*_BIND.get(name, ()), "-v", "--volume"):
            for each in value.split(","):
                _say_mount(draft, each, where)
        elif flag in ("--pwd", "-w", "--workdir"):
            draft.say("workdir", value, where)
        elif flag in ("--env", "-e") and "=" in value:
            draft.say_in("env", value.partition("=")[0], value.partition("=")[2], where)
        elif flag == "--shm-size" and (size := re.fullmatch(r"(\d+)([mgMG])[bB]?", value)):
            draft.say("resources.shm", f"{size[1]}{size[2].upper()}iB", where)
        elif flag in ("--nv", "--rocm", "--gpus", "--rm", "--ipc"):
            draft.rendered.append(f"{where}: {flag} {value}".rstrip())
        else:
            draft.lose("image", f"{name} {flag} {value}".rstrip(), where, "no key for it")
        at += 1
    if at < len(words):
        draft.say("image", program.script.shown(words[at]).removeprefix("docker://"), where)
        draft.say("slurm.runtime", "apptainer" if name == "singularity" else name, where)
    if front := program.in_front(len(program.outer) - len(words) + at + 1):
        draft.lose("command", front, where, "stands in front of the program")
    return True


def _say_mount(draft: Draft, written: str, where: str) -> None:
    source, _, rest = written.partition(":")
    path, _, mode = rest.partition(":")
    if not source.startswith("/") or re.search(r"[$,\"\\~]", source + path) or mode not in ("", "ro", "rw"):
        draft.lose("mounts", written, where, "a mount needs whole paths")
        return
    draft.add(
        "mounts", {"source": source, "path": path or source} | ({"read_only": True} if mode == "ro" else {}), where
    )


def _seconds(value: str) -> int | None:
    found = re.fullmatch(r"(?:(\d{1,3})-)?(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?", value)
    if not found:
        return None
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found[1] is not None:
        return ((days * 24 + first) * 60 + second) * 60 + third
    if found[4] is not None:
        return (first * 60 + second) * 60 + third
    return first * 60 + second
