"""Error against bytes at a tiny scale: the benchmark runs, and agrees with sums by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gradwire import families
from gradwire.compressors import BFloat16, Identity, Sign, TopK
from scripts import script
from suites import first

WORDS = [" ".join(f"w{chr(97 + (i * j) % 23)}" for j in range(90)) for i in range(1, 12)]


@pytest.fixture(scope="module")
def main() -> Iterator[ModuleType]:
    with script("compressors", "main", "measure", "models", "plot") as found:
        yield found


def test_every_exported_compressor_is_measured(main: ModuleType) -> None:
    assert {c.name for c in main.compressors()} == set(families.COMPRESSORS)


@pytest.mark.parametrize("count", first([1, 3]))
def test_a_tiny_run_is_saved_drawn_and_printed(
    main: ModuleType, tmp_path: Path, count: int
) -> None:
    made = main.workloads(hidden=4, documents=WORDS)[-count:]
    document = main.run(made, starts=(3,), window=2)
    main.save(document, tmp_path)
    read = json.loads((tmp_path / "error.json").read_text())
    assert [list(model["losses"]) for model in read["models"]] == [["3"]] * count
    expected = {str(c) for c in main.compressors()}
    for model in read["models"]:
        rows = {row["compressor"]: row for row in model["rows"]}
        assert set(rows) == expected
        assert main.middle(rows["none"], "one_step") == 0.0
        assert main.middle(rows["sign"], "sum_ef") is None
        assert 0 < main.middle(rows["int8"], "one_step") < 0.05
        assert main.middle(rows["topk(0.1)"], "one_step", "rank", "cosine") > 0.1
    if main.plot.importlib.util.find_spec("matplotlib") is not None:
        assert (tmp_path / "error.png").read_bytes().startswith(b"\x89PNG")
    assert "| int8 | 8." in main.tables(tmp_path)


# -- gradients ---------------------------------------------------------------------------------


def test_the_ranks_gradients_add_up(main: ModuleType) -> None:
    """The recorded gradients are those of each rank's own loss."""
    workload = main.workloads(hidden=4, documents=WORDS)[2]
    weight = dict(workload.module.named_parameters())["projection.weight"]
    expected = []
    for rank in range(4):
        loss = workload.loss(rank, torch.Generator().manual_seed(rank))
        expected.append(torch.autograd.grad(loss, weight)[0].view(-1))
    (moment,) = main.moments(workload, starts=(0,), window=1)
    for gradients, alone in zip(moment.gradients[0], expected):
        torch.testing.assert_close(gradients["projection.weight"], alone)
    assert all(not torch.equal(expected[0], other) for other in expected[1:])


# -- distances, by hand ------------------------------------------------------------------------


def recorded(*steps: list[list[float]]) -> list[list[dict[str, torch.Tensor]]]:
    return [[{"w": torch.tensor(x)} for x in ranks] for ranks in steps]


def test_what_is_exact_has_no_error(main: ModuleType) -> None:
    found = main.measure(Identity(), recorded([[1.0, 2.0], [3.0, -4.0]]))
    assert found["one_step"]["mean"] == pytest.approx({"error": 0.0, "cosine": 1.0})
    assert "sum_ef" not in found


def test_one_rank_and_the_mean(main: ModuleType) -> None:
    """Each rank sends its 4; their mean is (2, 2), the true one (3.5, 0.5)."""
    found = main.measure(TopK(0.5), recorded([[4.0, -3.0], [3.0, 4.0]]))["one_step"]
    assert found["rank"]["error"] == pytest.approx((18 / 50) ** 0.5)
    assert found["rank"]["cosine"] == pytest.approx(32 / (50 * 32) ** 0.5)
    assert found["mean"]["error"] == pytest.approx(((1.5**2 + 1.5**2) / (3.5**2 + 0.5**2)) ** 0.5)


def test_sums_with_and_without_feedback(main: ModuleType) -> None:
    """(4, 3) twice: without feedback 4 and 4 arrive; with it 4, and then the 6 of the residual."""
    found = main.measure(TopK(0.5), recorded([[4.0, 3.0]], [[4.0, 3.0]]))
    assert found["sum"]["rank"]["error"] == pytest.approx(6 / 10)
    assert found["sum_ef"]["rank"]["error"] == pytest.approx(4 / 10)
    assert found["last_ef"]["rank"]["error"] == pytest.approx((16 + 9) ** 0.5 / 5)


def test_a_direction_is_scaled_before_it_is_judged(main: ModuleType) -> None:
    found = main.measure(Sign(), recorded([[7.0, -7.0, 7.0]]))
    assert found["one_step"]["rank"] == pytest.approx({"error": 0.0, "cosine": 1.0}, abs=1e-6)


def test_bits_are_those_of_the_payloads(main: ModuleType) -> None:
    gradients = {"a": torch.zeros(100), "b": torch.zeros(300)}
    assert main.bits_per_element(BFloat16(), gradients) == 16
    assert main.bits_per_element(TopK(0.1, index="int32"), gradients) == pytest.approx(6.4)
    # 10 of 100 places in 7 bytes, 30 of 300 in 21: Elias-Fano with 3 low bits each.
    coded = 10 * 4 + (4 + 3) + 30 * 4 + (12 + 9)
    assert main.bits_per_element(TopK(0.1), gradients) == pytest.approx(8 * coded / 400)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], []),
        ([1.0, 5.0], [1.0, 5.0]),
        ([1.0, 1.0], [0.5, 1.5]),
        ([0.0, 1.5, 1.5], [0.0, 1.0, 2.0]),
        ([0.0, 0.0, 0.0, 9.0], [-1.0, 0.0, 1.0, 9.0]),
    ],
)
def test_labels_are_moved_no_more_than_they_must(
    main: ModuleType, given: list[float], expected: list[float]
) -> None:
    assert main.plot.spread(given, 1.0) == pytest.approx(expected)
