"""What a script or container starts, and what it does around that, as keys of a spec."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jobspec.spec.variables import is_bash_variable, is_set_by_launcher
from lint.launches import Launch
from lint.sbatch import number
from lint.shell import Command, Script
from lint.words import Text, Word
from migrate.bash import SHOWS, UNKNOWN, Statement, in_front, is_plain, own_words, statements, where
from migrate.draft import Draft

_NAMES_OF_FLAGS = """
    nnodes node-rank master-addr master-port rdzv-id rdzv-backend rdzv-endpoint standalone m module no-python use-env
    nproc-per-node total hostfile same-network multi-gpu no-ssh force-multi
"""
LAUNCHER_FLAGS = frozenset(_NAMES_OF_FLAGS.split())
"""Flags of torchrun, accelerate and deepspeed that a key or the artifact itself stands for; any other is named."""
_NAMES_THAT_ACTIVATE = "module ml conda source . mamba micromamba spack ulimit umask export unset shopt activate"
_ACTIVATE = frozenset(_NAMES_THAT_ACTIVATE.split())
_VARIABLE = re.compile(r"\$\{?(\w+)")
_ARGUMENT = re.compile(r"\$(?:[1-9@*#]|\{[0-9@*#]+[^}]*\})")
_IN_SHELL = re.compile("([\U000f0000-\U000fffff]|" r"\$\{[^}]*\}|\$\w+|\$\([^)]*\)|`[^`]*`|\$[@*#?!])")
_BY_KUBELET = re.compile(r"\$\((\w+)\)")


def duration(seconds: int) -> str:
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"


def is_agent(launch: Launch | None) -> bool:
    return launch is not None and (launch.is_agent or launch.kind == "deepspeed")


def say_processes(draft: Draft, script: Script, launch: Launch | None, tasks: int | None, gpus: int | None) -> None:
    """Say how many processes a node has, and the launcher's flags.  tasks: those that srun or a pod starts there."""
    nodes, count, remark, at = draft.get("nodes"), tasks, "", "not said"
    nodes = nodes if isinstance(nodes, int) else 1
    if launch and is_agent(launch):
        at = _place(script, launch.text)
        given, total = launch.value("nproc-per-node"), number(launch.value("total"))
        count = number(given) or (total // nodes if total and total % nodes == 0 else None)
        if count is None and not given and launch.kind == "torchrun":
            count, remark = 1, "torchrun's default"
        elif count is None:
            count, remark = (
                gpus,
                f"nproc-per-node is {script.shown(given)}: the GPUs of a node" if given else "its GPUs",
            )
        ours, _ = own_words(script, launch)
        for name, option in launch.options.items():
            if any(option.text is word for word in ours):
                _say_flag(draft, name, script.shown(option.value), _place(script, option.text))
        if not launch.step and nodes > 1 and not script.in_container:
            draft.lose(f"srun, which starts {launch.kind} on all {nodes} nodes, not only on the first", at)
    if not draft.get("procs_per_node") and count:
        draft.say("procs_per_node", count, at, remark)
    if gpus and draft.get("procs_per_node") not in (None, gpus):
        draft.say("gpus_per_node", gpus, draft.where("nodes"))


def _say_flag(draft: Draft, name: str, value: str, at: str) -> None:
    if name == "max-restarts" and number(value):
        draft.say("max_restarts", int(value), at)
    else:
        known = name in LAUNCHER_FLAGS or (name, value) == ("max-restarts", "0")
        draft.lose(f"--{name} {value}", at, "" if known else "a flag of the launcher that is not taken over")


def say_program(draft: Draft, script: Script, launch: Launch, place: str = "") -> None:
    """Say `command` and what stands around it.  place: where it stands, if it has no statement of its own."""
    around = statements(script) if not is_plain(script) else []
    start = (launch.step or launch).command.start
    main = next((one for one in around if one.start <= start < one.end), None)
    place = place or (main.where if main else _place(script, launch.text))
    before, words = own_words(script, launch)
    used = _say_command(draft, script, launch, [word.value for word in before], words, place)
    if front := in_front(script, launch):
        draft.lose(front, place, "stands in front of the program; a container is `image` and `slurm.runtime`")
    if main and not draft.is_ours:
        _say_around(draft, script, launch, around, main, used)


def _say_command(
    draft: Draft, script: Script, launch: Launch, flags: list[str], given: Sequence[Text], place: str
) -> set[str]:
    """Say the program and its arguments; return the variables that a shell must replace in them."""
    agent_runs_python = is_agent(launch) and "no-python" not in launch.options
    is_python = launch.kind == "python" or agent_runs_python
    is_module = is_python and ({"m", "module"} & launch.options.keys() or "-m" in flags)
    for flag in flags if launch.kind == "python" else ():
        draft.lose(f"python {flag}", place, "" if flag in ("-m", "-u") else "a flag of Python")
    words = _Words(draft, script, launch.inner)
    for word in given:
        words.read(word)
    plain = ["-m", *words.plain] if is_module else words.plain
    remark = f"not known: {', '.join(words.asked)}" if words.asked else ""
    if words.needs_shell:
        start = ["exec", *(["python3"] if is_python else []), *(["-m"] if is_module else [])]
        plain, is_python = ["bash", "-c", " ".join([*start, *words.quoted])], False
        remark += "; a shell, because a task must replace variables" if remark else "a shell must replace variables"
    if is_python and plain[:2] == ["-m", "train"] and all(word[:2] == "--" for word in plain[2:]):
        for word in plain[2:]:
            flag, equals, value = word[2:].partition("=")
            key = "device" if flag == "device" else f"train.{flag.replace('-', '_')}"
            draft.say(key, _typed(value) if equals else True, place)
    elif plain:
        draft.say("command", plain, place, remark)
        if not is_python:
            draft.say("no_python", True, place)
    return words.used


def _typed(value: str) -> object:
    if re.fullmatch(r"-?\d{1,15}", value):
        return int(value)
    return float(value) if re.fullmatch(r"-?\d*\.?\d+(?:e-?\d+)?", value) else value


@dataclass
class _Words:
    """The words of a program: as they are, and as a shell must read them if it has to replace variables.

    asked: what the source does not say.  used: the variables that are to be replaced.
    """

    draft: Draft
    script: Script
    inner: bool
    plain: list[str] = field(default_factory=list)
    quoted: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    needs_shell: bool = False

    def read(self, word: Text) -> None:
        value, text, raw, names = word.value, "", "", self.script.names
        for secret in self.draft.secrets:
            self.asked += ["the value of a secret"] if secret in value else []
            value = value.replace(secret, "change-me")
        by_kubelet = is_plain(self.script)
        parts = (_BY_KUBELET if by_kubelet else _IN_SHELL if self.inner else UNKNOWN).split(value)
        for at, part in enumerate(parts):
            written = f"${{{part}}}" if at % 2 and by_kubelet else names.get(part, part)
            if at % 2 and (_ARGUMENT.match(written) or self._loops(written)):
                self.asked.append(written)
                raw, text = raw + "change-me", text + "change-me"
            elif at % 2:
                self.needs_shell = True
                self.used.update(_VARIABLE.findall(written))
                begin = word.at[0] if word.at else 0
                is_bare = parts[::2] == ["", ""] and re.match(r"\s" + re.escape(written), self.script.text[begin - 1 :])
                text += written if is_bare else f'"{written}"'
            else:
                raw, text = raw + part, text + (shlex.quote(part) if part else "")
        self.plain.append(raw)
        self.quoted.append(text or "''")

    def _loops(self, written: str) -> bool:
        name = _VARIABLE.match(written)
        return name is not None and re.search(rf"\bfor\s+{name[1]}\s+in\b", self.script.text) is not None


def _say_around(
    draft: Draft, script: Script, launch: Launch, around: list[Statement], main: Statement, used: set[str]
) -> None:
    """Say the statements before and after the program: env, workdir, setup, slurm.prologue and slurm.epilogue."""
    in_pod = script.in_container
    before = [one for one in around if one.end <= main.start]
    beside = list(_beside(draft, script, launch, main))
    needed = used.union(*(_VARIABLE.findall(line) for line, _ in beside))
    kept: list[Statement] = []
    for one in reversed(before):
        if _must_stay(script, one, needed):
            kept.insert(0, one)
            needed.update(_VARIABLE.findall(one.text))
        else:
            _say_or_lose(draft, script, one)
    activate = all(one.names and one.names <= _ACTIVATE for one in kept) or [one.names for one in kept] == [{"cd"}]
    key = "setup" if in_pod or activate else "slurm.prologue"
    for one in kept:
        folder = re.fullmatch(r"cd (/[\w./-]*)", one.text)
        if folder and len(kept) == 1:
            draft.say("workdir", folder[1], one.where)
        else:
            _keep(draft, one, key)
    for line, at in beside:
        draft.add(key, line, at)
    for name in sorted(used & {name for one in kept for name, _ in _assigned(one)} - script.exported):
        draft.add(key, f"export {name}", "a word of the command", "the processes read it")
    for one in (each for each in around if each.start >= main.end):
        if launch.command.function and one.names == {launch.command.function}:
            draft.lose(one.text, one.where)
        elif one.names and one.names <= SHOWS:
            draft.lose(one.text, one.where, "only prints something")
        elif in_pod:
            draft.lose(one.text, one.where, "a pod ends with its processes")
        else:
            _keep(draft, one, "slurm.epilogue")


def _must_stay(script: Script, one: Statement, needed: set[str]) -> bool:
    """Return True for a statement that stays a line of bash: what it does, or a variable of it, is needed."""
    names = {name for name, _ in _assigned(one)}
    if names and _only_assigns(one.commands):
        exported = {name for name in names & script.exported if not _is_constant(script, name)}
        return bool(names & needed or exported) and not all(map(is_set_by_launcher, names))
    return bool(names & needed) or not (one.names == {"set"} or (one.names and one.names <= SHOWS))


def _say_or_lose(draft: Draft, script: Script, one: Statement) -> None:
    assigned = _assigned(one) if _only_assigns(one.commands) else []
    for name, word in assigned:
        if name in script.exported:
            _say_variable(draft, script, name, word)
        else:
            draft.lose(name, one.where)
    if not assigned:
        draft.lose(one.text, one.where, "" if one.names == {"set"} else "only prints something")


def _beside(draft: Draft, script: Script, launch: Launch, main: Statement) -> Iterator[tuple[str, str]]:
    """Yield the commands of `… && torchrun` or `bash -c '…; torchrun'` as lines; say variables in front of it."""
    own = (launch.step or launch).command
    in_list = not re.match(r"(?:if|for|while|until|case|function|\w+ *\(\)|[({])", main.text.lstrip())
    for listed in (main.commands, script.inside_texts if launch.inner else []):
        reach, is_before = -1, True
        for each, following in zip(listed, [*listed[1:], None], strict=True):
            if not each.words or each.start <= reach:  # part of a word of the command before
                continue
            at = where(script, each.start, each.start)
            reach = max((word.text.at[-1] for word in each.words if word.text.at), default=reach)
            is_own = each in (own, launch.command)
            if is_own or _only_assigns([each]):
                for word in each.words:
                    if word.assigned and _is_constant(script, word.assigned):
                        _say_variable(draft, script, word.assigned, word)
                    elif word.assigned and not is_set_by_launcher(word.assigned):
                        yield script.shown(f"export {word.text.value}"), at
                is_before = is_before and not is_own
                continue
            text = script.text[each.start : following.start if following else each.start]
            between = text.replace("&&", "").replace("\\\n", " ").strip().strip(";")
            line = script.shown(" ".join(word.text.value for word in each.words)).replace("\\\n", " ")
            is_line = in_list and is_before and line.isprintable() and not re.search("[<>|&]", between)
            if is_line and each.name not in SHOWS:
                yield line, at
            else:
                draft.lose(line, at, "stands beside the program")


def _only_assigns(commands: Sequence[Command]) -> bool:
    """Return True for assignments alone; the commands whose output they take do not count."""
    reach = -1
    for each in commands:
        if each.start <= reach:
            continue
        if not all(word.assigned or word.value in ("export", "declare", "-x", "readonly") for word in each.words):
            return False
        reach = max((word.text.at[-1] for word in each.words if word.text.at), default=reach)
    return True


def _assigned(one: Statement) -> list[tuple[str, Word]]:
    return [(name, word) for each in one.commands for word in each.words if (name := word.assigned)]


def _is_constant(script: Script, name: str) -> bool:
    held = script.holds(name)
    return held is not None and all(re.search("[\U000f0000-\U000fffff~$]", one.value) is None for one in held)


def _say_variable(draft: Draft, script: Script, name: str, word: Word) -> None:
    value, at = "".join(text.value for text in script.holds(name) or []), _place(script, word.text)
    if is_set_by_launcher(name) or is_bash_variable(name):
        draft.lose(name, at)
    else:
        draft.say(("env", name), value, at)


def _keep(draft: Draft, one: Statement, key: str) -> None:
    """Keep a statement as a line of bash."""
    line = one.one_line() if one.commands else None
    if line is None:
        draft.lose(one.text, one.where, "not one line of bash")
    elif _ARGUMENT.search(line):
        draft.lose(one.text, one.where, "an argument of the script, which is not known")
    else:
        draft.add(key, line, one.where)


def _place(script: Script, text: Text) -> str:
    return where(script, text.at[0], text.at[-1]) if text.at else "line 1"
