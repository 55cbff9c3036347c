"""Models of PyTorch that commands plan: a function in a module of the user's makes them."""

from __future__ import annotations

import contextlib
import importlib
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from baechi.cli.output import progress, say
from baechi.errors import InputError, MissingFrameworkError

__all__ = ["Subject", "add_model", "read_model", "told"]

_FIELDS = ("model", "args", "kwargs", "loss", "optimizer")
_HINT = "return (model, args, kwargs), a model, or a dict with any of " + ", ".join(_FIELDS)


class Subject(NamedTuple):
    """What a factory returned."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Any = None
    optimizer: Any = None


def add_model(parser: Any, *, required: bool) -> None:
    """Where the model comes from."""
    parser.add_argument(
        "--torch",
        metavar="MODULE:FACTORY",
        required=required,
        help="a function that returns (model, args, kwargs); modules are looked for in the current "
        "directory too",
    )


def read_model(spec: str) -> Subject:
    """Calls the factory; what it prints goes to stderr.

    Raises:
        InputError: it is not there, fails, or returns something else.
        MissingFrameworkError: PyTorch is not installed.
    """
    importlib.import_module("baechi.torch")  # says what is missing where PyTorch is
    module, colon, name = spec.partition(":")
    if not (module and colon and name) or module.endswith(".py") or "/" in module:
        raise InputError(
            f'--torch "{spec}" is not module:factory',
            hint="write package.module:function, as in an import",
        )
    with told(spec), _importable(), contextlib.redirect_stdout(sys.stderr):
        with progress(f"importing {module}"):
            found: Any = _import(module, spec)
        for part in name.split("."):
            if not hasattr(found, part):
                raise InputError(f'module "{module}" has no "{name}"')
            found = getattr(found, part)
        with progress(f"calling {name}"):
            return _subject(found if _is_model(found) or not callable(found) else found(), spec)


def _import(module: str, spec: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise InputError(
            f'--torch "{spec}": there is no module "{error.name}"',
            hint="it is looked for in the current directory and where Python is installed",
        ) from None


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Turns errors of the user's code into input errors that name the user's line."""
    try:
        yield
    except (InputError, MissingFrameworkError):
        raise
    except (Exception, SystemExit) as error:
        where = _line_of(error)
        if where is None and what == "":
            raise
        place = f" ({where})" if where else ""
        text = str(error).strip() or "no message"
        label = f"{what} failed: " if what else "the model failed: "
        raise InputError(
            f"{label}{type(error).__name__}: {text}{place}", hint="--debug shows the traceback"
        ) from error


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """The current directory can be imported from, as under `python -m`."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def _line_of(error: BaseException) -> str | None:
    """The innermost line of the user's own code that the error came through."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}, line {error.lineno}"
    not_theirs = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    not_theirs.append(str(Path(__file__).parents[1]))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = frame.filename
        if not file.startswith("<") and not any(file.startswith(root) for root in not_theirs):
            return f"{_short(file)}, line {frame.lineno}, in {frame.name}"
    return None


def _short(file: str) -> str:
    with contextlib.suppress(ValueError):
        return str(Path(file).relative_to(Path.cwd()))
    return file


def _is_model(value: object) -> bool:
    from torch.nn import Module

    return isinstance(value, Module)


def _subject(returned: Any, spec: str) -> Subject:
    if _is_model(returned):
        return Subject(returned, (), _dummy_inputs(returned))
    if isinstance(returned, Mapping):
        return _of_mapping(returned, spec)
    if isinstance(returned, tuple) and 1 <= len(returned) <= 3:
        model, *rest = returned
        if len(rest) == 1 and isinstance(rest[0], Mapping):
            rest = [(), rest[0]]
        return _checked(spec, model, *rest)
    raise InputError(f"{spec} returned {_named(returned)}", hint=_HINT)


def _dummy_inputs(model: Any) -> dict[str, Any]:
    """What models of transformers say that they can be called with."""
    inputs = getattr(model, "dummy_inputs", None)
    if not isinstance(inputs, Mapping):
        return {}
    say("no inputs were given: the model's own dummy_inputs are planned for")
    return dict(inputs)


def _of_mapping(returned: Mapping[str, Any], spec: str) -> Subject:
    if strange := [str(key) for key in returned if key not in _FIELDS]:
        raise InputError(f"{spec} returned a dict with {', '.join(strange)}", hint=_HINT)
    return _checked(spec, **{"model": None, **returned})


def _checked(
    spec: str,
    model: Any,
    args: Any = (),
    kwargs: Any = None,
    loss: Any = None,
    optimizer: Any = None,
) -> Subject:
    if not _is_model(model):
        raise InputError(f"{spec}: the model is {_named(model)}, not a torch.nn.Module", hint=_HINT)
    if not isinstance(args, tuple | list):
        raise InputError(
            f"{spec}: args is {_named(args)}, not a tuple",
            hint="one input is written (model, (x,))",
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InputError(f"{spec}: kwargs is {_named(kwargs)}, not a dict")
    return Subject(model, tuple(args), dict(kwargs or {}), loss, optimizer)


def _named(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
