"""Coverage-guided fuzzing of one target: `run.py TARGET CORPUS [options of libFuzzer]`."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["baechi", "targets", "json", "tomllib", "zipfile"]):
    sys.path.insert(0, str(Path(__file__).parent))
    from targets import SEEDS, TARGETS


def main() -> None:
    name, corpus = sys.argv[1], Path(sys.argv[2])
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]):
        (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], str(corpus), *sys.argv[3:]], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
