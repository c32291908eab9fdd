"""A small GPT: about ten million parameters, made of torch's own layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY = 256
CONTEXT = 64


class SmallGPT(nn.Module):
    """Decoder-only transformer over bytes, pre-norm, no dropout: tokens (B, T) → logits (B, T, VOCABULARY)."""

    def __init__(self, width: int = 384, heads: int = 6, layers: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(CONTEXT, width)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        x = self.blocks(x, mask=mask, is_causal=True)
        logits: Tensor = self.head(x)
        return logits
