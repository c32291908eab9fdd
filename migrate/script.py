"""An sbatch script as a draft of a spec."""

import re
from collections.abc import Callable

from jobspec.slurm.rules import OF_SRUN
from lint.launches import Launch
from lint.sbatch import number
from lint.shell import Script, locator
from migrate.bash import AGENTS, main_launch, place, statements
from migrate.draft import NOT_SAID, Draft, duration
from migrate.program import say_processes, say_program


def _time(value: str) -> str | None:
    found = re.fullmatch(r"(?:(\d{1,3})-)?(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?", value)
    days, first, second, third = (int(part or 0) for part in found.groups()) if found else (0, 0, 0, 0)
    is_minutes = found and not found[1] and not found[4]  # minutes, or minutes and seconds
    seconds = first * 60 + second if is_minutes else days * 86400 + first * 3600 + second * 60 + third
    return duration(seconds) if seconds else None


def _memory(value: str) -> str | None:
    found = re.fullmatch(r"([1-9]\d*)([MGT]?)B?", value)
    return f"{found[1]}{found[2] or 'M'}iB" if found else None


def _name(value: str) -> str | None:
    name = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")
    return name if name[:1].isalpha() or not name else f"job-{name}"


KEYS: dict[str, tuple[str, Callable[[str], str | None]]]
KEYS = {name: (f"slurm.{name}", str) for name in ("partition", "account", "qos", "constraint", "reservation", "array")}
KEYS |= {"job-name": ("name", _name), "time": ("time_limit", _time), "mem": ("resources.memory", _memory)}
"""Keys of sbatch's options, and how a value is written there; any other option is one of `slurm.options`."""
_OF_GPUS = ("gpus-per-node", "gres", "gpus", "gpus-per-task")
_SIZES = ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", *_OF_GPUS)
_RENDERED = ("no-requeue", "open-mode", "kill-on-bad-exit", "wait", "jobid")


def read_script(text: str, file: str) -> Draft:
    """Return the draft of one script."""
    name = "stdin" if file == "-" else file.rpartition("/")[2]
    draft = Draft(name, "slurm", [text], is_ours="\n# Rendered by `render.py " in text[:1000])
    script = Script(text, locator(text, file))
    for each in script.directives:
        where = f"line {each.place.line}"
        if each.ignored or not each.known:
            draft.lose(f"--{each.name}={each.value}".rstrip("="), where, "sbatch does not read it: `lint` says why")
        elif each.name not in _SIZES:
            section = "slurm.srun_options" if each.name in OF_SRUN else "slurm.options"
            _say_option(draft, section, each.name, each.value, where)
    for found in re.finditer(r"^#SBATCH[ \t]+(?:het|pack)job\b.*", text, re.M):
        why = "a heterogeneous job cannot be rendered: the keys above mix its parts, and one program is taken"
        draft.lose(found[0], f"line {script.locate(found.start(), 1).line}", why)
    launch = main_launch(script)
    _say_sizes(draft, script, launch)
    if launch:
        _say_step(draft, script, launch.step)
        at = [at for word in (launch.step or launch).command.words for at in word.text.at]
        say_program(draft, script, launch, place(script, at))
    for one in statements(script, script.commands) if not launch else ():
        draft.lose(one.text, one.where, "no line of the script starts a program that trains")
    if not draft.get("name") and (slug := _name(name.partition(".")[0])):
        draft.say("name", slug, "the file's name")
    return draft


def _say_option(draft: Draft, section: str, name: str, value: str, where: str) -> None:
    key, convert = KEYS.get(name, ("", None))
    said = convert(value) if convert else None
    of_sbatch = (section, name) == ("slurm.options", "wait")  # until the job ends; srun's option is another
    if (name in _RENDERED and not of_sbatch) or (name, value) == ("export", "ALL"):
        draft.lose(f"--{name}={value}".rstrip("="), where)
    elif said:
        draft.say(key, said, where, f"{value} in the script" if name == "job-name" and said != value else "")
    else:
        draft.say((*section.split("."), name), number(value) if number(value) is not None else value or True, where)


def _say_sizes(draft: Draft, script: Script, launch: Launch | None) -> None:
    step, job = launch.step if launch else None, script.asked
    lines = dict[str, str]()
    for each in (each for each in script.directives if each.name in _SIZES and not each.ignored):
        lines[each.name] = ", ".join(filter(None, [lines.get(each.name), f"line {each.place.line}"]))

    def at(*names: str) -> str:
        return ", ".join(dict.fromkeys(lines.pop(name) for name in names if name in lines)) or NOT_SAID

    tasks, per_node = job.count("ntasks"), job.count("ntasks-per-node")
    least, _, most = (job.get("nodes") or "").partition("-")
    if job.get("nodes") is None and tasks and per_node:
        draft.say("nodes", -(-tasks // per_node), at("ntasks", "ntasks-per-node"))
    elif number(least) and number(most):
        draft.say("nodes", {"min": int(least), "max": int(most)}, at("nodes"))
    elif job.nodes or job.get("nodes") is None:
        draft.say("nodes", job.nodes or 1, at("nodes"), "" if job.nodes else "sbatch decides it, if not said")
    asked, where = launch.asked if launch else job, at(*_OF_GPUS)
    asked_of = [(name, each) for name in _OF_GPUS for each in (job.get(name) or "").split(",")]
    kinds = [each.removeprefix("gpu:") for name, each in asked_of if name != "gres" or each.startswith("gpu:")]
    for gres in re.findall(r"(?:^|,)(?!gpu)([^,]+)", job.get("gres") or ""):
        draft.lose(f"--gres={gres}", where, "not a GPU")
    if gpus := asked.gpus_per_node or job.gpus_per_node:
        draft.say("gpus_per_node", gpus, where)
        for kind in [each.rpartition(":")[0] for each in kinds if ":" in each][:1]:
            draft.say("gpu", kind, where)
    elif where != NOT_SAID:
        draft.say("gpus_per_node", " ".join(filter(None, map(job.get, _OF_GPUS))), where)
    is_agent = launch is not None and launch.kind in AGENTS
    of_tasks = NOT_SAID if is_agent else at("ntasks-per-node", "ntasks")
    say_processes(draft, script, launch, asked.tasks_per_node if step else 1, of_tasks)
    if launch and not is_agent and tasks and tasks % (job.nodes or 1):
        draft.lose(f"--ntasks={tasks}", place(script, launch.text.at), "not the same number of tasks on each node")
    if launch and not is_agent:
        draft.say("slurm.launcher", "srun", place(script, launch.text.at), "one task per process")
    if cpus := job.count("cpus-per-task"):
        draft.say("resources.cpus", cpus * (job.tasks_per_node or 1), at("cpus-per-task"))
    for name, line in lines.items():
        draft.lose(f"--{name}={job.get(name)}", line, "" if number(job.get(name) or "") else "not a number")


def _say_step(draft: Draft, script: Script, step: Launch | None) -> None:
    for name, option in step.options.items() if step else ():
        value, where = script.shown(option.value), place(script, option.text.at)
        if name in ("het-group", "pack-group"):
            draft.lose(f"srun --{name}={value}", where, "of a heterogeneous job")
        elif name in _SIZES or name in KEYS or "$" in value:
            is_size = name in (*_SIZES, *_RENDERED) and re.search(r"\$\{?SLURM|^\d", value)
            of_job = script.asked.get(name) == value or (is_size and (name != "nodes" or not number(value)))
            draft.lose(f"srun --{name}={value}", where, "" if of_job else "of the step alone, or not a number")
        else:
            _say_option(draft, "slurm.srun_options", name, value, where)
