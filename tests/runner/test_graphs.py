"""The table of recordings: every shape finds a size in it, its length never moves, and padding is nobody's business."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch
from tests.runner.fakes import TapeRecorder

from evervox.ledger import Ledger
from evervox.runner.graphs import GraphSet, Key, Stage, row_sizes, slot_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

NAN = float("nan")


class Doubling:
    """A stage with one buffer of values and one of rows: adds the values, doubled, to the rows they name. Row 0 is padding's."""

    def __init__(self, rows: int, most: int) -> None:
        self.values = torch.zeros(most)
        self.rows = torch.zeros(most, dtype=torch.int64)
        self.state = torch.zeros(rows + 1)
        self.ran: list[int] = []

    def run(self, size: int, adapters: bool) -> None:
        self.ran.append(size)
        changed = self.state.index_select(0, self.rows[:size]) + self.values[:size] * (3 if adapters else 2)
        self.state.index_copy_(0, self.rows[:size], changed)

    def fill(self, values: list[float], rows: list[int], size: int) -> None:
        count = len(values)
        self.values[:count], self.rows[:count] = torch.tensor(values), torch.tensor(rows)
        self.values[count:size], self.rows[count:size] = NAN, 0


def test_a_thousand_plans_use_the_table_and_leave_it_as_it_is() -> None:
    """Padding holds NaN and so does its row; the live rows must stay finite and right, and the poisoned buffer ends untouched."""
    rng = random.Random(1)
    doubling = Doubling(rows=64, most=64)
    graphs = GraphSet([Stage("double", row_sizes(48), doubling.run, adapters=True)], TapeRecorder(), strict=True)
    graphs.record()
    recorded, expected = len(graphs), torch.zeros(65)
    doubling.state.zero_()[0] = NAN
    doubling.ran.clear()
    outside = 0
    for _ in range(1000):
        count, adapters = rng.randint(1, 64), rng.random() < 0.5
        rows = rng.sample(range(1, 65), count)
        values = [rng.random() for _ in rows]
        size = graphs.size_for("double", count, adapters)
        outside += count > 48
        assert size in row_sizes(48) if count <= 48 else size == count
        doubling.values.fill_(NAN)
        doubling.fill(values, rows, size)
        graphs.run("double", size, adapters)
        expected[rows] += torch.tensor(values) * (3 if adapters else 2)
    torch.testing.assert_close(doubling.state[1:], expected[1:], rtol=1e-4, atol=1e-4)
    assert len(graphs) == recorded == 2 * len(row_sizes(48))
    assert graphs.eager["double"] == outside == len(doubling.ran)


def test_largest_first() -> None:
    doubling = Doubling(4, 64)
    seen: list[Key] = []
    graphs = GraphSet([Stage("a", (1, 8), doubling.run), Stage("b", (4, 64), doubling.run, adapters=True)], TapeRecorder())
    graphs.record(lambda done, total, key, num_bytes: seen.append(key))
    assert [str(key) for key in seen] == ["b 64 with adapters", "b 64", "a 8", "b 4 with adapters", "b 4", "a 1"]
    assert list(graphs.costs) == seen


def test_recording_after_start_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    doubling = Doubling(4, 8)
    stage = Stage("a", (1, 8), doubling.run)
    lenient, strict = GraphSet([stage], TapeRecorder()), GraphSet([stage], TapeRecorder(), strict=True)
    lenient.record()
    lenient.record()
    assert (lenient.late, len(lenient)) == (1, 2)
    assert "recording after start" in caplog.text
    strict.record()
    with pytest.raises(RuntimeError, match="once, at start"):
        strict.record()
    assert len(strict) == 2


def growing(*costs: int) -> Callable[[int], int]:
    """Costs by recording, over and over."""
    return lambda n: costs[(n - 1) % len(costs)]


def test_over_the_limit_the_costliest_shape_leaves_and_the_rest_is_recorded_afresh(caplog: pytest.LogCaptureFixture) -> None:
    doubling = Doubling(4, 64)
    made = iter([100, 90, 60, 20, 5, 60, 20, 5, 1])
    recorder = TapeRecorder(lambda n: next(made))
    graphs = GraphSet([Stage("a", (1, 8, 16, 32, 64), doubling.run)], recorder, memory_limit=95)
    graphs.record()
    assert graphs.trimmed == (Key("a", 64), Key("a", 32))
    assert "a 64 will run eagerly" in caplog.text
    assert recorder.cleared == 2
    assert graphs.num_bytes <= 95
    assert [graphs.size_for("a", n) for n in (1, 2, 9, 16, 17, 64)] == [1, 8, 16, 16, 17, 64]
    doubling.fill([1.0] * 17, [0] * 17, 17)
    graphs.run("a", 17)
    assert graphs.eager["a"] == 1


def test_a_limit_of_nothing_leaves_nothing() -> None:
    doubling = Doubling(4, 64)
    graphs = GraphSet([Stage("a", (1, 8), doubling.run)], TapeRecorder(), memory_limit=0)
    graphs.record()
    assert len(graphs) == 0
    assert graphs.size_for("a", 5) == 5


def test_without_a_recorder_sizes_are_exact_and_nothing_counts_as_outside() -> None:
    doubling = Doubling(4, 8)
    graphs = GraphSet([Stage("a", (1, 8), doubling.run)], None)
    graphs.record()
    assert graphs.size_for("a", 5) == 5
    graphs.run("a", 5)
    assert doubling.ran == [5]
    assert graphs.eager["a"] == 0


def test_a_stage_without_sizes_runs_eagerly_and_is_not_counted() -> None:
    doubling = Doubling(4, 8)
    graphs = GraphSet([Stage("a", (), doubling.run)], TapeRecorder())
    graphs.record()
    graphs.run("a", graphs.size_for("a", 3))
    assert doubling.ran == [3]
    assert graphs.eager["a"] == 0


def test_the_ledger_sees_the_table() -> None:
    doubling, ledger = Doubling(4, 8), Ledger()
    graphs = GraphSet([Stage("a", (1, 8), doubling.run)], TapeRecorder(lambda n: 7), memory_limit=100)
    graphs.record()
    graphs.register(ledger)
    lines = {line.name: (line.size, line.limit) for line in ledger.read()}
    assert lines["graphs"] == (2, 2)
    assert lines["graph memory"] == (14, 100)
    assert lines["graphs recorded after start"] == (0, 0)


@pytest.mark.parametrize("most", [1, 2, 3, 16, 17, 64, 100, 1024])
def test_size_lists(most: int) -> None:
    for sizes in (row_sizes(most), slot_sizes(most)):
        assert sizes == tuple(sorted(set(sizes)))
        assert sizes[-1] == most
        assert len(sizes) < 32
    for count in range(33, most + 1):
        assert min(s for s in slot_sizes(most) if s >= count) <= 1.5 * count


def test_a_host_that_looks_at_values_cannot_be_recorded() -> None:
    values = torch.ones(3)

    def looks(size: int, adapters: bool) -> None:
        values.mul_(float(values.sum()))

    with pytest.raises(RuntimeError, match="looks at values"):
        GraphSet([Stage("a", (1,), looks)], TapeRecorder()).record()
