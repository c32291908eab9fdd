"""An sbatch script as a draft of a spec."""

from __future__ import annotations

import re
from collections.abc import Callable

from lint.launches import Launch, request
from lint.sbatch import Request, number
from lint.shell import Script, locator
from migrate.bash import keep_what_only_a_run_knows, main_launch, where
from migrate.draft import Draft
from migrate.program import duration, is_agent, say_processes, say_program


def _seconds(value: str) -> str | None:
    found = re.fullmatch(r"(?:(\d{1,3})-)?(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?", value)
    if not found:
        return None
    days, *parts = (int(part or 0) for part in found.groups())
    if not found[1] and not found[4]:  # minutes, or minutes and seconds
        parts = [0, *parts]
    return duration(days * 86400 + parts[0] * 3600 + parts[1] * 60 + parts[2])


def _memory(value: str) -> str | None:
    found = re.fullmatch(r"(\d+)([MGT]?)B?", value)
    return f"{found[1]}{found[2] or 'M'}iB" if found and int(found[1]) else None


def _name(value: str) -> str | None:
    name = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")
    return name if name[:1].isalpha() or not name else f"job-{name}"


KEYS: dict[str, tuple[str, Callable[[str], str | None]]] = {
    "job-name": ("name", _name),
    "time": ("time_limit", _seconds),
    "mem": ("resources.memory", _memory),
    **{name: (f"slurm.{name}", str) for name in ("partition", "account", "qos", "constraint", "reservation", "array")},
}
"""Keys of sbatch's options, and how a value is written there; any other option is one of `slurm.options`."""
_SIZES = ("nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres", "cpus-per-task")
_RENDERED = ("no-requeue", "open-mode", "kill-on-bad-exit", "wait", "jobid")
_IGNORED = {"spelling": "not spelled #SBATCH", "command": "stands below the first command", "": "unknown to sbatch"}


def read_script(text: str, file: str) -> Draft:
    """Return the draft of one script."""
    name = "stdin" if file == "-" else file.rpartition("/")[2]
    draft = Draft(name, "slurm", [text])
    draft.is_ours = "\n# Rendered by `render.py " in text[:1000]
    script = Script.parse(text, locator(text, file))
    keep_what_only_a_run_knows(script)
    for each in script.directives:
        at, written = f"line {each.place.line}", f"--{each.name}{f'={each.value}' if each.value else ''}"
        if each.ignored or not each.known:
            draft.lose(written, at, f"sbatch does not read it: {_IGNORED[each.ignored]}")
        elif each.name not in _SIZES:
            _say_option(draft, "slurm.options", each.name, each.value, at)
    launch = main_launch(script)
    _say_sizes(draft, script, launch)
    if launch and launch.step:
        _say_step(draft, script, launch.step)
    if launch:
        say_program(draft, script, launch)
    if not draft.get("name") and (slug := _name(name.partition(".")[0])):
        draft.say("name", slug, "the file's name")
    return draft


def _say_option(draft: Draft, section: str, name: str, value: str, at: str) -> None:
    key, convert = KEYS.get(name, ("", None))
    said = convert(value) if convert else None
    if (
        name in _RENDERED
        or (name in ("output", "signal", "requeue") and draft.is_ours)
        or (name, value) == ("export", "ALL")
    ):
        draft.lose(f"--{name}{f'={value}' if value else ''}", at)
    elif said:
        draft.say(key, said, at, f"{value} in the script" if key == "name" and said != value else "")
    else:
        draft.say((*section.split("."), name), number(value) if number(value) is not None else value or True, at)


def _say_sizes(draft: Draft, script: Script, launch: Launch | None) -> None:
    """Say nodes, processes, GPUs and CPUs of a node."""
    step, job, lines = launch.step if launch else None, request(script), dict[str, str]()
    for each in script.directives:
        if each.name in _SIZES and not each.ignored:
            lines[each.name] = ", ".join(filter(None, [lines.get(each.name, ""), f"line {each.place.line}"]))

    def at(*names: str) -> str:
        return ", ".join(dict.fromkeys(lines.pop(name) for name in names if name in lines)) or "not said"

    _say_nodes(draft, job, at)
    tasks = job.tasks_per_node or 1
    asked = request(script, step)
    gpus = asked.gpus_per_node or job.gpus_per_node
    of_gpus = at("gpus-per-node", "gres", "gpus", "gpus-per-task")
    say_processes(draft, script, launch, asked.tasks_per_node if step else 1, gpus)
    procs = draft.said.get(("procs_per_node",))
    if procs:
        found = [procs.where] if procs.where != "not said" else []
        found += [each for each in (at("ntasks-per-node", "ntasks"), of_gpus) if each != "not said"]
        procs.where = ", ".join(found) or procs.where
    if launch and not is_agent(launch):
        draft.say(
            "slurm.launcher", "srun", where(script, launch.command.start, launch.command.start), "one task per process"
        )
    gres = (job.get("gres") or "").split(",")
    kinds = [each.partition(":")[2] for each in gres if each.startswith("gpu:")]
    kinds += [job.get(name) or "" for name in ("gpus-per-node", "gpus", "gpus-per-task")]
    if kind := next((each.rpartition(":")[0] for each in kinds if ":" in each), ""):
        draft.say("gpu", kind, of_gpus)
    if rest := ",".join(each for each in gres if each and not each.startswith("gpu")):
        draft.say(("slurm", "options", "gres"), rest, of_gpus)
    if not gpus and of_gpus != "not said":
        draft.lose("the GPUs of a node", of_gpus, "their number is not known")
    elif not gpus:
        remark = "the script asks for no GPUs; write cuda if the nodes give theirs anyway"
        draft.say("device", "cpu", "not said", remark)
    if cpus := job.count("cpus-per-task"):
        draft.say("resources.cpus", cpus * tasks, at("cpus-per-task"))
    for name, places in lines.items():
        draft.lose(f"--{name}={job.get(name)}", places, "" if job.count(name) else "not a number")


def _say_nodes(draft: Draft, job: Request, at: Callable[..., str]) -> None:
    given, tasks, per_node = job.get("nodes"), job.count("ntasks"), job.count("ntasks-per-node")
    least, _, most = (given or "").partition("-")
    if given is None and tasks and per_node:
        draft.say("nodes", -(-tasks // per_node), at("ntasks", "ntasks-per-node"))
    elif number(least) and number(most) and least != most:
        draft.say("nodes", {"min": int(least), "max": int(most)}, at("nodes"))
    elif job.nodes or given is None:
        draft.say("nodes", job.nodes or 1, at("nodes"), "" if job.nodes else "sbatch decides it, if not said")


def _say_step(draft: Draft, script: Script, step: Launch) -> None:
    """Say srun's own options."""
    job = request(script)
    for name, option in step.options.items():
        value = script.shown(option.value)
        at = where(script, option.text.at[0], option.text.at[-1]) if option.text.at else "line 1"
        written = f"srun --{name}{f'={value}' if value else ''}"
        is_size = name in _SIZES and (re.search(r"\$\{?SLURM|^\d", value) or not name.startswith("n"))
        if is_size or (value and job.get(name) == value):
            draft.lose(written, at)
        elif name in _SIZES or name in KEYS:
            draft.lose(written, at, "of the step alone, or not a number that the script says")
        elif name:  # flags of one letter are read below
            _say_option(draft, "slurm.srun_options", name, value, at)
    for word in step.words:
        if word is step.program:
            break
        if re.fullmatch("-[EHkhlOQsuvVXZ]+", word.value):
            draft.lose(f"srun {word.value}", where(script, word.at[0], word.at[-1]), "write its long name")
