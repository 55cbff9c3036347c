"""The rules of ARCHITECTURE.md that a machine can check: imports, file lengths, no printing."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "python" / "baechi"


def import_tables() -> list[dict[str, set[str]]]:
    """The two tables of ARCHITECTURE.md: module to what it may import, at once and at call time.

    "formats/*" is every module there; a row allows whatever its entries may import, too.
    """
    blocks = (ROOT / "ARCHITECTURE.md").read_text().split("## Who may import whom")[1].split("```")
    tables = []
    for block in (blocks[1], blocks[3]):
        table = {}
        for row in block.strip().splitlines():
            modules, names = re.split(r"  +", row)
            direct = {name for name in names.split(", ") if name != "nothing"}
            table |= dict.fromkeys(modules.split(", "), direct)
        tables.append(table)
    return tables


DIRECT, MAY_IMPORT_LATE = import_tables()


def with_imports_of(names: set[str]) -> set[str]:
    return names.union(*(with_imports_of(DIRECT.get(name, set())) for name in names))


MAY_IMPORT = {module: with_imports_of(names) for module, names in DIRECT.items()}
FRAMEWORKS = {"torch", "tensorflow", "highspy", "networkx", "rich", "numpy"}
# Modules that write to the user.
MAY_PRINT = {"__main__", "cli"}
LONGEST = {".py": 300, ".rs": 400}
# Files above the cap, each with the reason why it is not split.
MAY_BE_LONGER: dict[str, tuple[int, str]] = {
    "rust/core/src/list/mod.rs": (
        570,
        "one loop that shares all its state, and what it asks of rules",
    ),
    "rust/core/src/original/tensor_flow.rs": (
        440,
        "one book of memory, to be read beside its rules",
    ),
    "rust/core/src/place/contiguous.rs": (520, "one dynamic program with its estimates of memory"),
    "rust/core/src/timeline/mod.rs": (450, "scores and commits must agree line by line"),
    "rust/py/src/calls.rs": (520, "the border in one place: one short function per call"),
    "tests/support/baseline_tf_loop.py": (
        340,
        "the original's loop as one piece, to be read whole",
    ),
}


def module_of(path: Path) -> str:
    """The name in the tables: "graph", "formats/*", or "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return f"{parts[0]}/*" if len(parts) > 1 else parts[0].removesuffix("__init__")


def imports(tree: ast.AST, *, late: bool = False) -> Iterator[tuple[str, bool]]:
    """Modules of ours that are imported, and whether only at call time; not those for types."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            first, *rest = name.split(".")
            if first == "baechi" and rest:
                is_folder = (PACKAGE / rest[0]).is_dir()
                yield (f"{rest[0]}/*" if is_folder else rest[0]), late
        in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from imports(node, late=late or in_function)


def forbidden_imports(module: str, source: str) -> list[str]:
    at_once = MAY_IMPORT[module]
    late = with_imports_of(at_once | MAY_IMPORT_LATE.get(module, set()))
    return [
        f"{module} imports {name}{' at call time' if is_late else ''}"
        for name, is_late in imports(ast.parse(source))
        if name != module and name not in (late if is_late else at_once)
    ]


MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if module_of(path)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_is_below_it(path: Path) -> None:
    assert module_of(path) in MAY_IMPORT, "add the module to the table in ARCHITECTURE.md"
    assert forbidden_imports(module_of(path), path.read_text()) == []


def test_a_planted_import_is_found() -> None:
    upward = "from baechi import plans\nimport baechi.placement\n"
    assert forbidden_imports("graph", upward) == [
        "graph imports plans",
        "graph imports placement",
    ]
    assert forbidden_imports("graph", "from baechi import _core") == ["graph imports _core"]
    assert forbidden_imports("graph", "def f():\n    from baechi import _core") == []
    assert forbidden_imports("units", "def f():\n    from baechi.graph import Graph") == [
        "units imports graph at call time"
    ]
    assert forbidden_imports("graph", "if TYPE_CHECKING:\n    from baechi.plans import Plan") == []


def test_every_row_of_the_tables_names_modules_that_exist() -> None:
    modules = {module_of(path) for path in MODULES} | {"_core"}
    for table in (DIRECT, MAY_IMPORT_LATE):
        assert set(table).union(*table.values()) <= modules


def test_no_module_may_import_itself_through_another() -> None:
    assert [module for module, names in MAY_IMPORT.items() if module in names] == []


def blocks_of_the_map() -> dict[str, str]:
    """The text of the map by folder, such as "python/baechi" and "python/baechi/torch"."""
    text = (ROOT / "ARCHITECTURE.md").read_text().split("## Map")[1].split("```")[1]
    blocks: dict[str, list[str]] = {}
    top = folder = ""
    for line in text.splitlines():
        if found := re.match(r"([\w/]+)/(?:mod\.rs)?\s", line + " "):
            top = folder = found[1]
        elif found := re.match(r"  (\w+)/", line):
            folder = f"{top}/{found[1]}"
        elif re.match(r"  \S", line):
            folder = top
        blocks.setdefault(folder, []).append(line)
    return {folder: "\n".join(lines) for folder, lines in blocks.items()}


def test_every_module_is_on_the_map() -> None:
    blocks = blocks_of_the_map()
    missing = []
    for folder in ("python/baechi", "rust/core/src"):
        for path in sorted((ROOT / folder).rglob("*.*")):
            inside = path.parent.relative_to(ROOT).as_posix()
            is_top = inside == folder
            if path.suffix not in LONGEST or (path.stem in ("mod", "__init__") and not is_top):
                continue
            name = path.name if is_top else path.stem
            if not re.search(rf"\b{re.escape(name)}\b", blocks.get(inside, "")):
                missing.append(f"{inside}/{path.name}")
    assert missing == []


def test_every_file_that_a_page_names_exists() -> None:
    places = ("", "rust/core/src", "rust/core/tests", "python/baechi", "tests", "tests/support")
    places += ("benches", "docs")
    pages = [ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "README")]
    missing = []
    for page in [*pages, *(ROOT / "docs").glob("*.md")]:
        text = page.read_text()
        names = re.findall(r"(?<![\w<>*-])[\w/]*\w\.(?:rs|py|md|cpp)\b", text)
        names += re.findall(r"`((?!target)\w+/)`", text)
        missing += [
            f"{page.name}: {name}"
            for name in sorted(set(names))
            if not any((ROOT / place / name).exists() for place in places)
        ]
    assert missing == []


def test_every_module_of_torch_that_the_map_names_exists() -> None:
    lines = blocks_of_the_map()["python/baechi/torch"].splitlines()[1:]
    text = re.sub(r"\([^()]*\)", "", " ".join(line[22:] for line in lines))
    stems = {path.stem for path in (PACKAGE / "torch").glob("*.py")}
    assert [name for name in re.split(r"[,;\s]+", text) if name and name not in stems] == []


def test_importing_baechi_loads_no_framework_and_no_numpy() -> None:
    program = "import sys, baechi; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert FRAMEWORKS & set(done.stdout.split()) == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_does_not_print(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    prints = [call.lineno for call in calls if ast.unparse(call.func) == "print"]
    assert prints == [] or module_of(path) in MAY_PRINT


def test_files_stay_short_enough_to_read() -> None:
    needless = [
        name
        for name in MAY_BE_LONGER
        if len((ROOT / name).read_text().splitlines()) <= LONGEST[(ROOT / name).suffix]
    ]
    assert needless == []
    too_long = []
    for folder in ("python", "tests", "benches", "rust"):
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            cap = MAY_BE_LONGER.get(name, (LONGEST.get(path.suffix, 10**9), ""))[0]
            if path.is_file() and "target" not in path.parts and path.suffix in LONGEST:
                length = len(path.read_text().splitlines())
                if length > cap:
                    too_long.append(f"{name} has {length} lines, its cap is {cap}")
    assert too_long == []
