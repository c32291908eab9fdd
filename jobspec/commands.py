"""The command line `render-job`: one job spec in, a script or manifest for one target out.

Exit codes: 0 done; 1 the input is wrong (all problems on stderr, nothing written) or something differs; 2 usage;
3 a bug in render-job.  Of `ssh`, the exit code of the node that failed first.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

from jobspec import targets
from jobspec.output import unusable_file, write
from jobspec.problems import SpecError, printable
from jobspec.train import __version__  # PYTHONPATH may have another train


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the result is the exit code."""
    # pydantic would look for plugins in everything that is installed, and show them the spec.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    args = _arguments(sys.argv[1:] if argv is None else argv)
    try:
        text, code = args.run(args)
        write(text, args.output)
        for note in args.notes:
            print(f"note: {printable(note)}", file=sys.stderr)
        return int(code)
    except SpecError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of the output has gone.  Without this, Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(unusable_file(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception:
        _report_bug()
        return 3


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line.  A mistake ends the program with the usage of the command."""
    parser = _parser()
    if not words:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    args, unknown = parser.parse_known_args(words)
    # argparse takes the files before an option, and calls the files after it unknown.
    if any(word.startswith("-") and word != "-" for word in unknown) or (unknown and "files" not in args):
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if unknown:
        args.files += unknown
    if args.output == "-":
        args.parser.error("-o - names no file; without -o, the output goes to stdout")
    return args


_ARTIFACTS = {"compose": "compose file", "slurm": "sbatch script", "torchrun": "torchrun script"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="render-job", description="Write a job spec as the script or manifest of a target.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in targets.names():
        text = f"write the {_ARTIFACTS.get(name, f'Kubernetes manifest ({name})')} of a job"
        command = _command(commands, name, text, _render)
        command.set_defaults(target=name)
        command.add_argument("-o", "--output", metavar="PATH", help="write to this file, not to stdout")
        _takes_spec(command)

    command = _command(commands, "explain", "show where each process runs, its variables, and who sets them", _explain)
    command.add_argument("--target", required=True, choices=targets.names(), help="the target to render for")
    command.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    _takes_spec(command)

    text = "name the examples in slurm/, k8s/ and docker/ that a new rendering would change; exit code 1 if any"
    command = _command(commands, "check", text, _check)
    command.add_argument("--write", action="store_true", help="render these examples again and replace them")

    command = _command(commands, "ssh", "run a torchrun script on several machines", _ssh)
    text = "what `render-job torchrun` wrote; each machine needs the folder in which this is started"
    command.add_argument("script", metavar="SCRIPT", type=Path, help=text)
    command.add_argument("nodes", metavar="NODE", nargs="+", help="names that ssh takes, node 0 first")

    command = _command(commands, "why", "say from its logs which rank of a job failed first, and of what", _why)
    text = "logs, and what kubectl describe or sacct says; - is stdin"
    command.add_argument("logs", metavar="FILE", nargs="+", help=text)

    command = _command(commands, "schema", "print the JSON Schema of the job spec, for editors", _schema)
    command.add_argument("--part", action="store_true", help="print the schema of a partial spec, such as a site file")
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], tuple[str, int]],
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
    command.set_defaults(run=run, parser=command, output=None, notes=[])
    return command


def _takes_spec(command: argparse.ArgumentParser) -> None:
    text = "the job spec; several files are merged from left to right, such as job.yaml site.yaml; - is stdin"
    command.add_argument("files", metavar="FILE", nargs="+", help=text)
    text = "set a key of the spec, such as train.epochs=3; VALUE is YAML; may be repeated"
    command.add_argument("--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[], help=text)
    text = "take only combination N of the spec's sweep; the first is 0"
    command.add_argument("--sweep-index", metavar="N", type=int, help=text)


# A command returns what it prints and its exit code, and adds to `args.notes` what stderr gets.
# Each imports what it needs itself: a render starts fast only if it loads nothing for other commands.


def _render(args: argparse.Namespace) -> tuple[str, int]:
    from jobspec.artifact import render

    text = render(args.target, args.files, args.overrides, args.notes, args.sweep_index, args.output)
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    args.notes += [line.removeprefix("# ") for line in head if line.startswith("# Not used here: ")]
    return text, 0


def _explain(args: argparse.Namespace) -> tuple[str, int]:
    from jobspec.artifact import plans_of, read
    from jobspec.explain import as_json, as_table, explain

    target = targets.load(args.target)
    plan = plans_of(read(args.files, args.overrides, args.notes), target, args.sweep_index)[0]
    explanation = explain(plan, target, whole=args.json)
    return as_json(explanation) if args.json else as_table(explanation), 0


def _check(args: argparse.Namespace) -> tuple[str, int]:
    from jobspec.examples import check

    text = check(write=args.write)
    return text, 1 if text else 0


def _ssh(args: argparse.Namespace) -> tuple[str, int]:
    from jobspec.ssh import Job

    try:
        job = Job(args.script, args.nodes)
    except ValueError as error:
        args.parser.error(str(error))
    return "", job.run()


def _why(args: argparse.Namespace) -> tuple[str, int]:
    from jobspec.why import why

    data = (sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes() for name in args.logs)
    return f"{printable(why(b''.join(data).decode(errors='replace')))}\n", 0


def _schema(args: argparse.Namespace) -> tuple[str, int]:
    import json

    from jobspec.spec.schema import json_schema

    return json.dumps(json_schema(part=args.part), indent=2) + "\n", 0


def _report_bug() -> None:
    traceback.print_exc()
    print(
        "\nThis is a bug in render-job, not a mistake of yours.  Please report it with the lines above, "
        f"the job spec and this command:\n  {' '.join(map(repr, sys.argv))}\n"
        f"  Python {sys.version.split()[0]} on {sys.platform}",
        file=sys.stderr,
    )


def command_line() -> NoReturn:
    """Run the command of this process, and end it."""
    if sys.stderr is None:  # closed by the caller; print() would then write to stdout
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
    sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    code = main()
    sys.stderr.flush()
    os._exit(code)  # at once: unloading the modules would take a tenth of the time
