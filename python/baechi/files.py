"""Writing a file in one step."""

from __future__ import annotations

import os
import threading
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes next to the target and renames, so that a reader sees the old file or the new one.

    Raises:
        OSError: the folder is missing or cannot be written; the old file is then unchanged.
    """
    target = Path(path)
    # A name of its own for every writer, and no longer than the target's may be.
    temporary = target.with_name(f".baechi.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(target)
    except OSError as error:  # nobody but us knows the temporary file
        temporary.unlink(missing_ok=True)
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
