"""The traps of one import package spread over several folders, and the house's own rules."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ["client", "codecs", "methods", "registry", "server", "workers"]
PYTHON_FILES = sorted(
    path
    for room in [*ROOMS, "migrations", "tests", "benchmarks"]
    for path in (ROOT / room).rglob("*.py")
    if "node_modules" not in path.parts
)


def test_no_init_file_hides_the_other_folders_share_of_the_namespace() -> None:
    assert [str(p.relative_to(ROOT)) for p in ROOT.glob("*/deltahub/__init__.py")] == []


def test_no_init_file_turns_a_folder_into_a_top_level_package() -> None:
    assert [room for room in ROOMS if (ROOT / room / "__init__.py").exists()] == []


def test_every_folder_has_a_wheel_entry() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = config["tool"]["scikit-build"]["wheel"]["packages"]
    assert packages == {
        "deltahub/migrations": "migrations",
        **{f"deltahub/{room}": f"{room}/deltahub/{room}" for room in ROOMS},
    }


def test_no_module_imports_a_folder_as_if_the_root_were_a_package() -> None:
    for path in PYTHON_FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for name in names:
                first = name.split(".")[0]
                assert first not in {*ROOMS, "migrations"} - {"codecs"}, f"{path}: {name}"
                assert not name.startswith("codecs."), f"{path}: {name}"


def test_the_standard_library_codecs_module_is_not_shadowed() -> None:
    code = "import codecs, sys; sys.exit(not hasattr(codecs, 'lookup'))"
    command = [sys.executable, "-X", "frozen_modules=off", "-c", code]
    subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=True)


def test_torch_is_pinned_to_one_build() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if re.match(r"torch\b", line)] == ["torch==2.13.0"]


def test_the_base_install_needs_neither_torch_nor_the_service() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {re.split(r"[<>=\[]", line)[0] for line in config["project"]["dependencies"]}
    assert needed == {"blake3", "click", "numpy", "pydantic", "rich", "xxhash", "zstandard"}


def test_every_suite_that_make_test_leaves_out_has_a_target_of_its_own() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    suites = [each for each in options["norecursedirs"] if each.startswith("tests/")]
    words = (ROOT / "Makefile").read_text().split()
    assert suites
    assert [each for each in suites if each not in words] == []


def test_a_file_holds_one_idea() -> None:
    # A migration is one idea however many tables it makes.
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in PYTHON_FILES
        if "versions" not in path.parts
    }
    assert {path: n for path, n in lengths.items() if n > 400} == {}


def test_the_sdk_loads_neither_torch_nor_the_service() -> None:
    code = (
        "import sys, deltahub.client\n"
        "bad = {'torch', 'fastapi', 'sqlalchemy', 'dbos', 'deltahub.registry'} & set(sys.modules)\n"
        "sys.exit(f'loaded {sorted(bad)}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# In one folder, without its __init__.py.
MOST_FILES = {
    "client": 12,
    "codecs": 12,
    "methods": 12,
    "registry": 12,
    "server": 12,
    "workers": 12,
    "tests": 20,
}
MOST_FILES |= {"benchmarks": 12, "migrations": 12}
SOURCES = {".py", ".hpp", ".cpp", ".cu"}


def test_a_folder_holds_few_files() -> None:
    for room, most in MOST_FILES.items():
        folders: dict[Path, int] = {}
        for path in (ROOT / room).rglob("*"):
            # The migrations of a hub are one subject, however many there are.
            is_counted = path.name != "__init__.py" and path.parent.name != "versions"
            if path.suffix in SOURCES and is_counted:
                folders[path.parent] = folders.get(path.parent, 0) + 1
        crowded = {str(f.relative_to(ROOT)): n for f, n in folders.items() if n > most}
        assert crowded == {}, "a folder of so many files has more than one subject"


def test_every_wing_says_in_one_line_what_it_knows() -> None:
    for room in ROOMS:
        for init in (ROOT / room / "deltahub" / room).rglob("__init__.py"):
            lines = ast.get_docstring(ast.parse(init.read_text()))
            assert lines, init
            assert "\n" not in lines, init


# What a wing of the C++ core may include: itself and the wings to its left.
NATIVE_WINGS = [
    {"base"},
    {"kernels"},
    {"coder"},
    {"fm_delta", "neuzip"},
    {"planner", "low_rank"},
    {"frames"},
    {"bindings", "fuzz"},
]


def test_wings_of_the_native_core_include_downwards() -> None:
    level = {wing: i for i, wings in enumerate(NATIVE_WINGS) for wing in wings}
    native = ROOT / "codecs" / "native"
    for path in native.rglob("*.[ch]pp"):
        wing = path.relative_to(native).parts[0]
        for included in re.findall(r'#include "([^"]+)"', path.read_text()):
            other = included.split("/")[0]
            is_below = level[other] < level[wing] or other == wing
            assert is_below, f"{path.relative_to(native)} includes {included}"
