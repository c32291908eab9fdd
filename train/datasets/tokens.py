"""Make the token files that --dataset=tokens reads, and load them as rows of tokens.

    python -m train.datasets.tokens --data-root data README.md docs/*.md

writes DATA_ROOT/tokens/: train.npy and validation.npy (NumPy's format; one dimension, uint8 or int32) and tokens.json
(`vocabulary`, the number of different tokens, and `context`, the tokens of a row).  The tokens are the bytes of the
texts.  Another tokenizer can write the same three files.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import expanduser
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from train.datasets import Samples, Split
from train.errors import UserError, naming_failures

_VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class TokenSamples:
    """Row i holds the tokens i·T … i·T+T-1 and their targets, which lie one token further; see train.datasets.Samples.

    file: a NumPy file of one dimension, uint8 or int32, mapped into memory: only the rows that are read come from the
        disk.
    """

    file: Path
    num_classes: int
    context: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @cached_property
    def tokens(self) -> Tensor:
        # "c": copy on write, though nobody writes, because torch warns about arrays that cannot be written to.
        return torch.from_numpy(np.load(self.file, mmap_mode="c"))

    @property
    def shape(self) -> tuple[int]:
        return (self.context,)

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rows, targets = self.tensors()
        return rows[index], targets[index]

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return tokens and targets as views of the file, (N, T); targets are cast to int64 a batch at a time."""
        end = len(self) * self.context
        return self.tokens[:end].view(-1, self.context), self.tokens[1 : end + 1].view(-1, self.context)


def load(data_root: Path, split: Split, seed: int) -> Samples:
    """Map DATA_ROOT/tokens/`split`.npy; raise UserError if files are missing, damaged or do not fit each other."""
    folder = data_root / "tokens"
    vocabulary, context = _read_sizes(folder / "tokens.json")
    file = folder / f"{split}.npy"
    try:
        array = np.load(file, mmap_mode="c")
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"cannot read {file}: {error}. {_REMEDY}") from None
    if array.ndim != 1 or array.dtype not in (np.uint8, np.int32) or len(array) <= context:
        raise UserError(
            f"{file} holds {array.dtype} of shape {array.shape}; expected one dimension of uint8 or int32, with more "
            f"than {context} tokens (the context in tokens.json)"
        )
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= vocabulary:
        raise UserError(
            f"{file} holds tokens from {low} to {high}, but tokens.json says vocabulary {vocabulary}. Make all files "
            "again with one run of `python -m train.datasets.tokens`"
        )
    return TokenSamples(file, vocabulary, context)


_REMEDY = "`python -m train.datasets.tokens --data-root FOLDER TEXT…` makes it, and --data-root=FOLDER says where it is"


def _read_sizes(file: Path) -> tuple[int, int]:
    try:
        sizes = json.loads(file.read_bytes())
        vocabulary, context = int(sizes["vocabulary"]), int(sizes["context"])
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(
            f'cannot read {file}, which must be like {{"vocabulary": 256, "context": 64}}: {_REMEDY}'
        ) from None
    if vocabulary < 1 or context < 1:
        raise UserError(f"{file}: vocabulary is {vocabulary} and context {context}; both must be at least 1")
    return vocabulary, context


def write(texts: Sequence[Path], data_root: Path, context: int) -> str:
    """Write the bytes of the texts as tokens; the last tenth is for validation.  Returns what was written, in words."""
    try:
        tokens = np.frombuffer(b"\n".join(text.read_bytes() for text in texts), dtype=np.uint8)
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}") from None
    cut = len(tokens) - int(len(tokens) * _VALIDATION_SHARE)
    splits = {"train": tokens[:cut], "validation": tokens[cut:]}
    if min(map(len, splits.values())) <= context:
        raise UserError(
            f"the texts have {len(tokens)} bytes, {len(splits['validation'])} of them for validation, but a row needs "
            f"{context + 1} bytes (--context {context} and the next token): give more text or a smaller --context"
        )
    folder = data_root / "tokens"
    with naming_failures(f"cannot write {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for split, part in splits.items():
            np.save(folder / f"{split}.npy", part)
        (folder / "tokens.json").write_text(json.dumps({"vocabulary": 256, "context": context}) + "\n")
    numbers = ", ".join(f"{len(part)} tokens for {split}" for split, part in splits.items())
    return f"{folder}: {numbers}, in rows of {context}"


def main(argv: list[str] | None = None) -> int:
    """Write the tokens of some texts and return the exit code: 0 done, 1 after a mistake, 2 usage."""
    parser = argparse.ArgumentParser(prog="python -m train.datasets.tokens", description=str(__doc__).split("\n")[0])
    parser.add_argument("texts", metavar="TEXT", nargs="+", type=Path, help="files whose bytes become the tokens")
    parser.add_argument("--data-root", type=expanduser, default="data", help="as in python -m train (default: data)")
    parser.add_argument("--context", type=int, default=64, help="tokens of a row (default: 64)")
    arguments = parser.parse_args(argv)
    if arguments.context < 1:
        parser.error("--context must be at least 1")
    try:
        print(write(arguments.texts, Path(arguments.data_root), arguments.context))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
