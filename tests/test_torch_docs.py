"""The Python of the documents about PyTorch runs, each document as one program."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", ["pytorch.md", "model-plans.md", "simulated-devices.md"])
def test_the_python_of_a_document_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL):
        exec(compile(block, name, "exec"), names)


def test_every_field_of_a_plan_file_is_described() -> None:
    from baechi.torch import model_plan_json as fields

    text = (DOCS / "model-plans.md").read_text()
    known = (*fields._TEXTS, *fields._MAPS, *fields._LISTS, *fields._COUNTS, *fields._OTHERS)
    assert [field for field in known if f"`{field}`" not in text] == []


def test_the_classes_of_memory_are_described() -> None:
    from baechi.torch.memory import CLASSES

    for name in ("pytorch.md", "memory.md"):
        text = (DOCS / name).read_text()
        assert [kind for kind in CLASSES if f"`{kind}`" not in text] == []
