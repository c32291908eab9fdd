"""A small GPT (decoder-only transformer): six pre-norm blocks of width 384, about 10.8 million parameters for bytes."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

WIDTH, HEADS, BLOCKS = 384, 6, 6


class Embeddings(nn.Module):
    """Tokens (B, T) → the sum of token and position embeddings, (B, T, WIDTH)."""

    def __init__(self, vocabulary: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(context, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        summed: Tensor = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return summed


class Block(nn.TransformerEncoderLayer):
    """Causal self-attention and a feed-forward layer: a position sees itself and those before it."""

    def __init__(self, dropout: float) -> None:
        super().__init__(WIDTH, HEADS, 4 * WIDTH, dropout, activation="gelu", batch_first=True, norm_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # a decoder has no other masks
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)
        return super().forward(x, src_mask=mask, is_causal=True)


def build(shape: tuple[int, ...], num_classes: int, dropout: float | None) -> nn.Module:
    """Tokens int64 (B, T), T at most `shape[0]` → logits of the next token, (B, T, num_classes).

    No dropout unless a rate is given.
    """
    layers: dict[str, nn.Module] = {"embeddings": Embeddings(num_classes, shape[0])}
    layers |= {f"block{number}": Block(dropout or 0.0) for number in range(BLOCKS)}
    layers |= {"norm": nn.LayerNorm(WIDTH), "head": nn.Linear(WIDTH, num_classes, bias=False)}
    return nn.Sequential(OrderedDict(layers))
