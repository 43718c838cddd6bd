"""What is refused in an ONNX file before onnxruntime opens it; more is in tests/runners/hostile.py."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedistill.errors import CheckFailed
from edgedistill.runtime.trust import graph_check
from edgedistill.students import graph
from tests.students.test_graph import make_bert


@pytest.fixture(scope="module")
def real() -> bytes:
    return graph.build(make_bert(num_hidden_layers=1)).SerializeToString()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs") / "x.onnx"


def is_accepted(path: Path, data: bytes) -> bool:
    """Whether a file is accepted; any other error than CheckFailed fails the test."""
    path.write_bytes(data)
    refusal = ""
    try:
        graph_check.check(path)
    except CheckFailed as error:
        refusal = str(error)
    assert not refusal or refusal.startswith(f"{path}: ")
    return not refusal


def test_a_graph_twice_is_read_in_two_ways(path: Path, real: bytes):
    """protobuf merges the messages, and another reader takes the first."""
    assert is_accepted(path, real)
    again = onnx.ModelProto(graph=onnx.ModelProto.FromString(real).graph).SerializeToString()
    assert not is_accepted(path, real + again)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xff" * 40,  # a number without an end
        b"\x3a\xff\xff\xff\xff\x07abc",  # 2147483647 bytes where 3 are left
        b"ORTM and so on",
        b"\x12\x06abORTM" + bytes(64),
        b"\x08\x08",  # no graph
        b"\x3f\x00",  # a wire type that there is not
        b"\x38\x00",  # the graph as a number
        b"\x3a\x04\x0a\x02\x22\x00" * 2,  # a node of no operator
    ],
)
def test_bytes_that_are_no_graph(path: Path, data: bytes):
    assert not is_accepted(path, data)


def test_a_graph_of_too_many_parts(path: Path, real: bytes, monkeypatch):
    monkeypatch.setattr(graph_check, "MOST_NODES", 10)
    assert not is_accepted(path, real)
    monkeypatch.undo()
    monkeypatch.setattr(graph_check, "MOST_FIELDS", 100)
    assert not is_accepted(path, real)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.binary(max_size=400))
def test_random_bytes(path: Path, data: bytes):
    assert not is_accepted(path, data)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.floats(0, 0.99, allow_subnormal=False))
def test_a_graph_cut_short(path: Path, real: bytes, share: float):
    assert not is_accepted(path, real[: int(len(real) * share)])


@settings(max_examples=250, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_graph_with_bytes_changed(path: Path, real: bytes, changes: list[tuple[int, int]]):
    """Bytes of nodes, which come first. Accepted where it still is a graph."""
    data = bytearray(real)
    for at, value in changes:
        data[at] = value
    is_accepted(path, bytes(data))
