"""A model's step as a graph for the placers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baechi
import torch_factories
from baechi import Graph
from baechi.torch import model_graph
from commands import run
from torch_models import BY_NAME

DEVICES = "h100,rtx-4090"


def graph_of(name: str, **options: Any) -> Graph:
    sample = BY_NAME[name].build()
    return model_graph(
        sample.model, sample.args, sample.kwargs, devices=DEVICES, optimizer="adam", **options
    )


def readers(graph: Graph, name: str) -> list[str]:
    """The ops that read what an op makes."""
    op = graph.op_names.index(name)
    tensors = {at for at, producer in enumerate(graph.tensor_producer) if producer == op}
    pairs = zip(graph.edge_tensor.tolist(), graph.edge_consumer.tolist(), strict=True)
    return [graph.op_names[consumer] for tensor, consumer in pairs if tensor in tensors]


@pytest.mark.parametrize("name", ["bert", "unet"])
def test_it_can_be_placed_compared_saved_and_grouped(name: str, tmp_path: Path) -> None:
    graph = graph_of(name)
    cluster, _ = baechi.torch.read_torch_devices(DEVICES)
    assert graph.device_kinds == ("h100", "rtx-4090")
    assert set(graph.role.tolist()) == {0, 1, 2}
    compared = baechi.compare(graph, cluster, ["single", "m-etf", "m-sct", "contiguous"])
    assert "m-sct" in str(compared)
    graph.save(tmp_path / "step.npz")
    assert baechi.load_graph(tmp_path / "step.npz") == graph
    assert baechi.group(graph).graph.num_ops < graph.num_ops


def test_a_backward_op_is_beside_its_forward_op_or_free() -> None:
    together, free = graph_of("bert"), graph_of("bert", backward="free")
    assert free.op_names == together.op_names
    assert free.compute_ns.tolist() == together.compute_ns.tolist()
    backward = together.role == 1
    of_forward = together.group[together.forward_op[backward]]
    assert together.group[backward].tolist() == of_forward.tolist()
    assert free.group[backward].tolist() == [-1] * backward.sum()
    assert free.group[~backward].tolist() == together.group[~backward].tolist()
    assert free.forward_op.tolist() == together.forward_op.tolist()


def test_a_free_backward_op_reads_the_weight_that_it_needs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    given: Any = {"devices": DEVICES, "optimizer": "sgd", "loss": torch.Tensor.sum}
    together = model_graph(model, (torch.ones(3, 4),), **given)
    free = model_graph(model, (torch.ones(3, 4),), backward="free", **given)
    last = next(name for name in free.op_names if name.startswith("2:") and "backward" in name)
    assert readers(together, "2:weights:0") == []
    assert readers(free, "2:weights:0") == [last]  # the gradient of its input needs the weight
    assert readers(free, "0:weights:0") == []  # nobody asks for the gradient of the model's input
    # What travels is no longer part of what stays; one device holds the same.
    cluster, _ = baechi.torch.read_torch_devices("h100")
    plans = [baechi.place(graph, cluster, "single") for graph in (together, free)]
    assert plans[0].peak_bytes == plans[1].peak_bytes
    assert plans[0].makespan_ns == plans[1].makespan_ns


def test_pins_hold_and_choices_are_checked() -> None:
    graph = graph_of("bert", pin={"*": "cuda:1"})
    cluster, _ = baechi.torch.read_torch_devices(DEVICES)
    placed = baechi.place(graph, cluster, "m-etf").placement
    with_weights = [name for name in graph.op_names if name.endswith(":weights:0")]
    assert {placed[name] for name in with_weights} == {"cuda:1"}
    with pytest.raises(baechi.InputError, match="backward is 'anywhere'"):
        graph_of("bert", backward="anywhere")


def test_inference_has_forward_ops_alone() -> None:
    sample = BY_NAME["resnet"].build()
    graph = model_graph(sample.model, sample.args, devices=DEVICES, mode="inference")
    assert set(graph.role.tolist()) == {0}


def test_the_command_line_writes_it_for_the_placers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, devices = str(tmp_path / "step.npz"), ("-d", "1MiB,2MiB")
    factory = ("--torch", "torch_factories:as_dict", "--no-confirm", "--save-graph", path)
    assert f"baechi: the graph is in {path}" in run(capsys, "plan", *factory, *devices).err
    made = torch_factories.as_dict()
    expected = model_graph(made["model"], made["args"], devices=devices[1], loss=made["loss"])
    assert baechi.load_graph(path) == expected
    compared = run(capsys, "compare", path, *devices)
    assert (compared.code, "m-sct" in compared.out) == (0, True)
