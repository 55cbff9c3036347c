"""Placements judged in the core against the slow and literal layouts and ledger."""

import contextlib
import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import layout_oracle
import ledger_oracle
from baechi import _core
from baechi.errors import InputError
from baechi.simulation import simulate_many
from baechi.torch import flat_trace
from baechi.torch.ledger import Updates, replay
from baechi.torch.memory import Memory
from baechi.torch.modules import Layout
from baechi.torch.optimizers import Optimizer
from baechi.torch.outcomes import evaluate, judge
from baechi.torch.trace import Trace
from random_traces import random_homes, random_trace, random_units
from torch_ledgers import prepared
from torch_models import CASES

EXPORTING = [case.name for case in CASES if case.exports]
WITH_BLOCKS = ("gpt2", "t5", "transformer", "unet", "resnet")
STUDIED = [(name, mode) for name in EXPORTING for mode in ("training", "inference")]
STUDIED += [(name, "checkpointing") for name in WITH_BLOCKS]
SEEDS = st.integers(0, 2**32)


def expected(
    trace: Trace,
    layout: Layout,
    num_devices: int,
    optimizer: Optimizer | None = None,
    parameters: tuple[tuple[int, int, tuple[int, ...]], ...] = (),
    *,
    in_place: bool = False,
) -> Memory:
    scratch = [0] * num_devices
    state = {}
    if optimizer is not None:
        homes = layout.home_of_storage
        state = {at: optimizer.state_bytes(nbytes, shape) for at, nbytes, shape in parameters}
        placed = [(homes[at], nbytes, shape) for at, nbytes, shape in parameters]
        scratch = optimizer.scratch_bytes(placed, num_devices)
    return ledger_oracle.replay(
        trace,
        layout.device_of_step,
        layout.home_of_storage,
        num_devices,
        optimizer_bytes=state,
        optimizer_scratch=scratch,
        accumulate_in_place=in_place,
    )


@pytest.mark.parametrize(("name", "mode"), STUDIED)
def test_layouts_and_memory_of_models_are_those_of_the_oracle(name: str, mode: str) -> None:
    task = prepared(name, mode, 3).task
    rng = random.Random(name)
    for in_place in (False, True):
        devices = [rng.randrange(3) for _ in task.units.names]
        steps = range(len(task.trace.steps))
        exceptions = {at: rng.randrange(3) for at in rng.sample(steps, 3 * in_place)}
        layout = layout_oracle.lay_out(task.trace, task.units, devices, exceptions)
        found = evaluate(
            dataclasses.replace(task, accumulate_in_place=in_place), devices, "random", exceptions
        )
        assert found.layout == layout
        assert found.memory == expected(
            task.trace, layout, 3, task.optimizer, task.parameters, in_place=in_place
        )


@given(SEEDS)
def test_memory_of_random_traces_is_that_of_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    trace, num_devices = random_trace(rng), rng.randint(1, 4)
    steps = tuple(rng.randrange(num_devices) for _ in trace.steps)
    layout = Layout(steps, random_homes(rng, trace, num_devices))
    parameters = tuple(
        (at, one.nbytes, (one.nbytes // 4,))
        for at, one in enumerate(trace.storages)
        if one.kind == "parameter"
    )
    optimizer = Optimizer("adamw", rng.random() < 0.5, 2.0, rng.choice((1.0, 3.5)), 0.5)
    rows = [
        (at, optimizer.state_bytes(nbytes, shape), *optimizer.update_bytes(nbytes, shape))
        for at, nbytes, shape in parameters
    ]
    in_place = rng.random() < 0.5
    found = replay(
        trace,
        flat_trace.flatten(trace),
        layout,
        num_devices,
        updates=Updates(np.array(rows, np.int64).reshape(-1, 4), optimizer.foreach),
        accumulate_in_place=in_place,
    )
    assert found == expected(trace, layout, num_devices, optimizer, parameters, in_place=in_place)


@given(SEEDS)
def test_layouts_of_random_units_are_those_of_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    trace, num_devices = random_trace(rng), rng.randint(1, 4)
    units, flat = random_units(rng, trace), flat_trace.flatten(trace)
    devices = [rng.randrange(num_devices) for _ in units.names]
    exceptions = {at: rng.randrange(num_devices) for at in range(len(trace.steps)) if at % 5 == 4}
    found = flat_trace.lay_out(
        flat, flat_trace.flatten_units(trace, flat, units), devices, num_devices, exceptions
    )
    assert found == layout_oracle.lay_out(trace, units, devices, exceptions)


def test_many_placements_cost_what_each_costs_alone() -> None:
    task = prepared("gnmt", "training", 3).task
    rng = random.Random(0)
    placements = [[rng.randrange(3) for _ in task.units.names] for _ in range(5)]
    placements += [[1] * len(task.units.names)]
    order = np.empty(task.operators.graph.num_ops, np.int32)
    order[list(task.operators.order)] = np.arange(len(order))
    for devices, found in zip(placements, judge(task, placements, "random"), strict=True):
        outcome = evaluate(task, devices, "random")
        ops = np.zeros(len(order), np.int32)
        ops[list(task.operators.of_unit)] = devices
        ops[list(task.operators.updates)] = devices
        for of_step in (task.operators.of_step, task.operators.backward_of_step):
            for op, device in zip(of_step, outcome.layout.device_of_step, strict=True):
                if op >= 0:
                    ops[op] = device
        graph, cluster = task.operators.graph, task.cluster
        times, _ = simulate_many(graph, cluster, ops[None], order[None], peaks=False)
        assert found.step_ns == times[0]
        assert found.peaks == outcome.memory.peaks
        assert found.num_used == len(set(outcome.layout.device_of_step) | set(devices))


def columns_of(trace: Trace) -> dict[str, Any]:
    taken: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_core, "FlatTrace", taken.append)
        flat_trace.flatten(trace)
    return taken[0]


@pytest.mark.parametrize(
    ("column", "value"),
    [("read", 10_000), ("make", -1), ("edge_function", -5), ("storage_bytes", -1)],
)
def test_a_wrong_entry_is_refused_with_the_name_of_its_column(column: str, value: int) -> None:
    columns = columns_of(prepared("unet", "training", 3).task.trace)
    columns[column] = columns[column].copy()
    columns[column][3] = value
    with pytest.raises(InputError, match=rf"{column}\[3\] = {value}"):
        _core.FlatTrace(columns)


@given(SEEDS)
def test_no_columns_whatever_break_the_core(seed: int) -> None:
    rng = random.Random(seed)
    trace = random_trace(rng)
    columns = columns_of(trace)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(sorted(columns))
        column = columns[name].copy()
        if column.size:
            column[rng.randrange(len(column))] = rng.choice(
                (-2, -1, 0, 1, 5, 2**40, 2**62, -(2**63))
            )
        columns[name] = column if rng.random() < 0.9 else column[:-1]
    with contextlib.suppress(InputError):  # any other error, such as that of a panic, is not
        flat = _core.FlatTrace(columns)
        steps = np.zeros(len(trace.steps), np.int32)
        homes = np.zeros(len(trace.storages), np.int32)
        flat.replay(steps, homes, 2, np.zeros((0, 4), np.int64), False, False)


def test_a_placement_on_no_device_is_refused() -> None:
    task = prepared("unet", "training", 3).task
    with pytest.raises(InputError, match=r"device of unit\[0\] = 3"):
        judge(task, [[3] * len(task.units.names)], "nowhere")
