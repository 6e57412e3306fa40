"""The tools around the notebooks: recording, verifying, pointing at a fork."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
import warnings
from argparse import Namespace
from pathlib import Path

import nbformat
import pytest
import record
import set_repository

REPOSITORY = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def write_notebook(path, *cells):
    """Write a notebook of (source, tags) code cells, never run; return its path."""
    notebook = nbformat.v4.new_notebook()
    for number, (source, *tags) in enumerate(cells):
        cell = nbformat.v4.new_code_cell(source, id=f"cell-{number}")
        cell.metadata.tags = tags
        notebook.cells.append(cell)
    nbformat.write(notebook, path)
    return path


# ---------------------------------------------------------------- record.py


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Record a small notebook as the reference machine's; return its path."""
    path = write_notebook(
        tmp_path_factory.mktemp("recorded") / "00_small.ipynb",
        ("import sys\n\nprint(sys.executable)",),
        ("import ipywidgets\n\nipywidgets.IntSlider(value=7)", "nbval-ignore-output"),
        ('import os\n\nprint(os.environ["HELPERS_RECORD_TO"])\nos.getcwd()',),
        ("1 / 0", "raises-exception"),
    )
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata = {
        "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {}}},
        "kernelspec": {"name": "elsewhere", "display_name": "Elsewhere"},
    }
    notebook.cells[0].metadata |= {"execution": {"iopub.status.busy": "1999"}, "x": 1}
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell("# π", id="title"))
    nbformat.write(notebook, path)
    assert record.main(["--reference", str(path)]) == 0
    return path


def test_recording_runs_this_python_in_the_notebooks_folder(recorded):
    notebook = nbformat.read(recorded, as_version=4)
    _, python, _, folder, error = notebook.cells
    assert python.outputs[0].text.strip() == sys.executable
    reference = str(REPOSITORY / "helpers" / "reference")
    assert folder.outputs[0].text.strip() == reference
    assert folder.outputs[1].data["text/plain"] == repr(str(recorded.parent))
    assert error.outputs[0].ename == "ZeroDivisionError"
    assert [cell.get("execution_count") for cell in notebook.cells] == [
        None,
        1,
        2,
        3,
        4,
    ]


def test_recording_strips_what_is_private(recorded):
    notebook = nbformat.read(recorded, as_version=4)
    assert set(notebook.metadata) == {"kernelspec", "language_info", "recorded"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.cells[0].metadata) == set()
    for cell in notebook.cells[1:]:
        assert set(cell.metadata) == {"tags", "source_sha256"}
    (slider,) = notebook.cells[2].outputs
    assert list(slider.data) == ["text/plain"]
    assert slider.data["text/plain"] == "IntSlider(value=7)"


def test_recording_stamps_machine_and_sources(recorded):
    import torch

    notebook = nbformat.read(recorded, as_version=4)
    stamp = notebook.metadata.recorded
    assert set(stamp) == {"device", "torch", "date", "minutes"}
    assert stamp.torch == torch.__version__
    assert record.stale_cells(notebook) == []
    notebook.cells[3].source += "  # edited"
    del notebook.cells[4].metadata["source_sha256"]
    assert record.stale_cells(notebook) == [3, 4]


def test_recorded_file_is_plain_and_formatted(recorded):
    text = recorded.read_text(encoding="utf-8")
    assert "# π" in text and text.endswith("}\n") and text.startswith('{\n "cells"')
    assert not list(recorded.parent.glob("*.tmp"))
    command = [sys.executable, "-m", "ruff", "format", "--diff", str(recorded)]
    assert subprocess.run(command, cwd=REPOSITORY).returncode == 0


@pytest.mark.parametrize(
    "source, reason",
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import os\n\nos._exit(1)", "DeadKernelError"),
        ("open('00_bad.ipynb', 'a').write(' ')", "edited while it ran"),
    ],
)
def test_a_notebook_that_fails_stays_as_it_was(tmp_path, capsys, source, reason):
    path = write_notebook(tmp_path / "00_bad.ipynb", ("x = 1",), (source,))
    before = path.read_text()
    assert record.main([str(path)]) == 1
    assert path.read_text().rstrip(" ") == before
    message = capsys.readouterr().err
    assert reason in message
    assert source in message or "edited" in reason


