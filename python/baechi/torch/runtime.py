"""What the hooks of a placed model share: its devices, and the pass that each thread is running."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import torch
from torch import nn

from baechi.errors import InputError
from baechi.torch.frames import Frame, ThreadState, mark_changed_copies
from baechi.torch.glue import GlueMode
from baechi.torch.lessons import Lessons, Notes
from baechi.torch.transfer_cache import TransferCache

__all__ = ["ModuleRuntime"]

OUTPUTS = ("where-computed", "inputs")


class ModuleRuntime:
    """What the hooks of one model share: its devices, and what each thread is running.

    Attributes:
        lessons: by outermost module, training flag and grad mode, what the first pass showed, and
            the uses of each copy in the last pass that ended well; with them copies are dropped
            after their last use.
        num_copies: copies made in the last pass of any thread.
    """

    def __init__(self, devices: frozenset[torch.device], outputs: str) -> None:
        """Starts with no pass running."""
        if outputs not in OUTPUTS:
            raise InputError(f'outputs is "{outputs}"', hint=f"one of {', '.join(OUTPUTS)}")
        self.devices = devices
        self.outputs = outputs
        self.lessons: dict[tuple[str, bool, bool], Lessons] = {}
        self._in_force: dict[tuple[str, bool, bool], Lessons] = {}
        self.num_copies = 0
        self.state = ThreadState()

    def __getstate__(self) -> dict[str, Any]:
        """All but what the threads are running."""
        return {key: value for key, value in self.__dict__.items() if key != "state"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy runs nothing yet."""
        self.__dict__.update(state)
        self.state = ThreadState()

    def push(self, frame: Frame, *, learns: bool = True) -> None:
        """Enters a module; the outermost one starts the pass of its thread."""
        state = self.state
        if not state.frames:
            self._begin_pass(frame, learns=learns)
            state.mode = GlueMode(self, state, self.devices)
            state.mode.__enter__()  # type: ignore[no-untyped-call]
        state.frames.append(frame)

    def _begin_pass(self, frame: Frame, *, learns: bool) -> None:
        state = self.state
        key = (frame.path, frame.module.training, torch.is_grad_enabled())
        known = self.lessons.get(key) if learns else Lessons()
        if torch._C._current_graph_task_id() >= 0:  # computed again: as the pass that it repeats
            known = self._in_force.get(key, Lessons())
        elif learns:
            self._in_force[key] = known or Lessons()
        state.key = key if learns else None
        state.notes = Notes(known or Lessons(), learns=known is None)
        state.cache = TransferCache(state.notes.lessons.use_counts)

    def pop(self, module: nn.Module) -> bool:
        """Leaves a module, and those inside of it; whether the pass of the thread ended with it."""
        state = self.state
        while state.frames:
            frame = state.frames[-1]
            mark_changed_copies(state, frame)  # looks at tensors, so the frame has to be there
            if state.notes.learns and frame.entry is not None:
                self._note_entry(frame)
            state.frames.pop()
            if frame.module is module:
                break
        if not state.frames:
            self._end_pass()
        return not state.frames

    def _note_entry(self, frame: Frame) -> None:
        assert frame.entry is not None
        assert frame.device is not None
        notes = self.state.notes
        # Kernels that torch does not know read unseen: only modules such as tables of positions,
        # which have no weights, are believed not to read an argument.
        is_believed = next(frame.module.parameters(), None) is None
        unread = frozenset(frame.unread.values()) if is_believed else frozenset()
        notes.entered(frame.entry, unread)
        read = (one for number, (one, *_) in enumerate(frame.moved) if number not in unread)
        notes.read(read, frame.device)

    def reset(self) -> None:
        """Leaves all modules of this thread, after an interruption that no hook has seen."""
        if self.state.frames:
            self.state.frames.clear()
            self.state.stale.clear()
            self._end_pass()

    def _end_pass(self) -> None:
        state = self.state
        mode, state.mode = state.mode, None
        if mode is not None:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if state.key is not None and sys.exc_info()[0] is None:
            taught = state.notes.taught()
            # What is not made any more would put the counts of all after it out of step.
            is_settled = not (state.notes.learns and taught.has_moved_values)
            uses = state.cache.uses if is_settled else ()
            self.lessons[state.key] = dataclasses.replace(taught, use_counts=uses)
        state.notes = Notes(Lessons(), learns=False)
        self.num_copies = state.cache.num_copies
        state.cache.clear()
