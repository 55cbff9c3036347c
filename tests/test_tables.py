"""Tables: the most important columns where there is little room."""

from baechi.tables import Column, fitted


def test_the_least_important_columns_go_first() -> None:
    ranks = {"a": 3, "b": 1, "c": 2}
    columns = [Column(heading=h, cells=["1234"], importance=at) for h, at in ranks.items()]
    assert [column.heading for column in fitted(columns, 16)] == ["a", "b", "c"]
    assert [column.heading for column in fitted(columns, 10)] == ["a", "c"]
    assert [column.heading for column in fitted(columns, 1)] == ["a"]


def test_a_column_that_is_too_wide_does_not_take_others_with_it() -> None:
    columns = [
        Column(heading=heading, cells=["x" * width], importance=importance)
        for heading, width, importance in (("a", 4, 3), ("b", 90, 2), ("c", 4, 1))
    ]
    assert [column.heading for column in fitted(columns, 60)] == ["a", "c"]


def test_wide_characters_count_twice() -> None:
    assert Column(heading="op", cells=["層/注意"]).width == 7
