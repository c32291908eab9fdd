"""What a script or container starts, and what it does around that, as keys of a spec."""

import re
import shlex

from jobspec.spec.shell import unset_in_a_batch_script
from jobspec.spec.variables import is_set_by_launcher
from lint.launches import Launch
from lint.sbatch import number
from lint.shell import Script
from lint.words import Text
from migrate.bash import AGENTS, SHOWS, UNKNOWN, Statement, before_srun, in_front, own_words, place, statements
from migrate.draft import NOT_SAID, Draft

_NAMES_OF_FLAGS = """
    nnodes node-rank master-addr master-port rdzv-id rdzv-backend rdzv-endpoint standalone m module no-python use-env
    nproc-per-node total hostfile same-network multi-gpu no-ssh force-multi
"""
LAUNCHER_FLAGS = frozenset(_NAMES_OF_FLAGS.split())
"""Flags of torchrun, accelerate and deepspeed that a key or the artifact itself stands for; any other is named."""
_NAMES_THAT_PREPARE = "module ml conda source . cd mamba micromamba spack ulimit umask export unset set shopt activate"
_PREPARE = frozenset(_NAMES_THAT_PREPARE.split())
_VARIABLE = re.compile(r"\$\{?(\w+)")
_DIFFERS = re.compile(r"\$\(|`|\$\$|\b(?:S?RANDOM|SECONDS|EPOCH)")  # in each shell
_EXPORTS_ALL = re.compile(r"set\s+[-+]\w*a|allexport")
_STRICT = re.compile(r"(?:^|[;&])\s*set\s(?:[^;&\n]*\s)?-\w*(?:e\b|e\w*\s|o\s+errexit)|^#!.*\s-\w*e", re.M)
_MODULES_IF_ANY = re.compile(r"(?:module|ml)\s[^&|;]*(?:2>|&>)\s*/dev/null")
_ARGUMENT = re.compile(r"\$(?:[1-9@*#]|\{[0-9@*#]+[^}]*\})")
_ARGUMENT_OR_ARRAY = re.compile(rf"{_ARGUMENT.pattern}|\$\{{\w+\[")  # no array can be exported
_IN_SHELL = re.compile("([\U000f0000-\U000fffff]|" r"\$\{[^}]*\}|\$\w+|\$\([^)]*\)|`[^`]*`|\$[@*#?!])")
_VARIES = re.compile("[\U000f0000-\U000fffff~$]")
_BY_KUBELET = re.compile("([\U000f0000-\U000fffff]|" r"\$\$|\$\(\w+\))")
_BY_BOTH = re.compile("([\U000f0000-\U000fffff]|" r"\$\$(?:\$\$)?|\$\(\w+\))")  # torchrun reads $$ as $, too


