"""How often a selection on CUDA has too few candidates, or many, by its rule for thresholds.
A minute; it needs no GPU.

Gradients of log-normal scales that jump by 3, up at step 150 and down at 280. The rule is that of
kernels/cuda/candidates.py and radix.py: what the 2 k-th candidate has, cut to 24 bits, or the
2 k-th of all elements after all were looked at; 0.97 of the last threshold where there are fewer.
"""

from __future__ import annotations

import torch

STEPS, WARM, CAPACITY = 400, 50, 16
SIZES = (100_000, 100), (300_000, 300)


def candidates(dgc: bool, n: int, k: int, seed: int) -> list[float]:
    """Of each step after the first, how many for each of the k."""
    torch.manual_seed(seed)
    u, v, scale, threshold = torch.zeros(n), torch.zeros(n), torch.randn(n).exp(), 0.0
    found = []
    for step in range(STEPS):
        if step in (150, 280):
            scale = scale * (3 if step == 150 else 1 / 3)
        g = torch.randn(n) * scale * (1 + 0.2 * torch.randn(()))
        u = u * 0.9 + g if dgc else g
        v += u
        size = v.abs()
        many = int((size >= threshold).sum())
        largest, places = size.topk(2 * k)
        found.append(many / k)
        if k <= many < 2 * k:
            threshold *= 0.97
        else:
            threshold = float((largest[-1].view(torch.int32) & ~0x7F).view(torch.float32))
        v[places[:k]] = 0.0
        u[places[:k]] = 0.0
    return found[WARM:]


def main() -> None:
    """A row for each recurrence and size."""
    print("rule   elements      below k   above 4 k   above 16 k   (of steps)")
    for n, k in SIZES:
        for name, dgc in (("dgc", True), ("ef", False)):
            x = torch.tensor([m for seed in (1, 2) for m in candidates(dgc, n, k, seed)])
            shares = [float(y.float().mean()) for y in (x < 1, x > 4, x > CAPACITY)]
            print(f"{name:<5}{n:>10,}" + "".join(f"{100 * share:>12.1f} %" for share in shares))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
