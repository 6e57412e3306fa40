"""The package as a whole: what it imports, what it requires, what its wheel holds."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "helpers"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def test_import_helpers_loads_nothing_heavy():
    heavy = {"torch", "matplotlib", "pandas", "numpy", "ipywidgets", "sklearn"}
    code = f"import sys, helpers; print(*({heavy} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert (answer.returncode, answer.stdout.split()) == (0, [])


def imported(path):
    """Return all modules that a file of the package imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            relative = ["helpers"] if node.level else []
            base = ".".join(relative + ([node.module] if node.module else []))
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return names


def importers(module):
    """Return the names of the package's files that import a module or a part of it."""
    return {
        path.stem
        for path in PACKAGE.rglob("*.py")
        if any(f"{name}.".startswith(f"{module}.") for name in imported(path))
    }


@pytest.mark.parametrize(
    "module, only",
    [
        ("matplotlib", {"plots"}),
        ("ipywidgets", {"explorers"}),
        ("helpers.plots", {"explorers"}),
    ],
)
def test_one_module_alone_leans_on(module, only):
    assert importers(module) == only


def test_leaves_lean_on_leaves_alone():
    leaves = {"_arguments", "formats", "machine", "switches", "models"}
    for path in PACKAGE.glob("*.py"):
        if path.stem in leaves:
            own = {n.split(".")[1] for n in imported(path) if n.startswith("helpers.")}
            assert own <= leaves, path.name


def test_requirements_are_floors():
    extras = PROJECT["optional-dependencies"]
    everything = sum(extras.values(), PROJECT["dependencies"])
    pinned = [line for line in everything if re.search(r"<|==|~=|!=", line)]
    assert pinned == ["nbval==0.11.*"]


def test_requirements_are_the_agreed_ones():
    assert PROJECT["name"] == "fast-pytorch-inference"
    assert PROJECT["requires-python"] == ">=3.11"
    assert PROJECT["dependencies"] == [
        "torch>=2.6",
        "torchvision",
        "numpy",
        "pandas",
        "matplotlib>=3.8",
        "ipywidgets>=7.7",
        "scikit-learn",
        "tqdm",
    ]


def test_version_is_said_once():
    import helpers

    assert helpers.__version__ == PROJECT["version"]


def test_wheel_holds_code_and_data(tmp_path):
    for tool in ("hatchling", "pip"):
        if not importlib.util.find_spec(tool):
            pytest.skip(f"{tool} is not installed, so no wheel without a download")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(tmp_path), str(REPOSITORY)]
    subprocess.run(command, check=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("fast_pytorch_inference-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if "/" in name}
    held = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.toml"), *PACKAGE.rglob("*.json")]
    assert held == {path.relative_to(REPOSITORY).as_posix() for path in files}
    assert "helpers/claims.toml" in held
    assert any(re.match(r"helpers/reference/.+\.json", name) for name in held)