def say_processes(draft: Draft, script: Script, launch: Launch | None, tasks: int | None, where: str) -> None:
    """Say how many processes a node has, and the launcher's flags.  tasks: those that srun or a pod starts there."""
    nodes = draft.get("nodes") if isinstance(draft.get("nodes"), int) else 1
    gpus, count, remark = draft.get("gpus_per_node"), tasks, ""
    if not gpus:
        draft.said.pop(("gpus_per_node",), None)
        draft.say("device", "cpu", NOT_SAID, "the source asks for no GPUs; write cuda if the nodes give theirs anyway")
    if launch and launch.kind in AGENTS:
        where = place(script, launch.text.at)
        given, total = launch.value("nproc-per-node"), number(launch.value("total"))
        count = number(given) or (total // nodes if total and total % nodes == 0 else None)
        by_operator = draft.target in ("pytorchjob", "trainjob")  # which sets PET_NPROC_PER_NODE, by default to auto
        if count is None and not given and launch.kind == "torchrun" and not by_operator:
            count, remark = 1, "torchrun's default"
        elif count is None:
            count, remark = gpus, f"nproc-per-node is {script.shown(given) or 'not given'}: the GPUs of a node"
        ours, _ = own_words(launch)
        for name, option in launch.options.items():
            value, restarts = script.shown(option.value), number(option.value) if name == "max-restarts" else None
            if restarts or (restarts == 0 and not draft.get("max_restarts")):  # 0 is torchrun's default
                draft.say("max_restarts", restarts, place(script, option.text.at))
            elif any(option.text is word for word in ours):
                why = "" if name in LAUNCHER_FLAGS or restarts == 0 else "a flag without a key"
                if name == "nnodes" and re.fullmatch(r"\d+:\d+", value):
                    why = "a range is nodes: {min: …, max: …}"
                elif name == "nnodes" and number(value) not in (None, draft.get("nodes")):
                    why = "not the number of nodes that the job has"
                draft.lose(f"--{name} {value}", place(script, option.text.at), why)
        if re.search(r"-m\s+torch\.distributed\.launch\b", script.text) and "use-env" not in launch.options:
            draft.lose("--local-rank=N", where, "torchrun gives no such argument: the program must read LOCAL_RANK")
        if not launch.step and nodes > 1 and not script.in_container and not draft.is_ours:
            draft.lose(f"srun, which starts {launch.kind} on all {nodes} nodes, not only on the first", where)
    if count and not draft.get("procs_per_node"):
        draft.say("procs_per_node", count, where, remark)


def say_program(draft: Draft, script: Script, launch: Launch, where: str) -> None:
    """Say `command` and what stands around it."""
    front, kind = in_front(script, launch), "slurm.runtime"
    if front and front[0].rpartition("/")[2] in ("apptainer", "singularity") and len(front) > 2:
        draft.say("image", front.pop().removeprefix("docker://"), where)
        draft.say(kind, "apptainer", where)
    if launch.step and (first := before_srun(script, launch.step)) and not draft.is_ours:
        draft.lose(" ".join([*first, "srun"]), where, "stands in front of srun")
    if front and not draft.is_ours:
        draft.lose(" ".join(front), where, f"stands in front of the program; a container is `image` and `{kind}`")
    used = _say_command(draft, script, launch, where)
    if not draft.is_ours and not (script.in_container and not script.shell):
        _say_around(draft, script, launch, used)


def _say_command(draft: Draft, script: Script, launch: Launch, where: str) -> set[str]:
    """Say the program and its arguments; return the variables that a shell must replace in them."""
    before, words = own_words(launch)
    flags = [word.value for word in before]
    is_python = launch.kind == "python" or (launch.kind in AGENTS and "no-python" not in launch.options)
    module = ["-m"] if is_python and ({"m", "module"} & launch.options.keys() or "-m" in flags) else []
    for flag in flags if launch.kind == "python" else ():
        draft.lose(f"python {flag}", where, "" if flag in ("-m", "-u") else "a flag of Python")
    asked, used = list[str](), set[str]()
    both = [_word(draft, script, word, launch, asked, used) for word in words]
    plain = module + [raw for raw, _ in both if raw is not None]
    remarks = [f"not known: {', '.join(asked)}"] * bool(asked)
    if any(raw is None for raw, _ in both):
        start = ["exec", *(["python3"] if is_python else []), *module]
        plain, is_python = ["bash", "-c", " ".join([*start, *(text for _, text in both)])], False
        remarks.append("a shell, because a task must replace variables")
    draft.say("command", plain, where, "; ".join(remarks))
    if not is_python:
        draft.say("no_python", True, where)
    return used


def _word(
    draft: Draft, script: Script, word: Text, launch: Launch, asked: list[str], used: set[str]
) -> tuple[str | None, str]:
    """Return a word as it is, None if a shell must replace something in it, and as that shell must read it."""
    value, text, needs_shell = word.value, "", False
    for secret, variable in draft.secrets.items():
        value = value.replace(secret, script.unknown(f"${{{variable or 1}}}"))
    by_kubelet = script.in_container and not script.shell  # no shell reads a container's words
    kubelet = _BY_BOTH if launch.kind == "torchrun" else _BY_KUBELET
    parts = (kubelet if by_kubelet else _IN_SHELL if launch.inner else UNKNOWN).split(value)
    for at, part in enumerate(parts):
        written = script.names.get(part, f"${{{part[2:-1]}}}" if by_kubelet else part)
        name = _VARIABLE.match(written)
        if by_kubelet and part.startswith("$$"):
            parts[at] = part = "$"
        if at % 2 == 0 or part == "$":
            text += shlex.quote(part) if part else ""
        elif _ARGUMENT_OR_ARRAY.match(written) or (name and re.search(rf"\bfor\s+{name[1]}\s+in\b", script.text)):
            asked.append(written)
            parts[at] = "change-me"
            text += "change-me"
        else:
            needs_shell = True
            used.update(_VARIABLE.findall(written))
            begin = word.at[0] if len(word.at) else 0
            whole = parts[::2] == ["", ""] and script.text.startswith(written, begin)
            text += written if whole and script.text[begin - 1 : begin].isspace() else f'"{written}"'
    return None if needs_shell else "".join(parts), text or "''"


def _say_around(draft: Draft, script: Script, launch: Launch, used: set[str]) -> None:
    """Say the statements before and after the program: env, setup, slurm.prologue and slurm.epilogue."""
    before, after, needed, in_pod = list[Statement](), list[Statement](), set(used), script.in_container
    of_tasks, private = set[int](), set[str]()  # statements of the shell that each task starts; what it does not export
    source = launch.command.words[0].source
    inner = [each for each in script.inside_texts if launch.inner and each.words and each.words[0].source is source]
    for known, start in ((script.commands, (launch.step or launch).command.start), (inner, launch.command.start)):
        found = statements(script, known)
        main = next((at for at, one in enumerate(found) if one.ends[0] <= start <= one.ends[1]), len(found))
        for one in found[main : main + 1]:
            if one.kind != "command" or any(each.start == start and each.words[0].assigned for each in one.commands):
                draft.lose(one.text, one.where, "stands around the program, which alone is taken")
        for one in found if known is inner else ():
            of_tasks.add(id(one))
            private |= one.assigned if one.kind != "declaration_command" else set()
            script.exported |= one.assigned
            for name in one.assigned:
                script.assigned.pop(name, None)  # it has another value there
        before, after = before + found[:main], after + found[main + 1 :]
    kept, ends = list[Statement](), list[Statement]()
    for one in after:
        is_call = bool(launch.command.function) and launch.command.function in one.names
        follows_success = script.text[: one.ends[0]].rstrip(" \t\n\\").endswith("&&") or "$?" in one.text
        if is_call or in_pod or launch.inner or (one.names and one.names <= SHOWS):
            draft.lose(one.text, one.where, "follows the program, or only prints something")
        elif follows_success or _STRICT.search(script.text):
            draft.lose(one.text, one.where, "runs after a success only; slurm.epilogue always does")
        else:
            ends.append(one)
            needed.update(_VARIABLE.findall(one.text))
    for one in reversed(before):
        if _stays(draft, script, one, needed):
            kept.insert(0, one)
            needed.update(_VARIABLE.findall(one.text))
    once = [one for one in kept if id(one) not in of_tasks]
    prepares = all(one.names and one.names <= _PREPARE and not _differs(one) for one in once)
    key = "setup" if in_pod or (prepares and not ends) else "slurm.prologue"  # whose folder an epilogue has, too
    of_tasks |= {id(one) for one in once if one.names <= _PREPARE and unset_in_a_batch_script(one.text)}
    lines = [(one, "setup" if id(one) in of_tasks else key) for one in kept]
    homes = {name: where for one, where in lines for name in one.assigned}
    unknown = set[str]()
    for one, where in [*lines, *((one, "slurm.epilogue") for one in ends)]:
        line = one.one_line()
        elsewhere = {name for name in homes if homes[name] == "setup" != where}
        missing = sorted((unknown | elsewhere) & {*_VARIABLE.findall(one.text)})
        missing += unset_in_a_batch_script(one.text) if where != "setup" else []
        if re.match(r"\s*&(?!&)", script.text[one.ends[1] + 1 :]):
            draft.lose(one.text, one.where, "runs in the background")
            unknown |= one.assigned
        elif missing:
            draft.lose(one.text, one.where, f"{', '.join(missing)} would be empty")
            unknown |= one.assigned
        elif line and not _ARGUMENT.search(line):
            may_fail = not one.assigned and not in_pod and not _STRICT.search(script.text) and "||" not in line
            if may_fail and _MODULES_IF_ANY.fullmatch(line) and "&&" not in script.text:
                draft.add(where, f"{line} || true", one.where, "may fail, as in the script")
            else:
                draft.add(where, line, one.where, "ends the job if it fails" if may_fail else "")
        else:
            draft.lose(one.text, one.where, "not one line of bash, or it needs an argument of the script")
            unknown |= one.assigned
    for name in sorted(used & unknown):
        line = f': "${{{name}:?is not known; export it before you submit}}"'
        draft.add(homes.get(name, key), line, "not taken, see below", "not known")
    for name in sorted(used & homes.keys() - (script.exported - private)):
        draft.add(homes[name], f"export {name}", "a word of the command", "the processes read it")


def _stays(draft: Draft, script: Script, one: Statement, needed: set[str]) -> bool:
    """Return True for a statement that stays a line of bash; say what any other one exports, or name it."""
    if one.kind in ("variable_assignment", "variable_assignments", "declaration_command") and one.assigned:
        held = {name: script.holds(name) or [Text("$", ())] for name in sorted(one.assigned)}
        values = {name: "".join(text.value for text in texts) for name, texts in held.items()}
        varies = {name for name in script.exported & one.assigned if _VARIES.search(values[name])}
        if not all(is_set_by_launcher(name) for name in one.assigned) and one.assigned & (needed | varies):
            return True
        for name, value in values.items():
            if name not in script.exported or is_set_by_launcher(name):
                draft.lose(name, one.where)
            else:
                draft.say(("env", name), value, one.where)
        return False
    if one.names == {"set"} and _EXPORTS_ALL.search(one.text):
        return True
    if one.assigned & needed or one.kind == "redirected_statement" or not one.names or one.names - SHOWS - {"set"}:
        return True
    draft.lose(one.text, one.where, "" if one.names == {"set"} else "only prints or checks something")
    return False


def _differs(one: Statement) -> bool:
    return bool(one.assigned) and _DIFFERS.search(one.text) is not None
