import pytest
from hypothesis import given
from hypothesis import strategies as st

from baechi.errors import InputError
from baechi.units import format_bytes, format_ns, parse_bandwidth, parse_bytes, parse_ns


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("24GiB", 24 * 2**30),
        ("24 gib", 24 * 2**30),
        ("1.5 GiB", 3 * 2**29),
        ("80GB", 80 * 10**9),
        ("512MB", 512 * 10**6),
        ("16 KiB", 16 * 2**10),
        ("3MiB", 3 * 2**20),
        ("2TB", 2 * 10**12),
        ("1TiB", 2**40),
        ("7B", 7),
        ("123", 123),
        (" 1e9 ", 10**9),
        ("0.7 KiB", 716),
    ],
)
def test_a_size_is_read_by_its_unit(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


def test_a_lower_case_b_means_bits_except_in_powers_of_two() -> None:
    assert parse_bytes("200Mb") == 25_000_000
    assert parse_bytes("200mB") == 200_000_000
    assert parse_bytes("1Gib") == 2**30
    assert parse_bytes("7Kb") == 875


def test_numbers_are_bytes() -> None:
    assert parse_bytes(17) == 17
    assert parse_bytes(12e9) == 12_000_000_000


def test_whole_numbers_stay_exact_above_the_precision_of_floats() -> None:
    assert parse_bytes("9007199254740993") == 2**53 + 1


@pytest.mark.parametrize(
    "size",
    [
        *("", "GiB", "24G", "x", "-5GB", "1,5GB", "1 2", "1.5.2GB", "nan", "٣GB"),
        *(None, True, 1.5, float("nan"), float("inf"), [1]),
    ],
)
def test_what_is_not_a_size_is_named_in_the_error(size: object) -> None:
    with pytest.raises(InputError) as caught:
        parse_bytes(size)  # type: ignore[arg-type]
    assert repr(size) in str(caught.value)
    assert "hint: " in str(caught.value)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(InputError, match="negative"):
        parse_bytes(-1)


@pytest.mark.parametrize("size", [2**62, float(2**62), "5000000TiB", "9" * 30, "9e99"])
def test_a_size_that_leaves_no_room_for_sums_is_refused(size: int | float | str) -> None:
    with pytest.raises(InputError, match=r"2\*\*62"):
        parse_bytes(size)


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [("10us", 10_000), ("10 µs", 10_000), ("3.2 ms", 3_200_000), ("1s", 10**9), ("25", 25)],
)
def test_a_time_is_read_by_its_unit(text: str, time_ns: int) -> None:
    assert parse_ns(text) == time_ns


@pytest.mark.parametrize("time", ["0.5 ns", "1.2345 us", "3 min", "", "-1us", 0.5, None])
def test_a_time_that_is_no_whole_nanosecond_is_refused(time: object) -> None:
    with pytest.raises(InputError):
        parse_ns(time)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("12GB/s", 12 * 10**9),
        ("12 GiB/s", 12 * 2**30),
        ("100Gb/s", 12_500_000_000),
        ("100 Gbps", 12_500_000_000),
        ("5", 5),
        ("0", 0),
    ],
)
def test_a_rate_is_read_by_its_unit(text: str, bytes_per_s: int) -> None:
    assert parse_bandwidth(text) == bytes_per_s


@pytest.mark.parametrize("rate", ["12GB", "GB/s", "-1GB/s", "7b/s", "0.1 B/s", 0.5, None])
def test_what_is_not_a_rate_is_refused(rate: object) -> None:
    with pytest.raises(InputError):
        parse_bandwidth(rate)  # type: ignore[arg-type]


def test_amounts_are_written_in_the_largest_unit_that_fits() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 1536, 24 * 2**30)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "24 GiB",
    ]
    assert [format_ns(n) for n in (7, 10_000, 3_249_000, 90 * 10**9)] == [
        "7 ns",
        "10 us",
        "3.2 ms",
        "90 s",
    ]
    assert format_bytes(-2048) == "-2 KiB"


def test_rounding_moves_to_the_next_unit_rather_than_past_it() -> None:
    assert format_bytes(2**20 - 1) == "1.0 MiB"
    assert format_ns(999_950_000) == "1.0 s"
    assert format_ns(999_949_999) == "999.9 ms"


@given(st.integers(0, 2**61))
def test_what_is_written_reads_back_within_the_printed_digit(amount: int) -> None:
    assert abs(parse_bytes(format_bytes(amount)) - amount) <= amount / 19 + 1
    assert abs(parse_ns(format_ns(amount)) - amount) <= amount / 19 + 1
