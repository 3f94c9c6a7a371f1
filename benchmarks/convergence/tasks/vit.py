"""The drawn signs of `glyphs` by a small vision transformer, AdamW.

The data, its loss and its test set are those of `glyphs`, so that the two differ by the model and
the optimizer alone: the transformer has to learn from its patches what an edge or a corner is.

Source: Dosovitskiy et al. 2021, "An image is worth 16x16 words"; the mean over positions before
the last layer, instead of a class token, is from Beyer et al. 2022, "Better plain ViT baselines".
"""

from __future__ import annotations

from dataclasses import replace

from task import Length, Metric, Settings, Task, cosine
from torch import Tensor, nn

from tasks import glyphs

WIDTH, HEADS, LAYERS, PATCH = 64, 4, 3, 4
PLACES = (glyphs.SIDE // PATCH) ** 2


def block() -> nn.Module:
    """Attention among all positions, then two layers for each, with norms in front and no dropout.

    This is torch's own layer, whose queries, keys and values are one matrix of (3 · WIDTH, WIDTH).
    """
    return nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )


class Vit(nn.Module):
    """A model of 153,000 parameters; 96 % of them are in the twelve hidden matrices of its
    blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, PATCH, PATCH)
        self.places = nn.Embedding(PLACES, WIDTH)
        self.blocks = nn.Sequential(*(block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, glyphs.CLASSES)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        """Returns scores of each class. (batch, 1, side, side) -> (batch, classes)"""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places.weight
        return self.scores(self.norm(self.blocks(x)).mean(1))


TASK = Task(
    name="vit",
    mirrors="no paper of ours: a vision transformer with AdamW",
    model=Vit,
    batches=glyphs.batches,
    loss=glyphs.loss,
    evaluate=glyphs.evaluate,
    metric=Metric("test accuracy", "%", "accuracy"),
    settings=Settings(
        rate=2e-3, schedule=cosine(0.05), weight_decay=0.05, clip=1.0, optimizer="adamw"
    ),
    small=Length(500, 0.01),
    full=Length(2000, 0.01),
)

MUON = replace(
    TASK, name="vit-muon", mirrors="the same with Muon for its hidden matrices",
    settings=replace(TASK.settings, rate=8e-3, optimizer="muon"),
)  # fmt: skip
