"""The readers on bytes changed at random from fixed seeds; `make fuzz` does it for long."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "fuzz"))
from targets import SEEDS, TARGETS

MOST_RUNS = 1_500
MOST_SECONDS = 1.5
WORDS = (
    *(b"[", b"]", b"{", b"}", b'"', b",", b":", b"[[]]", b"null", b"true", b"NaN"),
    *(b"-1", b"0", b"1e999", b"9" * 30, b"18446744073709551616", b"4611686018427387904"),
    *(b"\xff", b"\0", b"\\ud800"),
)


def changed(rng: random.Random, seed: bytes) -> bytes:
    """The bytes with a few changes: flipped, cut, copied, swapped, or words put in."""
    data = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at, other = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
        first, last = min(at, other), max(at, other)
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[first : min(last, first + 40)]
            case 2:
                data[at:at] = data[first : min(last, first + 40)]
            case 3:
                data[at : at + rng.randrange(6)] = rng.choice(WORDS)
            case 4:
                data = data[:at] if rng.random() < 0.2 else data
            case 5:
                data[at : at + 4] = rng.randbytes(4)
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_a_reader_answers_any_bytes_with_a_value_or_a_typed_error(name: str) -> None:
    rng = random.Random(name)
    started = time.monotonic()
    for seed in SEEDS[name]:
        TARGETS[name](seed)
    for _ in range(MOST_RUNS):
        data = changed(rng, rng.choice(SEEDS[name]))
        try:
            TARGETS[name](data)
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error}\nfor the bytes {data!r}")
        if time.monotonic() - started > MOST_SECONDS:
            break
