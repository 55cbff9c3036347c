"""Copies between devices: the order of waits over side streams, and gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from baechi.torch.simdev import simulated
from baechi.torch.streams import cross_copy, stream_copy
from torch_placing import on


class RecordedStreams:
    """A backend whose streams are names; it writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def current(self, device: torch.device) -> str:
        return f"compute {device.index}"

    def side(self, sender: torch.device, receiver: torch.device, role: str) -> str:
        return f"{role} {sender.index}->{receiver.index}"

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        self.calls.append(("enter", stream))
        yield
        self.calls.append(("leave", stream))

    def wait(self, waiting: str, awaited: str) -> None:
        self.calls.append(("wait", waiting, awaited))

    def keep(self, value: Tensor, stream: str) -> None:
        assert value.device.index is not None
        self.calls.append(("keep", value.device.index, stream))


def calls_of_a_copy(sender: int, receiver: int) -> list[tuple[Any, ...]]:
    send, receive = f"tx {sender}->{receiver}", f"rx {sender}->{receiver}"
    return [
        ("wait", send, f"compute {sender}"),  # the copy starts when the value is there
        ("enter", send),
        ("enter", receive),
        ("leave", receive),
        ("leave", send),
        ("wait", f"compute {receiver}", receive),  # its reader waits for it
        ("keep", sender, send),  # the value lives until it is sent
        ("keep", receiver, f"compute {receiver}"),
    ]


def test_a_copy_holds_up_neither_compute_stream() -> None:
    with simulated(2):
        streams = RecordedStreams()
        value = torch.ones(3, device=on(0))
        copy = stream_copy(value, on(1), streams)
        assert copy.device == on(1)
        assert torch.equal(copy.cpu(), value.cpu())
    assert streams.calls == calls_of_a_copy(0, 1)


def test_the_gradient_comes_back_over_the_streams_of_the_other_direction() -> None:
    with simulated(2):
        streams = RecordedStreams()
        value = torch.ones(3, device=on(0), requires_grad=True)
        total = (2 * stream_copy(value, on(1), streams)).sum()
        streams.calls.clear()
        total.backward()
        assert value.grad is not None
        assert value.grad.device == on(0)
        assert value.grad.cpu().tolist() == [2.0, 2.0, 2.0]
    assert streams.calls == calls_of_a_copy(1, 0)


def test_a_value_that_is_there_is_not_copied() -> None:
    value = torch.ones(3)
    assert cross_copy(value, torch.device("cpu")) is value


def test_another_kind_of_device_copies_with_its_gradient() -> None:
    with simulated(2) as devices:
        value = torch.ones(3, requires_grad=True)
        cross_copy(cross_copy(value, on(0)), on(1)).sum().backward()
        pairs = [(t.source, t.destination) for t in devices.transfers]
    assert pairs == [(-1, 0), (0, 1), (1, 0), (0, -1)]
    assert value.grad is not None
    assert value.grad.tolist() == [1.0, 1.0, 1.0]
