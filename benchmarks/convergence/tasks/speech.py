"""Made-up speech: words of phones, each a glide of two formants; their order is to be found (CTC).

Speakers differ in pitch, phones flow into each other, and there is noise; as AN4, without sound.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from task import Batch, Length, Metric, Settings, Task, cosine, dice, evaluating, there
from torch import Tensor, nn
from torch.nn.functional import ctc_loss, log_softmax

PHONES, BANDS = 12, 24
SHORTEST, LONGEST = 4, 10  # phones of an utterance
FEWEST, MOST = 3, 9  # frames of a phone
FRAMES = LONGEST * MOST
NOISE = 0.4
PER_WORKER = 8
TEST = 1000


class Recognizer(nn.Module):
    """Two convolutions, two unidirectional LSTM layers and one matrix. 261,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(BANDS, 64, 5, padding=2)
        self.second = nn.Conv1d(64, 64, 5, padding=2)
        self.lstm = nn.LSTM(64, 128, 2)
        self.scores = nn.Linear(128, PHONES + 1)

    def forward(self, sound: Tensor) -> Tensor:
        """Returns log-probabilities of phones and of silence (0). (batch, bands, frames) ->
        (frames, batch, phones + 1)"""
        x = torch.relu(self.second(torch.relu(self.first(sound))))
        states, _ = self.lstm(x.permute(2, 0, 1))
        return log_softmax(self.scores(states), dim=-1)


@cache
def phones() -> Tensor:
    """Returns (phones, 2 formants, begin and end), in bands; the same for every seed."""
    return torch.rand(PHONES, 2, 2, generator=dice("speech", "phones")) * (BANDS - 6) + 3


def utter(count: int, generator: torch.Generator) -> Batch:
    """Returns sound, (count, bands, frames); its frames; phones from 1, (count, longest); and
    their number."""
    spoken = torch.randint(SHORTEST, LONGEST + 1, (count,), generator=generator)
    labels = torch.randint(PHONES, (count, LONGEST), generator=generator)
    lengths = torch.randint(FEWEST, MOST + 1, (count, LONGEST), generator=generator)
    lengths[torch.arange(LONGEST) >= spoken[:, None]] = 0
    ends = lengths.cumsum(1)
    frame = torch.arange(FRAMES).expand(count, FRAMES).contiguous()
    which = torch.searchsorted(ends, frame, right=True).clamp_max(LONGEST - 1)
    part = (frame - (ends - lengths).gather(1, which)) / lengths.gather(1, which).clamp_min(1)
    glide = phones()[labels.gather(1, which)]  # (count, frames, formants, begin and end)
    pitch = 1 + 0.12 * torch.randn(count, 1, 1, generator=generator)
    centre = (glide[..., 0] + (glide[..., 1] - glide[..., 0]) * part[..., None]) * pitch
    bands = torch.arange(BANDS).view(1, 1, 1, BANDS)
    sound = torch.exp(-((bands - centre[..., None]) ** 2) / 2).sum(2)
    sound *= (frame < ends[:, -1:]).unsqueeze(2)
    flowing = (sound + sound.roll(1, 1) + sound.roll(-1, 1)).transpose(1, 2) / 3
    noise = NOISE * torch.randn(flowing.shape, generator=generator)
    return flowing + noise, ends[:, -1], labels + 1, spoken


def batches(seed: int, step: int, workers: int) -> Sequence[Batch]:
    drawn = utter(PER_WORKER * workers, dice("speech", seed, step))
    return list(zip(*(x.split(PER_WORKER) for x in drawn)))


def loss(network: nn.Module, batch: Batch) -> Tensor:
    sound, frames, labels, spoken = batch
    return ctc_loss(network(sound), labels, frames, spoken)


@cache
def test_set() -> Batch:
    return utter(TEST, dice("speech", "test"))


def evaluate(network: nn.Module) -> float:
    """Returns the label error rate in percent: edits to the most likely path, over phones that
    were said."""
    sound, frames, labels, spoken = test_set()
    with evaluating(network):
        paths = network(*there(network, sound)).argmax(-1).t()
    edits = sum(
        distance(_read(path[:n].tolist()), said[:k].tolist())
        for path, n, said, k in zip(paths, frames.tolist(), labels, spoken.tolist())
    )
    return 100 * edits / int(spoken.sum())


def _read(path: Sequence[int]) -> list[int]:
    """Reads a path: repeated phones count once, silence not at all."""
    return [now for now, before in zip(path, [0, *path]) if now and now != before]


def distance(one: Sequence[int], other: Sequence[int]) -> int:
    """The Levenshtein distance: insertions, deletions and changes from one to the other."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        corner, row[0] = row[0], i
        for j, b in enumerate(other, start=1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (a != b))
    return row[-1]


TASK = Task(
    name="speech",
    mirrors="AN4 and LibriSpeech, LSTM with CTC",
    model=Recognizer,
    batches=batches,
    loss=loss,
    evaluate=evaluate,
    metric=Metric("label error rate", "%", "errors"),
    settings=Settings(
        rate=0.2, schedule=cosine(0.05), momentum=0.9, nesterov=True, clip=5.0, warm_up=80
    ),
    small=Length(1000, 0.01),
    full=Length(4000, 0.01),
)
