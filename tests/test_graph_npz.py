"""npz files that are not what they claim to be."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baechi.errors import InputError
from baechi.formats import load_graph
from baechi.workloads import training_blocks


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A good npz file."""
    training_blocks(40, seed=1).save(tmp_path / "graph.npz")
    return tmp_path / "graph.npz"


def test_an_npz_file_cut_anywhere_is_refused(archive: Path) -> None:
    whole = archive.read_bytes()
    for length in range(4, len(whole), 97):
        archive.write_bytes(whole[:length])
        with pytest.raises(InputError):
            load_graph(archive)


def test_an_npz_file_with_a_changed_byte_is_refused_or_unharmed(archive: Path) -> None:
    graph, whole = load_graph(archive), archive.read_bytes()
    for position in range(4, len(whole), 53):
        changed = bytearray(whole)
        changed[position] ^= 0x55
        archive.write_bytes(changed)
        try:
            assert load_graph(archive) == graph
        except InputError:
            continue


def npy(array: np.ndarray[Any, Any], **changes: Any) -> bytes:
    """One npy member, with entries of its header replaced."""
    stream = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(array) | changes
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + array.tobytes()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("group", npy(np.zeros(40, "<i4"), shape=(2**50,)), "has not the bytes"),
        ("group", npy(np.zeros(40, "<i4"), shape=(-40,)), "version 1.0"),
        ("group", npy(np.zeros(40, "<i4"), descr="|O"), "version 1.0"),
        ("group", npy(np.zeros(40, "<f4")), "is <f4"),
        ("group", npy(np.zeros((40, 1), "<i4")), "2 axes"),
        ("group", npy(np.zeros(39, "<i4")), "group has shape"),
        ("group", b"\x93NUMPY\x01\x00\x05\x00((((((", "version 1.0"),
        ("group", b"not numpy", "version 1.0"),
        ("compute_ns", npy(np.zeros((1, 40), "<i8"), fortran_order=True), "C order"),
        ("schema", npy(np.array(2, "<i8")), "schema 2 is unknown"),
        ("op_kinds.codes", npy(np.ones(40, "<i4")), "a text that is not there"),
        ("op_names.ends", npy(np.arange(40, dtype="<i8")), "does not divide"),
        ("op_names.ends", npy(np.full(40, 2**62, "<i8")), "does not divide"),
        ("op_names.utf8", npy(np.zeros(0, "|u1")), "does not divide"),
        ("allowed_sets", npy(np.array([3], "<i8")), "does not divide"),
        ("extra", npy(np.zeros(1)), "not the arrays of a graph: extra"),
    ],
)
def test_a_hostile_array_is_refused_by_name(
    archive: Path, name: str, content: bytes, message: str
) -> None:
    with zipfile.ZipFile(archive) as good:
        members = {info: good.read(info) for info in good.namelist()}
    members[f"{name}.npy"] = content
    with zipfile.ZipFile(archive, "w") as bad:
        for member, data in members.items():
            bad.writestr(member, data)
    with pytest.raises(InputError, match=message):
        load_graph(archive)


def test_a_compressed_archive_is_refused(archive: Path) -> None:
    with np.load(archive) as good:
        np.savez_compressed(archive.with_name("small.npz"), **dict(good))
    with pytest.raises(InputError, match="compressed"):
        load_graph(archive.with_name("small.npz"))


def test_a_zip_file_of_something_else_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("readme.txt", "hello")
    with pytest.raises(InputError, match="not the arrays of a graph"):
        load_graph(tmp_path / "other.zip")
