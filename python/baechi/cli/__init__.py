"""The command line: one module per command, imported when it is called (docs/command-line.md).

A command is a module with `add_arguments(parser)` and `run(arguments) -> Outcome`, and a line in
`COMMANDS`. Nothing heavy is imported before a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["COMMANDS", "main", "parser_of"]

COMMANDS = {
    "plan": "place a graph, or a model of PyTorch, on devices, and predict time and memory",
    "simulate": "time and memory of a plan, or of a placement made by others",
    "compare": "all algorithms side by side",
    "show": "a graph, plan or cluster in words: what holds the memory, what takes the time",
    "diff": "what differs between two plans",
    "report": "one HTML file with timeline, memory and graph of a plan",
    "convert": "write a graph, plan or cluster in another format",
    "rehearse": "run the plan of a model of PyTorch on simulated devices",
    "perturb": "how a plan stands other costs and links than were predicted",
    "favorites": "m-SCT's favorite children, with the bounds of their linear program",
    "devices": "the accelerators of this machine, as a cluster file",
    "completion": "the completion script of your shell",
}

INTERRUPTED, BROKEN_PIPE = 130, 141  # what shells report for a process that the signal ended


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code (docs/command-line.md)."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except SystemExit as done:  # argparse: help, version, or a wrong usage
        return done.code if isinstance(done.code, int) else 2
    except KeyboardInterrupt:
        sys.stderr.write("baechi: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has gone. Python would complain again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def parser_of(commands: Sequence[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """The parser; only the commands named here get their arguments."""
    parser = argparse.ArgumentParser(
        prog="baechi",
        description="Places the operators of a neural network on devices with limited memory, and "
        "predicts time and memory.",
        epilog="exit codes: 0 done; 1 a fault of ours; 2 wrong usage or input; 3 proved that it "
        "does not fit; 4 nothing found within the limits; 130 interrupted",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    choices = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        one = choices.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            allow_abbrev=False,
            formatter_class=_Help,
        )
        if name in commands:
            _module(name).add_arguments(one)
            one.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    return parser


def _run(words: list[str]) -> int:
    command = next((word for word in words if not word.startswith("-")), "")
    arguments = parser_of([command]).parse_args(words)
    from baechi.cli import failures, output

    for stream in (sys.stdout, sys.stderr):  # a name that cannot be written is escaped
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        outcome = _module(arguments.command).run(arguments)
    except Exception as error:
        if arguments.debug or isinstance(error, BrokenPipeError):
            raise
        return failures.explain(error, arguments)
    output.deliver(outcome, arguments)
    return int(outcome.code)


def _module(command: str) -> Any:
    return importlib.import_module(f"baechi.cli.{command}")


class _Help(argparse.HelpFormatter):
    """Shows the defaults that say something."""

    def _get_help_string(self, action: argparse.Action) -> str:
        says = action.option_strings and action.default not in (None, False, argparse.SUPPRESS)
        return f"{action.help} (default: %(default)s)" if says else str(action.help)


class _Version(argparse.Action):
    """Imports the version only when somebody asks for it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from baechi._core import __version__

        sys.stdout.write(f"baechi {__version__}\n")
        parser.exit()
