"""One page of HTML with the curves and figures of some runs; it holds its pictures, so it needs no network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from train.records.runs import RunRecords, differing_settings

_STYLE = """
body { font: 16px/1.4 system-ui, sans-serif; margin: 1.5rem; color: #222; background: #fff; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
img { width: 100%; height: auto; border: 1px solid #ddd; box-sizing: border-box; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }
pre { white-space: pre-wrap; background: #f5f5f5; padding: .8rem; }
"""


def page(runs: Sequence[RunRecords], pictures: Sequence[Path], differences: str | None) -> str:
    """Return the page; differences: the text of train.records.runs.difference(), if two runs are compared."""
    parts = [f"<h1>{escape(', '.join(run.name for run in runs))}</h1>", _table(_summary(runs))]
    if differences is not None:
        parts += ["<h2>Where the runs differ</h2>", f"<pre>{escape(differences)}</pre>"]
    if len(runs) > 1:
        parts += ["<h2>Settings that differ</h2>", _table(_settings(runs))]
    parts += ["<h2>Curves</h2>", '<div class="curves">', *map(_image, pictures), "</div>"]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Training runs</title><style>{_STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _summary(runs: Sequence[RunRecords]) -> list[list[str]]:
    rows = []
    for run in runs:
        best, world = run.best_accuracy, (run.starts or [{}])[-1].get("world", {})
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


def _settings(runs: Sequence[RunRecords]) -> list[list[str]]:
    """Return the settings in which any run differs from the first one."""
    differing = [differing_settings(runs[0], run) for run in runs]  # the first run differs from itself in nothing
    rows = [["setting", *(run.name for run in runs)]]
    for key in sorted(set().union(*differing)):
        pairs = [settings.get(key) for settings in differing]
        own = next(pair[0] for pair in pairs if pair is not None)
        rows.append([key, *(str(own if pair is None else pair[1]) for pair in pairs)])
    return rows


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{escape(word)}</th>" for word in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(word)}</td>" for word in row) + "</tr>" for row in body]
    return '<div class="wide"><table>' + "\n".join(lines) + "</table></div>"


def _image(file: Path) -> str:
    data = base64.b64encode(file.read_bytes()).decode()
    return f'<img alt="{escape(file.stem)}" src="data:image/png;base64,{data}">'
