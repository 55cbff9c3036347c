"""The command line as a whole process: CPU time of the child, imports and all."""

import resource
import subprocess
import sys

import pytest


def cpu_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def process(*words):
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.benchmark(timer=cpu_of_children)
def bench_bare_python(timed):
    timed("bare Python, a process", 1, lambda: process("-c", "pass"), rounds=15)


@pytest.mark.benchmark(timer=cpu_of_children)
def bench_help(timed):
    timed("`baechi --help`, a process", 1, lambda: process("-m", "baechi", "--help"), rounds=15)


@pytest.mark.parametrize("algorithm", ["m-etf", "best"])
@pytest.mark.benchmark(timer=cpu_of_children)
def bench_plan(timed, scaled, make, tmp_path, algorithm):
    graph = make.training(scaled(1_000))
    path = tmp_path / "graph.json"
    graph.save(path)
    words = ("-m", "baechi", "plan", str(path), "-d", "8x64GiB", "-a", algorithm)
    name = f"`baechi plan -a {algorithm}`, JSON file to table, a process"
    timed(name, graph.num_ops, lambda: process(*words), rounds=9)
