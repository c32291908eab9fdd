#!/usr/bin/env python3
"""The command line: one job spec in, a script or manifest for one target out.

    render.py torchrun jobs/quickstart.yaml | bash
    render.py schema > jobspec.schema.json

Exit codes: 0 done; 1 the input is wrong (all problems on stderr, nothing written); 2 usage; 3 a bug in here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from pathlib import Path

from jobspec import targets
from jobspec.artifact import render
from jobspec.problems import SpecError, printable
from jobspec.schema import json_schema


def main(argv: list[str] | None = None) -> int:
    """Run one command; the result is the exit code."""
    args = _parser().parse_args(argv)
    try:
        text: str = args.run(args)
        _write(text, args.output)
        return 0
    except SpecError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read the output has gone; without this Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"{printable(str(error.filename or 'stdout'))}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception:
        _report_bug()
        return 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="render.py",
        description="Render one job spec as a script or manifest for a target.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in targets.names():
        command = _command(commands, name, f"the job as an artifact for {name}")
        command.add_argument("spec", metavar="JOB.yaml", help="the job spec")
        command.add_argument(
            "--set",
            metavar="KEY=VALUE",
            dest="settings",
            action="append",
            default=[],
            help="replace a key of the spec, such as train.epochs=3; VALUE is YAML; may be repeated",
        )
        command.set_defaults(run=lambda args, name=name: render(name, args.spec, args.settings))
    _command(commands, "schema", "the JSON Schema of the job spec, for editors").set_defaults(run=_schema)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=f"Print {text}.", allow_abbrev=False)
    command.add_argument("-o", "--output", metavar="PATH", help="write there and not to stdout")
    return command


def _schema(args: argparse.Namespace) -> str:
    return json.dumps(json_schema(), indent=2) + "\n"


def _write(text: str, output: str | None) -> None:
    """To stdout or to a file, in UTF-8 whatever the locale.  A file has the old content or all of the new."""
    data = text.encode()
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    path = Path(output).resolve()
    if path.exists() and not path.is_file():
        path.write_bytes(data)  # a pipe or device such as /dev/stdout is written to, never replaced
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(data)
        if path.exists():
            beside.chmod(path.stat().st_mode)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, output) from None


def _report_bug() -> None:
    traceback.print_exc()
    print(
        "\nThis is a bug in render.py, not a mistake of yours.  Please report it with the lines above, "
        f"the job spec and this command:\n  {' '.join(map(repr, sys.argv))}\n"
        f"  Python {sys.version.split()[0]} on {sys.platform}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(main())
