"""Any input: a typed error that names the culprit and its numbers, or a right answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from refusals import Refusal, table
from refused_calls import REFUSED_CALLS
from refused_clusters import REFUSED_CLUSTERS
from refused_files import REFUSED_FILES
from refused_graphs import REFUSED_GRAPHS
from refused_plans import REFUSED_PLANS

REFUSED = table(REFUSED_GRAPHS, REFUSED_CLUSTERS, REFUSED_FILES, REFUSED_PLANS, REFUSED_CALLS)


@pytest.mark.parametrize("row", REFUSED, ids=[row.name for row in REFUSED])
def test_what_cannot_be_used_is_refused_by_name(row: Refusal, tmp_path: Path) -> None:
    with pytest.raises(row.error) as caught:
        row.call(tmp_path)
    assert type(caught.value) is row.error
    assert [word for word in row.words if word not in str(caught.value)] == [], caught.value
