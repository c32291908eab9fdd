"""Draws docs/overview.svg: one spec becomes seven artifacts.  `python docs/overview.py` writes it; light and dark."""

from pathlib import Path

_SPEC = [
    "name: hello",
    "nodes: 2",
    "procs_per_node: 4",
    "image: team/train:1.0",
    "command: [train.py]",
    "time_limit: 2h",
]
_ARTIFACTS = [
    ("slurm", "batch script", "| sbatch"),
    ("pytorchjob", "manifest", "| kubectl apply"),
    ("trainjob", "manifest", "| kubectl apply"),
    ("jobset", "manifest", "| kubectl apply"),
    ("indexedjob", "manifest", "| kubectl apply"),
    ("torchrun", "script, one machine or ssh", "| bash"),
    ("compose", "compose file", "docker compose up"),
]
_STYLE = """
  svg { background: #fff } text { font: 14px ui-monospace, monospace; fill: #1f2328 }
  .note { font: 13px system-ui, sans-serif; fill: #59636e }
  .head { font: bold 14px system-ui, sans-serif } rect { fill: #f6f8fa; stroke: #d1d9e0 }
  path { stroke: #0969da; fill: none; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117 }
    text { fill: #f0f6fc } .note { fill: #9198a1 } rect { fill: #151b23; stroke: #3d444d } path { stroke: #4493f8 }
  }"""
_ALT = "One job spec becomes a Slurm script, four kinds of Kubernetes manifest, a torchrun script or a compose file"
_ROW, _TOP, _LEFT, _RIGHT = 34, 36, 250, 360


def _text(x: int, y: float, words: str, kind: str = "code") -> str:
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text class="{kind}" x="{x}" y="{y:.0f}">{words}</text>'


def draw() -> str:
    """Return the picture."""
    height = _TOP + _ROW * len(_ARTIFACTS) + 12
    middle = (_TOP + height - 12) / 2
    box = 26 * len(_SPEC) + 16
    parts = [_text(10, 22, "one spec", "head"), _text(_RIGHT, 22, "seven targets, plain text", "head")]
    parts.append(f'<rect x="10" y="{middle - box / 2}" width="{_LEFT - 10}" height="{box}" rx="6"/>')
    parts += [_text(22, middle - box / 2 + 26 + 26 * number, line) for number, line in enumerate(_SPEC)]
    for number, (target, artifact, then) in enumerate(_ARTIFACTS):
        y = _TOP + _ROW * number
        parts.append(
            f'<path d="M{_LEFT} {middle} C{_LEFT + 60} {middle} {_RIGHT - 60} {y + 14} {_RIGHT - 4} {y + 14}"/>'
        )
        parts.append(f'<rect x="{_RIGHT}" y="{y}" width="470" height="28" rx="6"/>')
        parts += [_text(_RIGHT + 12, y + 19, target), _text(_RIGHT + 120, y + 19, artifact, "note")]
        parts.append(_text(_RIGHT + 312, y + 19, then))
    body = "\n".join(parts)
    size = f'viewBox="0 0 840 {height}" width="840"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{_ALT}">'
    return f"{head}\n<style>{_STYLE}\n</style>\n{body}\n</svg>\n"


if __name__ == "__main__":
    (Path(__file__).parent / "overview.svg").write_text(draw())
