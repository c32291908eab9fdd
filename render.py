#!/usr/bin/env python3
"""The command line: one job spec in, a script or manifest for one target out.

    render.py torchrun jobs/quickstart.yaml | bash
    render.py slurm jobs/pyxis.yaml sites/slurm-pyxis.yaml | sbatch
    render.py explain jobs/quickstart.yaml --target torchrun
    render.py schema > jobspec.schema.json

Exit codes: 0 done; 1 the input is wrong (all problems on stderr, nothing written) or something differs; 2 usage;
3 a bug in render.py.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import traceback
from collections.abc import Callable
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent))  # before a folder jobspec/ or train/ of others

from jobspec import targets
from jobspec.output import must_not_replace, unusable_file, write
from jobspec.problems import SpecError, as_json, printable
from train import __version__

_MEANT = dict.fromkeys(("kubernetes", "k8s"), "indexedjob, jobset, pytorchjob or trainjob")
_MEANT |= {"sbatch": "slurm", "srun": "slurm", "docker": "compose", "ssh": "torchrun"}
_USUAL = """\
{prog} slurm JOB.yaml | sbatch                      the job as a script; other targets: {prog} help
{prog} explain JOB.yaml --target slurm              where each process runs, and its variables"""


def main(argv: list[str] | None = None) -> int:
    """Run one command; the result is the exit code."""
    # pydantic would look for plugins in everything that is installed, and show them the spec.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    args = _arguments(argv)
    try:
        text, code = args.run(args)
        read = [*getattr(args, "files", []), getattr(args, "artifact", "-")]
        if problem := must_not_replace(args.output, read, args.force):
            print(problem, file=sys.stderr)
            return 1
        write(text, args.output)
        for note in args.notes:
            print(f"note: {printable(note)}", file=sys.stderr)
        return int(code)
    except SpecError as error:
        print(as_json(error.problems) if args.format == "json" else f"{error}\n", file=sys.stderr, end="")
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


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line.  A mistake ends the program with the usage of the command, or with what was meant."""
    words, parser = sys.argv[1:] if argv is None else argv, _parser()
    word = words[0] if words else ""
    if word == "help":
        parser.parse_args(["--help"])
    if not word:
        print(_USUAL.format(prog=parser.prog), file=sys.stderr)
        raise SystemExit(2)
    if word.endswith((".yaml", ".yml")):
        parser.error(f"name a target before {word}, such as: {parser.prog} slurm {word}")
    if word in _MEANT:
        parser.error(f"there is no target {word}; choose {_MEANT[word]}")
    args, unknown = parser.parse_known_args(argv)
    args.output, args.notes = None if args.output == "-" else args.output, []
    # argparse takes the files before an option, and calls the files after it unknown.
    if any(word.startswith("-") and word != "-" for word in unknown) or (unknown and "files" not in args):
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if "artifact" in args and unknown:
        args.files, args.artifact = [*args.files, args.artifact, *unknown[:-1]], unknown[-1]
    elif unknown:
        args.files += unknown
    if "overrides" in args and args.files.count("-") > 1:
        args.parser.error("stdin (-) can be given only once")
    return args


@cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="render-job" if Path(sys.argv[0]).name == "render-job" else "render.py",
        description="Render one job spec as a script or manifest for a target.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in targets.names():
        _takes_spec(_command(commands, name, f"the rendered job for {name}", _render), name)

    command = _command(commands, "explain", "where each process runs, its variables, and who sets them", _explain)
    _takes_spec(command)
    command.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    command.add_argument("--origin", action="store_true", help="also print where each value of the spec comes from")
    text = "names of the nodes, node 0 first, if the target does not know them"
    command.add_argument("--hosts", metavar="NAME,NAME…", default="", help=text)

    text = "what a new rendering would change in a rendered file; exit code 1 if it changes"
    command = _command(commands, "diff", text, _diff)
    _takes_spec(command)
    command.add_argument("artifact", metavar="ARTIFACT", help="the file rendered earlier")

    text = "which examples in slurm/, k8s/ and docker/ differ from a new rendering; exit code 1 if any do"
    command = _command(commands, "check", text, _check)
    command.add_argument("--write", action="store_true", help="render these examples again and replace them")

    command = _command(commands, "schema", "the JSON Schema of the job spec, for editors", _schema)
    command.add_argument("--part", action="store_true", help="print the schema of a partial spec, such as a site file")
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], tuple[str, int]],
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=f"Print {text}.", allow_abbrev=False)
    command.add_argument("-o", "--output", metavar="PATH", help="write to this file, not to stdout; - is stdout")
    command.add_argument(
        "--format", choices=("text", "json"), default="text", help="how problems are reported; default: text"
    )
    command.add_argument("--force", action="store_true", help="let -o replace a file that render.py did not write")
    command.set_defaults(run=run, parser=command)
    return command


