"""Code reading: what forward's code mentions beside the model, found without running it.

From the forwards of the modules on, functions are followed by the names in their code: methods
of the same class, functions of a module, closures. What they mention and what may change is
noted as a place: a global, an attribute of a class, a variable of a closure. What is reached in
other ways (names made at run time, objects made in forward, files, clocks) is not found.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from baechi.torch.applied_class import original_class
from baechi.torch.attributes import Reading, comes_from_user, is_users, read_module

__all__ = ["Code", "content_of", "read_state"]

MOST_FUNCTIONS = 1000
MOST_ROUNDS = 3  # objects lead to code, code to names, names to objects
Place = Mapping[str, Any] | types.CellType
_PROTOCOLS = ("__call__", "__getattr__", "__getattribute__", "__getitem__", "__iter__", "__len__")


def read_state(model: nn.Module, code: Code) -> Reading:
    """What of a model and of what its code mentions may change; the code may learn more by it."""
    for _ in range(MOST_ROUNDS):
        known = code.size
        reading = Reading(code.names)
        code.read(reading)
        for path, module in model.named_modules():
            read_module(reading, path, module)
        for function, owner in reading.functions:
            code.follow(function, owner)
        for kind in reading.kinds:
            code.add_class(kind)
        code.settle()
        if code.size == known:
            break
    return reading


class Code:
    """The code that a model's forward may run, and the places that it mentions."""

    def __init__(self, model: nn.Module) -> None:
        """Follows the forwards of all modules."""
        self.names: set[str] = {"forward"}
        self.caches: list[Any] = []
        self._tables: dict[type, Mapping[str, Any]] = {}
        self._kinds: dict[int, type] = {}
        self._objects: dict[type, None] = {}
        self._met: dict[tuple[int, type | None], Any] = {}
        self._waiting: list[tuple[Any, type | None]] = []
        self._places: dict[tuple[int, str], tuple[str, Place, str]] = {}
        self._contents: dict[str, Any] = {}
        classes = {type(module): original_class(module) for module in model.modules()}
        for kind, original in classes.items():  # an applied model's class has another forward
            for name in _PROTOCOLS:
                self._visit_attribute(kind, name)
            owner = next(base for base in original.__mro__ if "forward" in vars(base))
            self._note(owner.__qualname__, self._table(owner), "forward")
            if is_users(owner):
                self.follow(vars(owner)["forward"], kind)
        self.settle()

    @property
    def size(self) -> tuple[int, int, int]:
        """How much is known; it only grows."""
        return len(self.names), len(self._places), len(self._contents)

    @property
    def class_tables(self) -> list[Mapping[str, Any]]:
        """The attributes of the classes that are mentioned."""
        return list(self._tables.values())

    def read(self, reading: Reading) -> None:
        """Reads what stands in the places now."""
        for label, owner, name in self._places.values():
            if isinstance(owner, types.CellType):
                reading.cells.append((owner, content_of(owner)))
                reading.look(label, content_of(owner))
            elif name in owner:
                reading.add(label, owner, name, owner[name])
        for label, value in self._contents.items():
            reading.look(label, value)

    def absent(self, reading: Reading) -> Iterator[tuple[Any, str]]:
        """Places with something now that were empty when they were read."""
        known = {(id(owner), key) for owner, key, _ in reading.slots}
        for _, owner, name in self._places.values():
            if isinstance(owner, types.CellType) or (id(owner), name) in known:
                continue
            if name in owner:
                yield owner, name

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Changes what stands in a place."""
        kind = self._kinds.get(id(owner))
        if kind is not None:
            setattr(kind, name, value)
        elif isinstance(owner, dict):
            owner[name] = value

    def remove(self, owner: Any, name: str) -> None:
        """Empties a place."""
        kind = self._kinds.get(id(owner))
        if kind is not None:
            delattr(kind, name)
        elif isinstance(owner, dict):
            del owner[name]

    def add_class(self, kind: type) -> None:
        """Of an object; its methods are followed as soon as any code mentions their names."""
        if kind not in self._objects:
            self._objects[kind] = None
            for name in _PROTOCOLS:
                self._visit_attribute(kind, name)

    def follow(self, value: Any, owner: type | None) -> None:
        """Adds a function, method, property or the like to the code, as one of a class."""
        for function in _functions_in(value):
            key = id(function), owner
            if key not in self._met and len(self._met) < MOST_FUNCTIONS:
                self._met[key] = function
                self._waiting.append((function, owner))

    def settle(self) -> None:
        """Reads functions until they lead to no others."""
        while self._waiting:
            while self._waiting:
                self._read_function(*self._waiting.pop())
            for kind in list(self._objects):
                tables = [vars(base) for base in kind.__mro__ if is_users(base)]
                for name in sorted({n for table in tables for n in self.names & table.keys()}):
                    self._visit_attribute(kind, name)

    def _read_function(self, function: Any, owner: type | None) -> None:
        label = getattr(function, "__qualname__", type(function).__name__)
        if isinstance(function, _CACHE):
            self.caches.append(function)
        if isinstance(function, functools.partial):
            self._look(f"arguments of {label}", function.args)
            self._look(f"keywords of {label}", function.keywords)
        if not isinstance(function, types.FunctionType):
            return
        code = function.__code__
        names = sorted(set(_names_in(code)))
        self.names.update(names)
        module = function.__globals__.get("__name__", "")
        for name in names:
            if owner is not None:
                self._visit_attribute(owner, name)
            if name in function.__globals__:
                self._visit(module, function.__globals__, name, names)
            elif name in sys.modules:  # imported by the function
                self._visit(module, sys.modules, name, names)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._visit(label, cell, name, names)
        self._look(f"defaults of {label}", function.__defaults__)
        self._look(f"keyword defaults of {label}", function.__kwdefaults__)

    def _visit_attribute(self, kind: type, name: str) -> None:
        """Notes an attribute of a class of the user's, and follows a method or property."""
        for base in kind.__mro__:
            if name in vars(base):
                if is_users(base):
                    self._note(base.__qualname__, self._table(base), name)
                    self.follow(vars(base)[name], kind)
                return
        if is_users(kind):
            self._note(kind.__qualname__, self._table(kind), name)  # it may come to be there

    def _visit(self, where: str, owner: Place, name: str, names: list[str], depth: int = 0) -> None:
        """Notes a place; functions there are followed, modules and classes looked into."""
        value = content_of(owner) if isinstance(owner, types.CellType) else owner[name]
        if isinstance(value, types.ModuleType):
            if comes_from_user(value.__name__) and depth < 2:
                for inner in names:
                    if inner in vars(value):
                        self._visit(value.__name__, vars(value), inner, names, depth + 1)
        elif isinstance(value, type):
            for inner in names if is_users(value) else ():
                if any(inner in vars(base) and is_users(base) for base in value.__mro__):
                    self._visit_attribute(value, inner)
        else:
            self._note(where, owner, name)
            self.follow(value, None)

    def _note(self, where: str, owner: Place, name: str) -> None:
        self._places.setdefault((id(owner), name), (f"{where}.{name}", owner, name))

    def _table(self, kind: type) -> Mapping[str, Any]:
        # The same view each time, so that its id stays its own.
        if kind not in self._tables:
            self._tables[kind] = vars(kind)
            self._kinds[id(self._tables[kind])] = kind
        return self._tables[kind]

    def _look(self, label: str, value: Any) -> None:
        if value:
            self._contents[label] = value


def _functions_in(value: Any) -> Iterator[Any]:
    """The functions of the user's that a call of the value may run."""
    waiting, met = [value], {id(value)}
    while waiting:
        one = waiting.pop()
        inner: list[Any] = []
        if isinstance(one, types.FunctionType):
            inner.append(vars(one).get("__wrapped__"))
            if comes_from_user(one.__globals__.get("__name__", "")):
                yield one
            else:  # a decorator's wrapper
                inner += map(content_of, one.__closure__ or ())
        elif isinstance(one, (functools.partial, _CACHE)):
            yield one
            inner.append(getattr(one, "func", None) or getattr(one, "__wrapped__", None))
        elif isinstance(one, (types.MethodType, staticmethod, classmethod)):
            inner.append(one.__func__)
        elif isinstance(one, property):
            inner.append(one.fget)
        elif isinstance(one, functools.cached_property):
            inner.append(one.func)
        for function in inner:
            if id(function) not in met:
                met.add(id(function))
                waiting.append(function)


_CACHE = type(functools.lru_cache(lambda: None))


def content_of(cell: types.CellType) -> Any:
    """The value of a closure's variable; None where it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Names that code mentions, and strings that may be names (``getattr(self, "scale")``)."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant
