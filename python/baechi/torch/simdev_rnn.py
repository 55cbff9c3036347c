"""Recurrent layers on simulated devices, step by step as on the CPU: LSTM, GRU, plain; also packed.

The CPU multiplies the inputs of all steps with the weights at once, and a float32 LSTM of whole
sequences is one oneDNN op per layer and direction. For other device types torch does neither.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["ON_META", "RECURRENT"]

aten = torch.ops.aten
Hidden = tuple[torch.Tensor, ...]
_LSTM_MODE = 2  # of at::native::mkldnn_rnn_layer


class _Weights(NamedTuple):
    """Of one layer and direction."""

    ih: torch.Tensor
    hh: torch.Tensor
    ih_bias: torch.Tensor | None
    hh_bias: torch.Tensor | None
    projection: torch.Tensor | None


Cell = Callable[[torch.Tensor, Hidden, _Weights], Hidden]


def _lstm_cell(gates: torch.Tensor, hidden: Hidden, weights: _Weights) -> Hidden:
    all_gates = linear(hidden[0], weights.hh, weights.hh_bias).add_(gates)
    into, forget, new, out = all_gates.unsafe_chunk(4, 1)
    into, forget, new, out = into.sigmoid_(), forget.sigmoid_(), new.tanh_(), out.sigmoid_()
    state = (forget * hidden[1]).add_(into * new)
    output = out * state.tanh()
    if weights.projection is not None:
        output = torch.matmul(output, weights.projection.t())
    return output, state


def _gru_cell(gates: torch.Tensor, hidden: Hidden, weights: _Weights) -> Hidden:
    ih_reset, ih_update, ih_new = gates.unsafe_chunk(3, 1)
    hh_gates = linear(hidden[0], weights.hh, weights.hh_bias)
    hh_reset, hh_update, hh_new = hh_gates.unsafe_chunk(3, 1)
    reset = hh_reset.add_(ih_reset).sigmoid_()
    update = hh_update.add_(ih_update).sigmoid_()
    new = ih_new.add(hh_new.mul_(reset)).tanh_()
    return ((hidden[0] - new).mul_(update).add_(new),)


def _plain_cell(nonlinearity: Callable[[torch.Tensor], torch.Tensor]) -> Cell:
    def cell(gates: torch.Tensor, hidden: Hidden, weights: _Weights) -> Hidden:
        return (nonlinearity(linear(hidden[0], weights.hh, weights.hh_bias).add_(gates)),)

    return cell


class _Layers(NamedTuple):
    """What all layers share."""

    cell: Cell
    params: Sequence[torch.Tensor]
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool


class _Step(NamedTuple):
    """The cell of one layer and direction."""

    cell: Cell
    weights: _Weights


def _whole(cell: Cell, num_states: int) -> Callable[..., Any]:
    """The kernel for tensors of whole sequences."""

    def kernel(
        input: torch.Tensor, hx: Any, params: Any, *options: Any, **named: Any
    ) -> tuple[torch.Tensor, ...]:
        names = ("has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first")
        chosen = dict(zip(names, options, strict=False)) | named
        batch_first = chosen.pop("batch_first")
        layers = _Layers(cell, params, **chosen)
        states = tuple(hx) if num_states == 2 else (hx,)
        steps = input.transpose(0, 1) if batch_first else input
        if num_states == 2 and _is_for_one_dnn(input, states):
            output, *final = _one_dnn(layers, steps.contiguous(), states, batch_first)
        else:
            output, *final = _stack(layers, steps, None, states)
        return (output.transpose(0, 1) if batch_first else output, *final)

    return kernel


def _packed(cell: Cell, num_states: int) -> Callable[..., Any]:
    """The kernel for packed sequences; the sizes of their batches are on the host."""

    def kernel(
        data: torch.Tensor, batch_sizes: torch.Tensor, hx: Any, params: Any, *options: Any
    ) -> tuple[torch.Tensor, ...]:
        states = tuple(hx) if num_states == 2 else (hx,)
        return _stack(_Layers(cell, params, *options), data, batch_sizes.tolist(), states)

    return kernel


def _stack(
    layers: _Layers, data: torch.Tensor, sizes: list[int] | None, states: Hidden
) -> tuple[torch.Tensor, ...]:
    """All layers; returns the outputs and the last states, stacked."""
    begin = list(zip(*(state.unbind(0) for state in states), strict=True))
    weights = list(_weights_of(layers, states))
    directions = 2 if layers.bidirectional else 1
    final: list[Hidden] = []
    for layer in range(layers.num_layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            gates = linear(data, weights[place].ih, weights[place].ih_bias)
            step = _Step(layers.cell, weights[place])
            if sizes is None:
                output, hidden = _over_steps(step, gates, begin[place], direction == 1)
            else:
                output, hidden = _over_packed(step, gates, sizes, begin[place], direction == 1)
            outputs.append(output)
            final.append(hidden)
        data = outputs[0] if directions == 1 else torch.cat(outputs, outputs[0].dim() - 1)
        if layers.dropout != 0 and layers.train and layer < layers.num_layers - 1:
            data = torch.dropout(data, layers.dropout, True)
    return (data, *(torch.stack(state, 0) for state in zip(*final, strict=True)))


def _over_steps(
    run: _Step, gates: torch.Tensor, hidden: Hidden, reverse: bool
) -> tuple[torch.Tensor, Hidden]:
    outputs = []
    for step in reversed(gates.unbind(0)) if reverse else gates.unbind(0):
        hidden = run.cell(step, hidden, run.weights)
        outputs.append(hidden[0])
    return torch.stack(outputs[::-1] if reverse else outputs, 0), hidden


def _over_packed(
    run: _Step, gates: torch.Tensor, sizes: list[int], begin: Hidden, reverse: bool
) -> tuple[torch.Tensor, Hidden]:
    """Sequences end as the batch shrinks; backwards they begin as it grows."""
    bounds = [0]
    for size in sizes:
        bounds.append(bounds[-1] + size)
    order = range(len(sizes) - 1, -1, -1) if reverse else range(len(sizes))
    last = sizes[order[0]]
    hidden = tuple(state.narrow(0, 0, last) for state in begin) if reverse else begin
    outputs, ended = [], []
    for step in order:
        size = sizes[step]
        if size > last:
            new = (state.narrow(0, last, size - last) for state in begin)
            hidden = tuple(torch.cat(pair, 0) for pair in zip(hidden, new, strict=True))
        elif size < last:
            ended.append(tuple(state.narrow(0, size, last - size) for state in hidden))
            hidden = tuple(state.narrow(0, 0, size) for state in hidden)
        last = size
        hidden = run.cell(gates.narrow(0, bounds[step], size), hidden, run.weights)
        outputs.append(hidden[0])
    if not reverse:
        ended.append(hidden)
        hidden = tuple(torch.cat(parts, 0) for parts in zip(*ended[::-1], strict=True))
    return torch.cat(outputs[::-1] if reverse else outputs, 0), hidden


def _weights_of(layers: _Layers, states: Hidden) -> Iterator[_Weights]:
    is_projected = len(states) == 2 and states[0].shape[2] != states[1].shape[2]
    per_direction = 2 + 2 * layers.has_biases + is_projected
    for start in range(0, len(layers.params), per_direction):
        ih, hh, *rest = layers.params[start : start + per_direction]
        ih_bias, hh_bias = (rest[0], rest[1]) if layers.has_biases else (None, None)
        yield _Weights(ih, hh, ih_bias, hh_bias, rest[-1] if is_projected else None)


def _is_for_one_dnn(input: torch.Tensor, states: Hidden) -> bool:
    can = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled  # type: ignore[no-untyped-call]
    is_plain = states[0].shape == states[1].shape and input.numel() > 0
    return bool(can and is_plain and input.dtype == torch.float32)


def _one_dnn(
    layers: _Layers, data: torch.Tensor, states: Hidden, batch_first: bool
) -> tuple[torch.Tensor, ...]:
    weights = list(_weights_of(layers, states))
    directions = 2 if layers.bidirectional else 1
    final: list[tuple[torch.Tensor, ...]] = []
    for layer in range(layers.num_layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            chosen = weights[place]
            if chosen.ih_bias is None or chosen.hh_bias is None:
                zeros = (torch.zeros_like(chosen.ih), torch.zeros_like(chosen.hh))
                chosen = chosen._replace(ih_bias=zeros[0], hh_bias=zeros[1])
            output, *last, _ = aten.mkldnn_rnn_layer(
                data, *chosen[:4], states[0][place], states[1][place], direction == 1, [],
                _LSTM_MODE, states[0].shape[2], layers.num_layers, layers.has_biases,
                layers.bidirectional, batch_first, layers.train,
            )  # fmt: skip
            outputs.append(output)
            final.append(tuple(last))
        data = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if layers.dropout != 0 and layers.train and layer < layers.num_layers - 1:
            data = torch.dropout(data, layers.dropout, True)
    return (data, *(torch.stack(state, 0) for state in zip(*final, strict=True)))


def _on_meta(op: Any) -> Callable[..., tuple[torch.Tensor | None, ...]]:
    """The op without values. Only oneDNN knows how large its workspace is: it is asked, with zeros.

    Torch's own rule for meta tensors makes an empty one, and none of the shared storages.
    """

    def kernel(*args: Any) -> tuple[torch.Tensor | None, ...]:
        with _real_tensors():
            given = [
                torch.zeros(a.shape, dtype=a.dtype) if isinstance(a, torch.Tensor) else a
                for a in args
            ]
            real = op(*given)
        storages: dict[int, torch.Tensor] = {}
        results: list[torch.Tensor | None] = []
        for made in real:
            if made is None:
                results.append(None)
                continue
            storage = made.untyped_storage()
            if storage._cdata not in storages:
                length = storage.nbytes() // made.element_size()
                storages[storage._cdata] = torch.empty(length, dtype=made.dtype, device="meta")
            whole = storages[storage._cdata]
            results.append(whole.as_strided(made.size(), made.stride(), made.storage_offset()))
        return tuple(results)

    return kernel


@contextlib.contextmanager
def _real_tensors() -> Iterator[None]:
    """No mode makes tensors without values, not even while ops on fakes find their results."""
    in_tls = torch._C._meta_in_tls_dispatch_include()
    torch._C._set_meta_in_tls_dispatch_include(False)
    try:
        with _disable_current_modes():
            yield
    finally:
        torch._C._set_meta_in_tls_dispatch_include(in_tls)


_ONE_DNN = (aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default)
ON_META: dict[Any, Callable[..., Any]] = {op: _on_meta(op) for op in _ONE_DNN}
_TANH, _RELU = _plain_cell(torch.tanh), _plain_cell(torch.relu)
RECURRENT: dict[Any, Callable[..., Any]] = {
    aten.lstm.input: _whole(_lstm_cell, 2),
    aten.lstm.data: _packed(_lstm_cell, 2),
    aten.gru.input: _whole(_gru_cell, 1),
    aten.gru.data: _packed(_gru_cell, 1),
    aten.rnn_tanh.input: _whole(_TANH, 1),
    aten.rnn_tanh.data: _packed(_TANH, 1),
    aten.rnn_relu.input: _whole(_RELU, 1),
    aten.rnn_relu.data: _packed(_RELU, 1),
}
