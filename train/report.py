"""python -m train.report: the curves of one or several runs, and where two of them differ.

python -m train.report runs/a runs/b runs/c --out report
python -m train.report --diff runs/a runs/b
"""

import argparse
import base64
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from train.errors import UserError, refuse_without
from train.records.curves import draw
from train.records.runs import RunRecords, difference, read_runs

_STYLE = """
body { font: 16px/1.4 system-ui, sans-serif; margin: 1.5rem; color: #222; background: #fff; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
img { width: 100%; height: auto; border: 1px solid #ddd; box-sizing: border-box; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }
pre { white-space: pre-wrap; background: #f5f5f5; padding: .8rem; }
"""


def main(argv: list[str] | None = None) -> int:
    """Write OUT/report.html, print the differences; return the exit code: 0 done, 1 after a mistake, 2 usage."""
    parser = argparse.ArgumentParser(
        prog="python -m train.report",
        description="Draw the curves of runs as PNG and as one page of HTML that needs no network.",
        allow_abbrev=False,
    )
    named = "a folder that was the --run-dir of a run"
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN_DIR", help=named)
    parser.add_argument("--diff", nargs=2, type=Path, metavar=("A", "B"), help="say where two runs differ")
    parser.add_argument("--out", type=Path, default=Path("report"), help="folder to write to (default: %(default)s)")
    options = parser.parse_args(argv)
    folders = list(dict.fromkeys([*options.runs, *(options.diff or [])]))
    if not folders:
        parser.error("name the folder of at least one run")
    out: Path = options.out
    try:
        refuse_without("matplotlib", "train.report", "report")
        runs = read_runs(folders)
        words = None
        if options.diff is not None:
            words = difference(*(runs[folders.index(folder)] for folder in options.diff))
            print(words)
        out.mkdir(parents=True, exist_ok=True)
        pictures = draw(runs, out)
        (out / "report.html").write_text(page(runs, pictures, words), encoding="utf-8")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: --out: cannot write {error.filename or out}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{out / 'report.html'} shows {len(pictures)} curves of {len(runs)} run{'s' * (len(runs) > 1)}")
    return 0


def page(runs: Sequence[RunRecords], pictures: Sequence[Path], differences: str | None) -> str:
    """Return a page of HTML that holds its pictures, so it needs no network; differences: what difference() says."""
    parts = [f"<h1>{escape(', '.join(run.name for run in runs))}</h1>", _table(_summary(runs))]
    if differences is not None:
        parts += ["<h2>Where the runs differ</h2>", f"<pre>{escape(differences)}</pre>"]
    parts += ["<h2>Curves</h2>", '<div class="curves">', *map(_image, pictures), "</div>"]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Training runs</title><style>{_STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _summary(runs: Sequence[RunRecords]) -> list[list[str]]:
    rows = []
    for run in runs:
        best, world = run.best_accuracy, run.start.get("world", {})
        row = {
            "run": run.name,
            "model": run.config.get("model", ""),
            "dataset": run.config.get("dataset", ""),
            "processes": world.get("world_size", ""),
            "steps": max(run.steps),
            "last loss": f"{run.steps[max(run.steps)]['loss']:.4f}",
            "best accuracy": "" if best is None else f"{best:.2%}",
            "training time": f"{run.seconds:.1f} s",
            "ended": "no" if run.end is None else "yes",
            "weights": "" if run.end is None else run.end["weights_sha256"][:12],
        }
        rows.append([str(value) for value in row.values()])
    return [[*row], *rows]


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{escape(word)}</th>" for word in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(word)}</td>" for word in row) + "</tr>" for row in body]
    return '<div class="wide"><table>' + "\n".join(lines) + "</table></div>"


def _image(file: Path) -> str:
    data = base64.b64encode(file.read_bytes()).decode()
    return f'<img alt="{escape(file.stem)}" src="data:image/png;base64,{data}">'


if __name__ == "__main__":
    sys.exit(main())
