"""Running one algorithm after the other on one graph and cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from baechi import _core
from baechi.columns import as_array
from baechi.errors import InputError, SolverError
from baechi.relaxation import check_threshold
from baechi.relaxation import favorites as find_favorites
from baechi.rules import Setting, with_names
from baechi.schedules import Schedule

__all__ = ["Favorites", "Placer"]

Favorites = Literal["lp", "greedy", "none"] | Mapping[str, str] | npt.ArrayLike

# `best` solves the linear program of graphs up to this many edges; beyond, the greedy rule decides.
MOST_EDGES_FOR_LP = 20_000


class Placer:
    """Runs algorithms on one setting; favorites are found once and only when needed."""

    def __init__(
        self,
        setting: Setting,
        favorites: Favorites | None,
        threshold: float | None,
        seed: int,
        repair: bool,
    ) -> None:
        """Checks the options, which are those of `place`."""
        self.setting = setting
        self.threshold = threshold
        self.favorites_used: str | None = None
        self.bounds: dict[str, int] = {}
        self.notes: list[str] = []
        self.solver_failed: SolverError | None = None
        self._given = favorites
        self._column: npt.NDArray[np.int32] | None = None
        self._seed = seed
        self._repair = repair
        if type(seed) is bool or not hasattr(seed, "__index__") or not 0 <= int(seed) < 2**64:
            raise InputError(f"seed {seed!r} is not an integer within 64 bits")
        if not isinstance(repair, bool):
            raise InputError(f"repair is {repair!r}, not True or False")
        if threshold is not None:
            check_threshold(threshold)

    def on(self, setting: Setting) -> Placer:
        """The same for another graph, without favorites."""
        return Placer(setting, "none", None, self._seed, self._repair)

    def run(self, algorithm: str, *, quick: bool = False) -> Schedule:
        """The schedule of one algorithm; `quick` takes greedy favorites of large graphs."""
        setting = self.setting
        favorites = self._favorites(quick) if algorithm.startswith("m-sct") else None
        with with_names(setting.graph, setting.cluster):
            core = _core.place(
                setting.flat_graph,
                setting.flat_cluster,
                algorithm,
                setting.rules,
                retention=setting.retention,
                favorites=favorites,
                seed=self._seed,
                colocation=setting.has_groups,
                repair=self._repair,
            )
        return setting.schedule(core)

    def _favorites(self, quick: bool) -> npt.NDArray[np.int32]:
        if self._column is None:
            self._column = self._find(quick)
        return self._column

    def _find(self, quick: bool) -> npt.NDArray[np.int32]:
        setting, given = self.setting, self._given
        if given is None:
            large = setting.graph.num_edges > MOST_EDGES_FOR_LP
            given = "greedy" if quick and large else "lp"
        if isinstance(given, str):
            self.favorites_used = given
            if given == "none" or (given == "greedy" and setting.graph.num_ops == 0):
                return np.full(setting.graph.num_ops, -1, np.int32)
            method: Any = given  # an unknown name is refused there
            found = find_favorites(
                setting.graph,
                setting.cluster,
                method,
                rules=setting.rules,
                threshold=self.threshold,
            )
            self.bounds = {
                "unlimited_lower_bound_ns": math.floor(found.lower_bound_ns),
                "unlimited_upper_bound_ns": math.ceil(found.upper_bound_ns),
            }
            return found.child
        self.favorites_used = "given"
        if isinstance(given, Mapping):
            column = np.full(setting.graph.num_ops, -1, np.int32)
            for op, child in given.items():
                column[setting.graph.index(op)] = setting.graph.index(child)
            return column
        array = as_array("favorites", given)
        if array.shape != (setting.graph.num_ops,) or array.dtype.kind not in "iu":
            raise InputError(
                f"favorites: expected int[{setting.graph.num_ops}], found "
                f"{array.dtype}{list(array.shape)}"
            )
        if len(wrong := np.flatnonzero((array < -1) | (array >= setting.graph.num_ops))):
            value, most = array[wrong[0]], setting.graph.num_ops - 1
            raise InputError(f"favorites[{wrong[0]}] is {value}, not an index from -1 to {most}")
        return np.ascontiguousarray(array, np.int32)
