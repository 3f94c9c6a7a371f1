"""zen beside zen(variant="paper"): bytes a rank sends, counted in lockstep. The table of HASH.md.

python benchmarks/sparse/zen_bytes.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire import lockstep

ROWS, COLUMNS, EXPONENT, DRAWS = 13_672, 128, 1.1, 895
ELEMENTS = 1 << 21


def main() -> None:
    torch.set_num_threads(1)
    print("| tensor | ranks | d | D | zen | paper | formula | saved |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for world in (4, 16):
        print(row("Zipf rows", [zipf_rows(rank) for rank in range(world)]))
        for density in (0.01, 0.05):
            print(row("uniform", [uniform(rank, density) for rank in range(world)]))


def zipf_rows(rank: int) -> Tensor:
    """Rows drawn by Zipf-Mandelbrot weights, frequent ones first."""
    dice = torch.Generator().manual_seed(rank + 1)
    weights = 1 / (torch.arange(ROWS).double() + 2.7) ** EXPONENT
    rows = torch.multinomial(weights, DRAWS, replacement=True, generator=dice).unique()
    table = torch.zeros(ROWS, COLUMNS)
    table[rows] = torch.randn(rows.numel(), COLUMNS, generator=dice)
    return table


def uniform(rank: int, density: float) -> Tensor:
    dice = torch.Generator().manual_seed(rank + 1)
    chosen = torch.rand(ELEMENTS, generator=dice) < density
    return torch.where(chosen, torch.randn(ELEMENTS, generator=dice), torch.zeros(ELEMENTS))


def row(name: str, tensors: list[Tensor]) -> str:
    world, size = len(tensors), 4 * tensors[0].numel()
    own = sum(float((x != 0).double().mean()) for x in tensors) / world
    union = float((torch.stack(tensors).sum(0) != 0).double().mean())
    formula = (world - 1) / world * (2 * own + union + 1 / 32) * size
    ours, published = (
        sum(lockstep(f"nonzero | {member}", tensors)[1].bytes_sent) / world
        for member in ("zen", 'zen(variant="paper")')
    )
    megabytes = " | ".join(f"{x / 1e6:.3f}" for x in (ours, published, formula))
    saved = f"{1 - ours / published:.0%}"
    return f"| {name} | {world} | {own:.1%} | {union:.1%} | {megabytes} | {saved} |"


if __name__ == "__main__":
    main()
