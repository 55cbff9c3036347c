"""Module maps: ``{module path: device}`` as plans and ``device_map`` write it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

from baechi.errors import InputError

__all__ = ["compress", "device_of", "digest", "follow"]


def device_of(modules: Mapping[str, str], path: str) -> str | None:
    """The device of a module or parameter path: the longest entry that it lies under decides."""
    while True:
        if path in modules:
            return modules[path]
        if not path:
            return None
        path = path.rpartition(".")[0]


def compress(devices: Mapping[str, str]) -> dict[str, str]:
    """The shortest map that says the same: one entry where a whole subtree is on one device.

    Args:
        devices: device of each module that is placed on its own, by path.

    >>> compress({"a.x": "cuda:0", "a.y": "cuda:0", "b": "cuda:1", "b.c": "cuda:0"})
    {'a': 'cuda:0', 'b': 'cuda:1', 'b.c': 'cuda:0'}
    """
    children: dict[str, dict[str, None]] = {"": {}}
    for path in devices:
        while path:
            parent = path.rpartition(".")[0]
            children.setdefault(path, {})
            children.setdefault(parent, {})[path] = None
            path = parent
    uniform: dict[str, str | None] = {}

    def look(path: str) -> str | None:
        below = [look(child) for child in children.get(path, ())]
        homes = {devices[path]} if path in devices else set()
        homes |= {home or "" for home in below}
        uniform[path] = homes.pop() if len(homes) == 1 else None
        return uniform[path] or None

    look("")
    found: dict[str, str] = {}

    def write(path: str) -> None:
        home = uniform[path]
        if home:
            found[path] = home
            return
        if path in devices:
            found[path] = devices[path]
        for child in children.get(path, ()):
            write(child)

    write("")
    return dict(sorted(found.items()))


def digest(modules: Mapping[str, str], ops: Mapping[str, str], names: Sequence[str]) -> str:
    """16 hexadecimal digits that tell placements apart.

    Entries that say what the one above them says, and names of devices, make no difference.

    Args:
        modules: the map.
        ops: device by op key, for exceptions.
        names: the devices.
    """
    numbers = {name: at for at, name in enumerate(names)}
    told = {
        path: numbers[home]
        for path, home in modules.items()
        if not path or device_of(modules, path.rpartition(".")[0]) != home
    }
    moved = {key: numbers[home] for key, home in ops.items()}
    text = json.dumps([told, moved], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def follow(
    modules: Mapping[str, str], together: Iterable[tuple[Sequence[str], str]]
) -> dict[str, str]:
    """The map after modules that must share a device have followed the one that was moved.

    Args:
        modules: the map, perhaps changed by hand.
        together: groups of paths, and the device that each had when the plan was made.

    Raises:
        InputError: two modules of one group were sent to different devices.
    """
    found = dict(modules)
    for paths, planned in together:
        moved = {p: home for p in paths if (home := device_of(modules, p)) != planned}
        targets = {home for home in moved.values() if home is not None}
        if len(targets) > 1:
            listed = ", ".join(f'"{path}" on {home}' for path, home in moved.items())
            raise InputError(
                f"the plan puts {listed}, but they change one tensor in place or share ops",
                hint="give them one device",
            )
        for target in targets:
            found.update(dict.fromkeys(paths, target))
    return found
