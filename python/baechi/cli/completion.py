"""`baechi completion`: the completion script of a shell."""

from __future__ import annotations

import argparse

from baechi.cli.output import Outcome

__all__ = ["add_arguments", "run"]

_SHELLS = ("bash", "zsh", "tcsh", "fish", "powershell")
_FILES = {
    "graph",
    "placement",
    "plan",
    "report",
    "costs",
    "before",
    "after",
    "file",
    "source",
    "target",
    "output",
    "trace",
    "devices",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which shell."""
    parser.add_argument("shell", choices=_SHELLS, help="whose script")


def run(arguments: argparse.Namespace) -> Outcome:
    """Writes the script, which asks nothing of Baechi when it completes."""
    import shtab

    from baechi.cli import parser_of

    parser = parser_of()
    for one in _with_commands(parser):
        for action in one._actions:
            if action.dest in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return Outcome(raw=shtab.complete(parser, shell=arguments.shell) + "\n")


def _with_commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    commands = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands += action.choices.values()
    return commands