def test_recording_names_a_missing_notebook(capsys):
    with pytest.raises(SystemExit):
        record.main(["nowhere.ipynb"])
    assert "'nowhere.ipynb'" in capsys.readouterr().err


# ---------------------------------------------------------------- conftest.py


def run_pytest(folder, *arguments):
    """Run pytest in a folder, in a process of its own; return what it said."""
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "--color=no", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.fixture
def clone(tmp_path):
    """Make a clone with nothing in it but the conftest and a package `helpers`."""
    notebooks = tmp_path / "clone" / "notebooks"
    notebooks.mkdir(parents=True)
    shutil.copy(REPOSITORY / "notebooks" / "conftest.py", notebooks)
    package = tmp_path / "clone" / "helpers"
    package.mkdir()
    (package / "__init__.py").write_text("PLACE = 'this clone'\n")
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "clone"


def store(path, outputs_of_cells, kernel="python3"):
    """Store one output for each cell, as if the notebook had been run."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.kernelspec = {"name": kernel, "display_name": kernel}
    for cell, output in zip(notebook.cells, outputs_of_cells, strict=True):
        cell.execution_count = 1
        cell.outputs = [output]
    nbformat.write(notebook, path)


def result(value):
    """Return the output of a cell that ends in this value."""
    data = {"text/plain": repr(value)}
    return nbformat.v4.new_output("execute_result", data, execution_count=1)


def test_nbval_needs_no_option_from_any_directory(clone):
    notebooks = clone / "notebooks"
    warn = "import sys\n\nprint('12:00:01', file=sys.stderr)"
    good = write_notebook(
        notebooks / "00_good.ipynb",
        ("import helpers\n\nhelpers.PLACE",),
        ("import time\n\ntime.time()", "nbval-ignore-output"),
        (warn,),
    )
    stderr = nbformat.v4.new_output("stream", name="stderr", text="12:00:00\n")
    store(good, [result("this clone"), result(1.0), stderr], kernel="elsewhere")
    bad = write_notebook(notebooks / "01_bad.ipynb", ("1 + 1",))
    store(bad, [result(3)])
    write_notebook(notebooks / "02_dies.ipynb", ("import os\n\nos._exit(1)",), ("1",))

    limit = "--nbval-cell-timeout=5"
    run = run_pytest(clone.parent / "elsewhere", "--nbval", notebooks, limit)

    outcomes = re.findall(r"^(\w+) \S*/(\w+)\.ipynb::Cell (\d)", run.stdout, re.M)
    assert [outcome for outcome in outcomes if outcome[0] == "PASSED"] == [
        ("PASSED", "00_good", "0"),
        ("PASSED", "00_good", "1"),
        ("PASSED", "00_good", "2"),
    ], run.stdout
    assert ("FAILED", "01_bad", "0") in outcomes
    assert ("FAILED", "02_dies", "0") in outcomes
    assert run.returncode == 1


@pytest.mark.parametrize("plugins", [(), ("-p", "no:nbval")])
def test_conftest_bears_pytest_without_nbval(clone, plugins):
    (clone / "test_one.py").write_text(
        "import helpers\n\n\ndef test_one():\n    pass\n"
    )
    write_notebook(clone / "notebooks" / "00_bad.ipynb", ("1 / 0",))
    run = run_pytest(clone, *plugins, "notebooks", "test_one.py")
    assert "1 passed" in run.stdout, run.stdout + run.stderr


@pytest.mark.parametrize("given, chosen", [(2000.0, 120), (300.0, 300.0)])
def test_cell_timeout_is_the_courses_unless_given(given, chosen):
    path = REPOSITORY / "notebooks" / "conftest.py"
    spec = importlib.util.spec_from_file_location("notebooks_conftest", path)
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    option = Namespace(
        nbval_cell_timeout=given, nbval_kernel_name=None, nbval_current_env=False
    )
    conftest.choose_defaults(option)
    assert option.nbval_cell_timeout == chosen
    assert option.nbval_current_env


# ---------------------------------------------------------------- set_repository.py

BADGE = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    "(https://colab.research.google.com/github/{}/blob/{}/notebooks/{}.ipynb)"
)
ARCHIVE = "https://github.com/{}/archive/refs/heads/{}.zip"
README = """\
[![tests](https://github.com/{0}/actions/workflows/ci.yml/badge.svg)]
(https://github.com/{0}/actions/workflows/ci.yml)
[Binder](https://mybinder.org/v2/gh/{0}/{2}?urlpath=lab/tree/notebooks)

    git clone https://github.com/{0} course && cd course
    git clone --depth=1 https://github.com/{0}.git

Then `git clone https://github.com/{0}`. In one go: git clone https://github.com/{0}.
"""
FOREIGN = """\
https://github.com/pytorch/pytorch/issues/1 and https://github.com/arogozhnikov/einops
https://colab.research.google.com/github/pytorch/tutorials/blob/main/beginner/x.ipynb
"""


def make_project(root, repository, branch="main"):
    """Write a README and two notebooks that link to one repository."""
    (root / "notebooks").mkdir(exist_ok=True)
    readme = README.format(repository, "", branch.replace("/", "%2F")) + FOREIGN
    (root / "README.md").write_text(readme)
    for name in ("00_one", "01_two"):
        url = ARCHIVE.format(repository, branch)
        setup = f"import os\n\nif os.environ.get('COLAB'):\n    %pip install {url}"
        cells = [
            nbformat.v4.new_markdown_cell(
                "# π\n\n" + BADGE.format(repository, branch, name) + "\n\n" + FOREIGN
            ),
            nbformat.v4.new_code_cell(setup),
            nbformat.v4.new_code_cell(f"# {ARCHIVE.format('a/b', 'main')}"),
        ]
        for number, cell in enumerate(cells):
            cell.id = f"cell-{number}"
        # The output keeps what was printed, whatever the source says later.
        text = ARCHIVE.format("OWNER/REPO", "main")
        cells[1].outputs = [nbformat.v4.new_output("stream", text=text)]
        cells[1].metadata.source_sha256 = record.source_hash(cells[1])
        cells[2].metadata.source_sha256 = "stale"
        notebook = nbformat.v4.new_notebook(cells=cells)
        nbformat.write(notebook, root / "notebooks" / f"{name}.ipynb")


def contents(root):
    """Return the text of each file of a project."""
    return {p.name: p.read_text() for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize("branch", ["main", "feature/x-1"])
def test_every_link_moves_and_nothing_else(tmp_path, branch):
    expected, project = tmp_path / "expected", tmp_path / "project"
    expected.mkdir()
    project.mkdir()
    make_project(expected, "some-one/fast.course", branch)
    make_project(project, "OWNER/REPO")
    for repository in ("an-earlier/fork", "some-one/fast.course"):
        arguments = [repository, "--branch", branch]
        assert set_repository.main(arguments, root=project) == 0
    # The same bytes as a project written for that repository: hashes, outputs, all.
    assert contents(project) == contents(expected)
    notebook = json.loads(contents(project)["00_one.ipynb"])
    assert record.stale_cells(notebook) == [2]


def test_without_a_branch_links_keep_theirs(tmp_path):
    make_project(tmp_path, "OWNER/REPO", "dev")
    assert set_repository.main(["some-one/course"], root=tmp_path) == 0
    moved = contents(tmp_path)
    make_project(tmp_path, "some-one/course", "dev")
    assert moved == contents(tmp_path)


def test_a_stale_setup_cell_stays_stale(tmp_path):
    make_project(tmp_path, "OWNER/REPO")
    path = tmp_path / "notebooks" / "00_one.ipynb"
    path.write_text(path.read_text().replace("import os", "import os, sys"))
    set_repository.main(["some-one/course"], root=tmp_path)
    assert record.stale_cells(json.loads(path.read_text())) == [1, 2]


def test_check_lists_the_files_that_differ(tmp_path, capsys):
    make_project(tmp_path, "OWNER/REPO")
    before = contents(tmp_path)
    assert set_repository.main(["--check"], root=tmp_path) == 0
    assert set_repository.main(["OWNER/REPO", "--check"], root=tmp_path) == 0
    assert set_repository.main(["a/b", "--check"], root=tmp_path) == 1
    assert contents(tmp_path) == before
    path = tmp_path / "notebooks" / "01_two.ipynb"
    path.write_text(before["01_two.ipynb"].replace("OWNER/REPO/blob", "a/b/blob"))
    capsys.readouterr()
    assert set_repository.main(["--check"], root=tmp_path) == 1
    listed = capsys.readouterr().out
    assert "notebooks/01_two.ipynb" in listed and "00_one" not in listed


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/some-one/fast.course",
        "https://github.com/some-one/fast.course.git",
        "https://user:secret@github.com/some-one/fast.course.git",
        "git@github.com:some-one/fast.course.git",
        "ssh://git@github.com/some-one/fast.course.git",
    ],
)
def test_the_remote_is_the_default(tmp_path, url):
    make_project(tmp_path, "OWNER/REPO")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", url], check=True)
    assert set_repository.main([], root=tmp_path) == 0
    readme = (tmp_path / "README.md").read_text()
    assert "git clone https://github.com/some-one/fast.course " in readme


def test_a_remote_elsewhere_is_an_error_without_its_token(tmp_path):
    make_project(tmp_path, "OWNER/REPO")
    url = "https://user:secret@example.org/a/b"
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", url], check=True)
    with pytest.raises(SystemExit, match="'https://example.org/a/b'.*OWNER/REPO"):
        set_repository.main([], root=tmp_path)


@pytest.mark.parametrize(
    "arguments, quoted",
    [
        (["foo"], "'foo'"),
        (["a/b/c"], "'a/b/c'"),
        (["a b/c"], "'a b/c'"),
        (["a/b.git"], "'a/b.git'"),
        ([""], "''"),
        (["https://github.com/a/b"], "'https://github.com/a/b'"),
        (["a/b", "--branch", "my branch"], "'my branch'"),
    ],
)
def test_a_bad_argument_is_quoted(tmp_path, capsys, arguments, quoted):
    make_project(tmp_path, "OWNER/REPO")
    before = contents(tmp_path)
    with pytest.raises(SystemExit):
        set_repository.main(arguments, root=tmp_path)
    message = capsys.readouterr().err
    assert f"{quoted} is not" in message
    assert "OWNER/REPO" in message.splitlines()[-1] or "branch" in quoted
    assert contents(tmp_path) == before


# ---------------------------------------------------------------- configuration


def test_environment_yml_leaves_the_packages_to_pyproject():
    text = (REPOSITORY / "environment.yml").read_text()
    items = re.findall(r"^ *- (.+)$", text, re.M)
    python = "python" + PYPROJECT["project"]["requires-python"]
    assert items == ["conda-forge", python, "pip", "pip:", "-e .[lab,test]"]
    assert {"lab", "test"} <= set(PYPROJECT["project"]["optional-dependencies"])


def test_continuous_integration_runs_what_everybody_can_run():
    workflow = (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r"run: (.+)", workflow) == ["bash .ci/run"]
    script = (REPOSITORY / ".ci" / "run").read_text()
    assert "pytest --nbval notebooks tests" in script


@pytest.mark.parametrize("category", [DeprecationWarning, FutureWarning])
@pytest.mark.parametrize("module", ["helpers", "helpers.plots", "test_plots", "record"])
def test_deprecation_warnings_of_our_code_are_errors(category, module):
    with pytest.raises(category):
        call_deprecated(category, module)


@pytest.mark.parametrize("module", ["torch.helpers", "helpersome", "numpy"])
def test_deprecation_warnings_of_other_code_are_not(module):
    with pytest.warns(DeprecationWarning):
        call_deprecated(DeprecationWarning, module)


def call_deprecated(category, module):
    """Call a deprecated function from a module of this name."""

    def deprecated():
        warnings.warn("use another", category, stacklevel=2)

    exec("deprecated()", {"__name__": module, "deprecated": deprecated})
