"""Find known faults in scripts, manifests and compose files that others wrote.

Reading order: what rules see (sbatch.py, shell.py, launches.py; manifest.py), rules.py (what a rule is), the rules for
scripts (nodes.py, slurm.py, secrets.py, checkers.py) and manifests (kubernetes.py); formats.py shows findings.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from jobspec.problems import Place, SpecError
from lint import checkers, kubernetes, nodes, secrets, slurm
from lint.manifest import Manifest, containers, documents
from lint.rules import ERROR, Finding, entries, findings
from lint.secrets import hide_secrets
from lint.shell import Script, Versions, locator

__all__ = ["Finding", "Versions", "entries", "exit_code", "lint"]

OF_SCRIPTS = (checkers, nodes, slurm, secrets)

_YAML = (".yaml", ".yml", ".json")
_SHELLS = (".sh", ".bash", ".sbatch", ".slurm", ".job")
_SHELL = re.compile(r"#!.*[/ ](?:ba|da|k|z)?sh\b")
_DIRECTIVE = re.compile(r"^#SBATCH\s", re.M)
_IS_YAML = re.compile(r"\s*\{\s*\"|(?s:.*?)^(?:apiVersion|services):", re.M)
_IN_FOLDERS = (*_SHELLS, ".yaml", ".yml")  # .json is mostly data there
_IGNORE = re.compile(r"#\s*lint:\s*ignore=([\w-]+(?:\s*,\s*[\w-]+)*)")
_MAX_BYTES = 10 << 20
_UNKNOWN = "lint does not know this kind of file"
_NO_MANIFEST = "neither a Kubernetes manifest nor a compose file"
_READS = (
    f"lint reads shell scripts ({', '.join(_SHELLS)}, or a first line such as #!/bin/bash), "
    f"Kubernetes manifests and compose files ({', '.join(_YAML)})"
)


def lint(paths: Sequence[str], skipped: list[str] | None = None, versions: Versions | None = None) -> list[Finding]:
    """Return every fault in some files, folders and patterns, sorted by file and place; each file once; `-` is stdin.

    A file that lint cannot read is a finding without a rule.  In a folder, one of another kind is added to `skipped`.
    """
    given = {path: _files_in(path) for pattern in paths for path in _matching(pattern)}
    named = {os.path.realpath(path) for path, files in given.items() if files == [path]}
    found, done = list[Finding](), set[str]()
    for path, files in given.items():
        if not files:
            found.append(_unreadable(path, "", f"no file in this folder ends in {' or '.join(_IN_FOLDERS)}"))
        for file in files:
            really = os.path.realpath(file)
            own = hide_secrets(_lint(file, versions or Versions())) if really not in done else []
            done.add(really)
            if really in named or all(each.message not in (_UNKNOWN, _NO_MANIFEST) for each in own):
                found += own
            elif skipped is not None:
                skipped.append(file)
    return found


def _matching(path: str) -> list[str]:
    """Return the files of a pattern, sorted; the path itself if there are none."""
    start = Path(Path(path).anchor)
    found = start.glob(str(Path(path).relative_to(start))) if set(path) & set("*?[") else []
    return sorted(map(str, found)) or [path]


def _files_in(path: str) -> list[str]:
    """Return the file; of a folder those in it and below that lint reads, and what cannot be listed, without hidden."""
    if path == "-" or not Path(path).is_dir():
        return [path]
    files, unlisted = list[Path](), list[str]()
    for above, folders, names in os.walk(path, onerror=lambda error: unlisted.append(str(error.filename))):
        folders[:] = [name for name in folders if name[0] != "."]
        files += [Path(above, name) for name in names if name[0] != "." and name.endswith(_IN_FOLDERS)]
    return unlisted + sorted(str(file) for file in files if file.is_file())  # no pipes and no broken links


def _lint(file: str, versions: Versions) -> list[Finding]:
    text, path = "", Path(file)
    try:
        with sys.stdin.buffer if file == "-" else path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise OSError(0, f"larger than {_MAX_BYTES >> 20} MiB, too large for lint")
        text = data.decode("utf-8-sig")
        starts = text.startswith("#!")
        if path.suffix in _YAML or (not path.suffix and not starts and _IS_YAML.match(text)):
            return _without_ignored(text, file, _lint_yaml(text, file))
        is_shell = _SHELL.match(text) if starts else path.suffix in _SHELLS or _DIRECTIVE.search(text)
        if "\0" not in text and (is_shell or file == "-"):
            script = Script(text, locator(text, file))
            script.versions = versions
            found = [*findings(script, *OF_SCRIPTS)]
            if all(each.rule != "bash-refuses-it" for each in found):
                found += checkers.shellcheck(script)
            return _without_ignored(text, file, found, script)
        if starts and path.suffix in _SHELLS:
            program = text.split("\n", 1)[0].split()[-1].rpartition("/")[2]
            return [_unreadable(file, text, f"its first line starts {program}, and lint reads bash and sh")]
        return [_unreadable(file, text, _UNKNOWN, _READS)]
    except UnicodeDecodeError as error:
        return [_unreadable(file, "", f"not UTF-8 text: byte 0x{data[error.start]:02x}", "save the file as UTF-8")]
    except SpecError as error:
        return [Finding(each.place, each.message, each.hint, each.link) for each in error.problems]
    except RecursionError:
        return [_unreadable(file, text, "its brackets and quotes are nested too deeply for lint")]
    except OSError as error:
        link = f"it is a link to {path.readlink()}, which is not there" if path.is_symlink() else ""
        return [_unreadable(file, "", error.strerror or "cannot be read", link)]


def _without_ignored(text: str, file: str, found: Iterable[Finding], script: Script | None = None) -> list[Finding]:
    """Leave out what `# lint: ignore=RULE` switches off: in its command, or alone on a line for the whole file.

    In a script, such words are only text where no comment begins, as in a here-document.
    """
    kept, lines, locate = list(found), text.split("\n"), locator(text, file)
    commands = script.commands if script and _IGNORE.search(text) else ()
    ends = ((locate(each.end, 1).line, locate(each.start, 1).line) for each in commands)
    begins = dict(sorted(ends, reverse=True))  # of the first of all commands that end on a line
    for match in _IGNORE.finditer(text):
        place, names = locate(match.start(), len(match[0])), re.findall(r"[\w-]+", match[1])
        if script and not script.source.is_comment(match.start()):
            continue
        first = begins.get(place.line, place.line)
        while first > 1 and lines[first - 2].endswith("\\"):
            first -= 1
        is_alone = not place.text[: place.column - 1].strip()
        off = range(len(lines) + 1) if is_alone else range(first, place.line + 1)
        kept = [each for each in kept if each.rule not in names or each.place.line not in off]
        for name in (each for each in names if each not in entries() and not re.fullmatch(r"SC\d+", each)):
            rule, reason = entries()["ignores-no-rule"], f"there is no rule {name} [ignores-no-rule]"
            kept.append(Finding(place, reason, rule.fix, rule.link, rule.severity, rule.name))
    return sorted(set(kept), key=lambda each: (each.place.line, each.place.column, each.message))


def _unreadable(file: str, text: str, message: str, hint: str = "") -> Finding:
    return Finding(Place(file, 1, 1, 1, text.split("\n", 1)[0]), message, hint)


def _lint_yaml(text: str, file: str) -> Iterator[Finding]:
    objects = documents(text, file)
    known = [each for each in objects if each.get("kind") or each.get("services")]
    inside = [containers(document) for document in known]
    yield from findings(Manifest(known, [each for found in inside for each in found]), kubernetes)
    for document, found in zip(known, inside, strict=True):
        for container in found:
            yield from findings(container.script, *OF_SCRIPTS)
        kind = document.get("kind")
        if kind and document.says(r"\bcontainers\b") and not found and kind.text() != "TrainJob":
            message = f"lint does not know where the pods of a {kind.text()} are, so they were not checked"
            yield Finding(kind.place, message, "give lint the pod template as a Pod, and the pod's script as a file")
    if not known:
        ours = any(document.get("procs_per_node") or document.get("nodes") for document in objects)
        told = f"check a job spec with `render.py TARGET {file}`; lint checks what was rendered from it"
        yield _unreadable(file, text, _NO_MANIFEST, told if ours else _READS)


def exit_code(found: Sequence[Finding], strict: bool) -> int:
    """Return 4 if a file could not be read, else 1 if there are errors (with `strict`, warnings too), else 0."""
    if any(not each.rule for each in found):
        return 4
    return int(any(strict or each.severity == ERROR for each in found))
