"""What a script starts and what it does around that, as keys of a spec: for sbatch scripts and for containers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from jobspec.spec.variables import is_bash_variable, is_set_by_launcher
from migrate.draft import ASSIGNED, Draft
from migrate.shell import SHOWS, Launch, Program, Statement, Word, begins, is_secret, number, own_words

_NAMES_OF_FLAGS = """
    nnodes node-rank master-addr master-port rdzv-id rdzv-backend rdzv-endpoint standalone module m no-python use-env
    nproc-per-node total max-restarts hostfile same-network multi-gpu rdzv-conf local-addr monitor-interval
    start-method no-ssh launcher force-multi dynamo-backend
"""
LAUNCHER_FLAGS = frozenset(_NAMES_OF_FLAGS.split())
"""Flags of torchrun, accelerate and deepspeed that a key or the artifact itself stands for; any other is named."""

_NAMES_THAT_ACTIVATE = "module ml conda source . mamba micromamba spack ulimit umask export unset shopt activate"
_ACTIVATES = frozenset(_NAMES_THAT_ACTIVATE.split())
_ACTIVATING = re.compile(rf"(?:{'|'.join(map(re.escape, sorted(_ACTIVATES)))})\b|$")
_VARIABLE = re.compile(r"\$\{?(\w+)")
_EVERY_GPU = re.compile(r"gpu|auto|.*(?:GPUS_ON_NODE|GPUS_PER_NODE|nvidia-smi|device_count|NUM_GPUS|NGPU).*", re.S)


def duration(seconds: int) -> str:
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"


def say_command(draft: Draft, program: Program) -> None:
    """Say `command`, `no_python` and the secrets among its words."""
    launch = program.main
    if launch is None:
        return
    words = program.without_comments(list(own_words(launch)))
    lead: list[str] = []
    is_python = (
        launch.kind == "python" or (launch.is_agent and "no-python" not in launch.options) or launch.kind == "deepspeed"
    )
    flags = [word.value for word in launch.words[: len(launch.words) - len(words)]]
    if is_python and ({"m", "module"} & launch.options.keys() or "-m" in flags):
        lead = ["-m"]
    main = program.main_statement
    where = main.where if main else program.where([at for word in words for at in word.at] or [0])
    where = program.place or where
    plain, text = program.arguments(words, launch.inner)
    for name, value in program.secrets.items():
        draft.secret(name, value, where)
    remark = f"not known: {', '.join(program.asked)}" if program.asked else ""
    if text:
        start = shlex.join(["exec", *(["python3"] if is_python else []), *lead])
        plain, lead, is_python = ["bash", "-c", f"{start} {text}"], [], False
        remark = "; ".join(filter(None, [remark, "a shell, because a task must replace variables"]))
    if words and (plain or lead):
        if is_python and lead + plain[:1] == ["-m", "train"] and all(word[:2] == "--" for word in plain[1:]):
            for word in plain[1:]:
                flag, equals, value = word[2:].partition("=")
                key = "device" if flag == "device" else f"train.{flag.replace('-', '_')}"
                draft.say(key, _typed(value) if equals else True, where)
        else:
            draft.say("command", [*lead, *plain], where, remark)
    if not is_python and words:
        draft.say("no_python", True, where)
    if launch.kind == "python":
        for flag in flags:
            (
                draft.rendered.append(f"{where}: python {flag}")
                if flag in ("-m", "-u")
                else draft.lose("command", flag, where, "a flag of Python")
            )


def _typed(value: str) -> object:
    if re.fullmatch(r"-?\d{1,15}", value):
        return int(value)
    return float(value) if re.fullmatch(r"-?\d*\.?\d+(?:e-?\d+)?", value) else value


def say_processes(draft: Draft, program: Program, tasks: int | None, gpus: int | None, nodes: int, where: str) -> None:
    """Say how many processes a node has, who starts them, and the flags of the launcher."""
    launch = program.main
    if launch is None:
        return
    at = program.where(launch.text.at[:1] or [0])
    agent = launch.is_agent or launch.kind == "deepspeed"
    count = tasks
    remark = ""
    if agent:
        given, total = launch.value("nproc-per-node"), number(launch.value("total"))
        shown = program.script.shown(given)
        count = number(given) or (total // nodes if total and total % nodes == 0 else None)
        if count is None and (launch.kind != "torchrun" or _EVERY_GPU.fullmatch(shown)):
            count, remark = gpus, f"nproc-per-node is {shown}: the GPUs of a node" if shown else "the GPUs of a node"
        elif count is None and not given:
            count, remark = 1, "torchrun's default"
        elif count is None:
            count, remark = gpus, f"nproc-per-node is {shown}, which is not known: the GPUs of a node"
        begin = begins(launch)
        ours = launch.words[:begin] if begin is not None else launch.words
        for name, option in launch.options.items():
            if any(option.text is word for word in ours):
                value = program.script.shown(option.value)
                _say_flag(draft, program, name, value, program.where(option.text.at))
        if not launch.step and nodes > 1 and not program.script.in_container:
            draft.rendered.append(f"{at}: srun, which starts {launch.kind} on all {nodes} nodes, not only on the first")
    if count:
        draft.say("procs_per_node", count, at if agent else where, remark)
    if gpus and count and gpus != count:
        draft.say("gpus_per_node", gpus, where)


def _say_flag(draft: Draft, program: Program, name: str, value: str, where: str) -> None:
    timeout = re.search(r"(?<![a-z_])timeout=(\d+)", value)
    restarts = number(value)
    if name == "max-restarts" and restarts:
        draft.say("max_restarts", restarts, where)
    elif name == "rdzv-conf" and timeout:
        draft.say("rendezvous.timeout", duration(int(timeout[1])), where)
    elif name == "tee" and not program.script.in_container:
        draft.say("slurm.srun_options.label", True, where)
    elif name == "mixed-precision":
        draft.say_in("env", "ACCELERATE_MIXED_PRECISION", value, where)
    elif name in LAUNCHER_FLAGS and (name != "max-restarts" or restarts == 0):
        draft.rendered.append(f"{where}: --{name}{f' {value}' if value else ''}")
    else:
        draft.lose("command", f"--{name} {value}", where, "a flag of the launcher without a key")


def say_around(draft: Draft, program: Program, has_container: bool = False) -> None:
    """Say the statements before and after the program: env, workdir, setup, slurm.prologue and slurm.epilogue."""
    if draft.is_ours or program.is_plain:
        return
    statements, launch, main = program.statements, program.main, program.main_statement
    pod = program.script.in_container
    before = [one for one in statements if main is None or one.last < main.first]
    stays = _that_stay(program, before)
    kept = [one for one in before if id(one) in stays]
    texts = "\n".join(one.text for one in kept)
    own = {name for name in program.names if name not in program.script.exported}
    activates = all(one.names <= _ACTIVATES or one.names == {"cd"} for one in kept)
    local = own & set(_VARIABLE.findall(texts))
    key = "setup" if pod or (activates and not local and not has_container) else "slurm.prologue"
    for one in before:
        if id(one) in stays:
            _keep(draft, program, one, key)
        else:
            _say_statement(draft, program, one, key)
    for name in sorted(program.used & program.names - program.script.exported):
        draft.add(key, f"export {name}", "a word of the command", "the processes read it")
    if main is None or launch is None:
        return
    _say_beside(draft, program, launch, main, key)
    for one in (each for each in statements if each.first > main.last):
        if launch.command.function and one.names == {launch.command.function}:
            draft.rendered.append(f"{one.where}: {one.text}")
        elif one.names and one.names <= SHOWS:
            draft.lose("command" if pod else "slurm.epilogue", one.text, one.where, "only prints something")
        elif pod:
            draft.lose("command", one.text, one.where, "a pod ends with its processes")
        else:
            _keep(draft, program, one, "slurm.epilogue")


def _that_stay(program: Program, before: Sequence[Statement]) -> set[int]:
    """Return the statements that stay lines of bash: what they do, or a variable of theirs, is needed."""
    needed, stay = set(program.used), set()
    for one in reversed(before):
        names = {name for name, _ in _assigned(one)}
        shows = one.names == {"set"} or (one.names and one.names <= SHOWS)
        if names and _only_assigns(one):
            exports = any(
                name in program.script.exported and not _constant(program.held(name)) and not program.inlined(word)
                for name, word in _assigned(one)
            )
            here = bool(names & needed or exports) and not all(map(is_set_by_launcher, names))
        else:
            here = not shows or bool(names & needed)
        if here:
            stay.add(id(one))
            needed.update(_VARIABLE.findall(one.text))
    return stay


def _say_statement(draft: Draft, program: Program, one: Statement, key: str) -> None:
    """Say or name a statement that is no line of bash in the spec."""
    if one.names == {"set"}:
        draft.rendered.append(f"{one.where}: {one.text}")
    elif not _only_assigns(one):
        draft.lose(key, one.text, one.where, "only prints something")
    for name, word in _assigned(one):
        if name in program.script.exported and not is_set_by_launcher(name) and not program.inlined(word):
            _say_variable(draft, program, name, word)
        elif is_secret(name, word.value):
            draft.secret(name, word.value, one.where)
        elif _only_assigns(one):
            draft.rendered.append(f"{one.where}: {name}")


def _say_beside(draft: Draft, program: Program, launch: Launch, main: Statement, key: str) -> None:
    """Say what stands in the same statement as the program, such as `NCCL_DEBUG=INFO srun …` and `… && torchrun …`."""
    own = (launch.step or launch).command
    inside = [each for each in program.script.inside_texts if each.words]
    plain = not re.match(r"(?:if|for|while|until|case|function|\w+ *\(\)|[({])", main.text.lstrip())
    for listed, here in ((main.commands, key), (inside, "setup")):
        texts = [word.text.at for each in listed for word in each.words if word.assigned]
        spans = [(text[0], text[-1]) for text in texts if len(text)]
        position = next((at for at, each in enumerate(listed) if each in (own, launch.command)), len(listed))
        for at, each in enumerate(listed):
            where = program.where([each.start])
            if any(low < each.start <= high for low, high in spans):
                continue
            mine = each is own or each is launch.command
            for word in each.words if mine or (_assigns(each.words) and listed is inside) else ():
                if word.assigned and listed is inside and "$" in word.value and not is_set_by_launcher(word.assigned):
                    draft.add("setup", program.script.shown(f"export {word.text.value}"), where)
                elif word.assigned:
                    _say_variable(draft, program, word.assigned, word)
            if mine or (_assigns(each.words) and listed is inside):
                continue
            text = program.raw(listed, at) if plain and at < position else None
            if text and each.name not in SHOWS:
                draft.add(here, text, where)
            else:
                shown = program.script.shown(" ".join(word.text.value for word in each.words))
                draft.lose("command", shown, where, "stands beside the program")


def _assigns(words: Sequence[Word]) -> bool:
    return all(word.assigned or word.value in ("export", "declare", "-x", "readonly") for word in words)


def _assigned(one: Statement) -> list[tuple[str, Word]]:
    return [(name, word) for each in one.commands for word in each.words if (name := word.assigned)]


def _only_assigns(one: Statement) -> bool:
    """Return True for assignments alone; the commands whose output they take do not count."""
    spans = [(word.text.at[0], word.text.at[-1]) for _, word in _assigned(one) if len(word.text.at)]
    others = [each for each in one.commands if not _assigns(each.words)]
    return bool(spans) and all(any(low <= each.start <= high for low, high in spans) for each in others)


def _say_variable(draft: Draft, program: Program, name: str, word: Word) -> None:
    held = program.held(name) or []
    where = program.where(word.text.at)
    value = held[0].value if held else word.value
    if is_secret(name, value):
        draft.secret(name, value, where)
    elif is_set_by_launcher(name) or is_bash_variable(name):
        draft.rendered.append(f"{where}: {name}")
    else:
        draft.say_in("env", name, program.script.shown(value), where)


def _constant(held: Sequence[object] | None) -> bool:
    return held is not None and all(re.search("[\U000f0000-\U000fffff~]", one.value) is None for one in held)  # type: ignore[attr-defined]


def _keep(draft: Draft, program: Program, one: Statement, key: str) -> None:
    """Keep a statement as a line of bash, or as `workdir`."""
    words = [word.value for each in one.commands for word in each.words]
    first = all(
        path[0] != "setup" or _ACTIVATING.match(str(getattr(said, "value", ""))) for path, said in draft.said.items()
    )
    if one.names == {"cd"} and len(words) == 2 and re.fullmatch(r"/[^$:,]*", words[1]) and key == "setup" and first:
        draft.say("workdir", words[1], one.where)
        return
    line = one.one_line() if one.commands else None
    for name, value in ASSIGNED.findall(one.text):
        if is_secret(name, value):
            draft.secret(name, value, one.where)
    if line is None:
        draft.lose(key, one.text, one.where, "not one line of bash")
    elif program.asked_in(line):
        draft.lose(key, one.text, one.where, "an argument of the script, which is not known")
    else:
        draft.add(key, line, one.where)