def _takes_spec(command: argparse.ArgumentParser, target: str = "") -> None:
    text = "the job spec; several files are merged from left to right, such as job.yaml site.yaml; - is stdin"
    command.add_argument("files", metavar="FILE", nargs="+", help=text)
    text = "set a key of the spec, such as train.epochs=3; VALUE is YAML; may be repeated"
    command.add_argument("--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[], help=text)
    text = "take only combination N of the spec's sweep; the first is 0"
    command.add_argument("--sweep-index", metavar="N", type=_combination, help=text)
    if target:
        command.set_defaults(target=target)
    else:
        command.add_argument("--target", required=True, choices=targets.names(), help="the target to render for")


def _combination(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 3):
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 999, not {text}")
    return int(text)


# A command returns what it prints and its exit code, and adds to `args.notes` what stderr gets.
# Each imports what it needs itself: a render starts fast only if it loads nothing for other commands.


def _render(args: argparse.Namespace) -> tuple[str, int]:
    from jobspec.artifact import render

    text = render(args.target, args.files, args.overrides, args.notes, args.sweep_index)
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    args.notes += [line.removeprefix("# ") for line in head if line.startswith("# Not used here: ")]
    return text, 0


def _explain(args: argparse.Namespace) -> tuple[str, int]:
    from jobspec.artifact import plans_of, read, specs_of
    from jobspec.explain import as_json, as_table, explain

    target = targets.load(args.target)
    source = read(args.files, args.overrides, args.notes)
    plan = plans_of(source, target, args.sweep_index)[0]
    first = specs_of(source, target, args.sweep_index)[0] if args.origin else None
    explanation = explain(plan, target, args.hosts, first)
    return as_json(explanation) if args.json else as_table(explanation), 0


def _diff(args: argparse.Namespace) -> tuple[str, int]:
    from jobspec.artifact import render
    from jobspec.difference import difference

    new = render(args.target, args.files, args.overrides, args.notes, args.sweep_index)
    name = f"render.py {args.target} {printable(' '.join(args.files))}"
    text = difference(Path(args.artifact).read_bytes(), new, printable(args.artifact), name)
    return text, 1 if text else 0


def _check(args: argparse.Namespace) -> tuple[str, int]:
    from jobspec.examples import check

    text = check(write=args.write)
    return text, 1 if text else 0


def _schema(args: argparse.Namespace) -> tuple[str, int]:
    import json

    from jobspec.spec.schema import json_schema

    return json.dumps(json_schema(part=args.part), indent=2) + "\n", 0


def _report_bug() -> None:
    traceback.print_exc()
    print(
        "\nThis is a bug in render.py, not a mistake of yours.  Please report it with the lines above, "
        f"the job spec and this command:\n  {' '.join(map(repr, sys.argv))}\n"
        f"  Python {sys.version.split()[0]} on {sys.platform}",
        file=sys.stderr,
    )


def command_line() -> NoReturn:
    """Run the command of this process, and end it."""
    gc.disable()  # collecting takes a fifth of the time and frees nothing: imports make many objects that all stay
    if sys.stderr is None:  # closed by the caller; print() would then write to stdout
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
    sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    code = main()
    sys.stderr.flush()
    os._exit(code)  # at once: unloading the modules would take another tenth of the time


if __name__ == "__main__":
    command_line()
