"""python -m train.report: the curves of one or several runs, and where two of them differ.

python -m train.report runs/a runs/b runs/c --out report
python -m train.report --diff runs/a runs/b
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from train.errors import UserError, refuse_without
from train.records.curves import draw
from train.records.page import page
from train.records.runs import difference, read_runs


def main(argv: list[str] | None = None) -> int:
    """Write OUT/report.html and the pictures, print the differences; return 0, or 1 after a mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m train.report",
        description="Draw the curves of runs as PNG and as one page of HTML that needs no network.",
        allow_abbrev=False,
    )
    named = "a folder that was the --run-dir of a run"
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN_DIR", help=named)
    parser.add_argument("--diff", nargs=2, type=Path, metavar=("A", "B"), help="say and draw where two runs differ")
    parser.add_argument("--log", action="store_true", help="draw losses on a logarithmic axis")
    parser.add_argument("--out", type=Path, default=Path("report"), help="folder to write to (default: %(default)s)")
    options = parser.parse_args(argv)
    folders = list(dict.fromkeys([*options.runs, *(options.diff or [])]))
    if not folders:
        parser.error("name the folder of at least one run")
    try:
        write_report(folders, options.diff, options.out, options.log)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def write_report(folders: list[Path], compared: list[Path] | None, out: Path, log: bool) -> None:
    """Write the report of the runs in `folders`, and how the two in `compared` differ.

    Raises UserError if a folder holds no run, or the report cannot be written.
    """
    refuse_without("matplotlib", "train.report", "report")
    runs = read_runs(folders)
    words, pair = None, None
    if compared is not None:
        first, second = pair = runs[folders.index(compared[0])], runs[folders.index(compared[1])]
        words = difference(first, second)
        print(words)
    try:
        out.mkdir(parents=True, exist_ok=True)
        pictures = draw(runs, out, pair, log)
        (out / "report.html").write_text(page(runs, pictures, words), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out: cannot write {error.filename or out}: {error.strerror}") from None
    print(f"{out / 'report.html'} shows {len(pictures)} curves of {len(runs)} run{'s' * (len(runs) > 1)}")


if __name__ == "__main__":
    sys.exit(main())
