"""Copies between devices that autograd follows, on CUDA over side streams.

A copy that runs on the compute streams stalls its source until the destination has finished what
it was doing. So every ordered pair of CUDA devices has two streams of its own: one that sends on
the source and one that receives on the destination. The copy waits for what made the value, the
destination waits for the copy, and nobody waits for anything else. Gradients come back the same
way, over the pair in the other direction.

Everything that knows about a kind of device is in this file; other kinds copy with ``Tensor.to``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from baechi.torch.transforms import is_transformed

__all__ = ["CudaStreams", "StreamBackend", "cross_copy", "stream_copy", "uses_streams"]


def cross_copy(value: Tensor, device: torch.device) -> Tensor:
    """The value on the device, or the value itself where it is there; gradients come back."""
    source = value.device
    if source == device:
        return value
    if uses_streams(source, device):
        return stream_copy(value, device, CUDA)
    return value.to(device)


def uses_streams(source: torch.device, device: torch.device) -> bool:
    """Whether side streams carry a copy; transforms of torch.func see through ``to`` alone."""
    return source.type == device.type == "cuda" and not is_transformed()


class StreamBackend(Protocol):
    """What a kind of device has to offer for copies over side streams."""

    def current(self, device: torch.device) -> Any:
        """The stream of the device on which the running code issues its ops."""

    def side(self, sender: torch.device, receiver: torch.device, role: str) -> Any:
        """The stream of an ordered pair that sends (role "tx") or receives (role "rx")."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Makes the stream the current one of its device."""

    def wait(self, waiting: Any, awaited: Any) -> None:
        """Lets a stream wait for what another one has been given so far."""

    def keep(self, value: Tensor, stream: Any) -> None:
        """Keeps the value's memory from being reused before the stream is done with it."""


class CudaStreams:
    """Side streams of CUDA devices, made when a pair of devices first needs them."""

    def __init__(self) -> None:
        """Starts without streams: making one would start CUDA."""
        self._sides: dict[tuple[torch.device, torch.device, str], Any] = {}

    def current(self, device: torch.device) -> Any:
        """The device's current stream."""
        return torch.cuda.current_stream(device)

    def side(self, sender: torch.device, receiver: torch.device, role: str) -> Any:
        """One stream per pair and role; two threads that make the same one at once share it."""
        key = (sender, receiver, role)
        stream = self._sides.get(key)
        if stream is None:
            owner = sender if role == "tx" else receiver
            stream = self._sides.setdefault(key, torch.cuda.Stream(owner))  # type: ignore[no-untyped-call]
        return stream

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Sets the stream, and restores the current device as well."""
        return torch.cuda.stream(stream)

    def wait(self, waiting: Any, awaited: Any) -> None:
        """Records an event and waits for it, on the devices alone."""
        waiting.wait_stream(awaited)

    def keep(self, value: Tensor, stream: Any) -> None:
        """Tells the caching allocator about the second stream."""
        value.record_stream(stream)


CUDA = CudaStreams()


def stream_copy(value: Tensor, device: torch.device, streams: StreamBackend) -> Tensor:
    """A copy over the side streams of the pair, and of its gradient over those of the reverse."""
    copy: Tensor = _StreamCopy.apply(value, device, streams)
    return copy


class _StreamCopy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, device: torch.device, streams: StreamBackend) -> Tensor:
        ctx.streams = streams
        ctx.sender = value.device
        # Autograd runs the backward with the receiver's stream of now as the current one, but it
        # knows only one device per node: the sender's stream is remembered here.
        ctx.consumer = streams.current(value.device)
        return _send(value, device, streams.current(device), streams)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _send(gradient, ctx.sender, ctx.consumer, ctx.streams), None, None


def _send(value: Tensor, receiver: torch.device, consumer: Any, streams: StreamBackend) -> Tensor:
    sender = value.device
    producer = streams.current(sender)
    sending = streams.side(sender, receiver, "tx")
    receiving = streams.side(sender, receiver, "rx")
    streams.wait(sending, producer)
    # Tensor.to makes the two current streams wait for each other. These are the side streams, so
    # neither compute stream is held up; the copy's memory is allocated for the receiving one.
    with streams.on(sending), streams.on(receiving):
        copy = value.detach().to(receiver, non_blocking=True)
    streams.wait(consumer, receiving)
    streams.keep(value, sending)
    streams.keep(copy, consumer)
    return copy
