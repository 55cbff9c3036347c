"""Instructions per op of the inner loops by valgrind: the same on a busy machine.

Run as `python benches/instructions.py` with valgrind and cargo on the path.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
NUM_OPS = 10_000
LOOPS = {
    "m-etf": "m-ETF decides, physical rules, 8 serial devices",
    "listed": "the same with devices given",
    "given": "the same without limits, for many placements",
    "schedule": "a decision becomes a schedule with exact peaks",
    "makespan": "a placement with launch order: makespan",
    "peaks": "the same with exact peaks",
}


def instructions(program: Path, loop: str, repeats: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                "valgrind",
                "--tool=callgrind",
                f"--callgrind-out-file={folder}/out",
                program,
                loop,
                str(repeats),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if found is None:
        raise SystemExit(f"valgrind said nothing of instructions:\n{done.stderr}")
    return int(found[1])


def main() -> None:
    build = ["cargo", "build", "--quiet", "--release", "--package", "baechi-core"]
    subprocess.run([*build, "--example", "inner_loops"], check=True, cwd=ROOT)
    program = ROOT / "target" / "release" / "examples" / "inner_loops"
    print("| loop | instructions per op |\n| --- | --- |")
    for loop, what in LOOPS.items():
        # The difference leaves out the set-up, and what only a first time costs.
        few, many = (instructions(program, loop, repeats) for repeats in (1, 4))
        print(f"| {what} | {(many - few) / 3 / NUM_OPS:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
