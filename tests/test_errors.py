import pickle

import pytest

from baechi import errors
from baechi.errors import (
    BaechiError,
    CycleError,
    InputError,
    MissingFrameworkError,
    OutOfMemoryError,
    PlanMismatchError,
)

EXAMPLES = [
    BaechiError("something is off", hint="turn it on"),
    InputError("no such thing"),
    CycleError(["a", "b"]),
    OutOfMemoryError("block3/attn", "gpu:1", 9 * 2**30, 7 * 2**30, 12),
    errors.PlacementError("stuck"),
    errors.SolverError("infeasible"),
    PlanMismatchError("the plan is for another graph", ["op a is new", "op b is gone"]),
    MissingFrameworkError("networkx"),
]


def test_every_public_error_has_an_example_here() -> None:
    assert {type(error).__name__ for error in EXAMPLES} == set(errors.__all__)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_its_attributes(error: BaechiError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_a_message_is_lower_case_without_a_full_stop(error: BaechiError) -> None:
    message = str(error).splitlines()[0]
    assert message[0] == message[0].lower()
    assert not message.endswith(".")


def test_errors_are_also_the_built_in_ones_that_users_catch() -> None:
    assert issubclass(InputError, ValueError)
    assert issubclass(CycleError, InputError)
    assert issubclass(PlanMismatchError, InputError)
    assert issubclass(MissingFrameworkError, ImportError)


def test_a_hint_stands_on_its_own_line() -> None:
    assert str(BaechiError("it broke", hint="mend it")) == "it broke\nhint: mend it"


def test_out_of_memory_names_op_device_and_bytes() -> None:
    error = OutOfMemoryError("block3/attn", "gpu:1", 9 * 2**30, 7 * 2**30, num_placed=12)
    assert str(error).splitlines()[0] == (
        'op "block3/attn" needs 9 GiB on device "gpu:1", which has 7 GiB free '
        "(12 ops placed before it)"
    )
    assert (error.op, error.device, error.num_placed) == ("block3/attn", "gpu:1", 12)
    assert (error.needed_bytes, error.free_bytes) == (9 * 2**30, 7 * 2**30)


def test_out_of_memory_without_a_device_speaks_of_the_largest() -> None:
    assert str(OutOfMemoryError(3, None, 20, 10, hint=None)) == (
        "op 3 needs 20 B on one device, the largest has 10 B free"
    )


def test_a_cycle_is_written_as_a_closed_path() -> None:
    assert str(CycleError(["a", "b"])) == 'the graph has a cycle: "a" -> "b" -> "a"'
    error = CycleError(range(30))
    assert len(error.ops) == 30
    assert "20 more" in str(error)


def test_a_mismatch_lists_every_difference_as_data_and_twenty_as_text() -> None:
    error = PlanMismatchError("the plan is for another graph", [f"op {k}" for k in range(50)])
    assert len(error.differences) == 50
    assert len(str(error).splitlines()) == 22
    assert "30 more" in str(error)


def test_a_missing_framework_names_the_extra() -> None:
    error = MissingFrameworkError("torch")
    assert error.name == "torch"
    assert str(error) == "\"torch\" is not installed\nhint: pip install 'baechi[torch]'"
