"""Run all notebooks with the front-end versions of Colab, and no clone beside them.

python tests/colab.py [NOTEBOOK ...]: the new environment takes torch and the rest from
the one that runs this. The set-up cell installs the wheel that is built from this tree,
in place of the one on the web. Not part of the ordinary tests: it takes minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
# What Colab has had for long; torch, NumPy and pandas there are recent.
COLAB = ("ipywidgets==7.7.1", "ipython==7.34.0", "ipykernel==6.17.1")
COLAB += ("matplotlib==3.10.0", "traitlets==5.7.1")
WIDGET = "application/vnd.jupyter.widget-view+json"
RUN = """
import json, sys, nbformat, record
source, target = sys.argv[1:]
notebook = nbformat.read(source, as_version=4)
record.execute(notebook, ".", record.os.environ)
nbformat.write(notebook, target)
"""


def main():
    """Print a line for each notebook, and what the set-up cell changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK")
    paths = parser.parse_args().notebooks
    paths = paths or sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
    with tempfile.TemporaryDirectory(prefix="colab-") as home:
        return check([path.resolve() for path in paths], Path(home))


def check(paths, home):
    """Build the environment, run the notebooks in it; return the number of faults."""
    python, wheels, content = home / "bin" / "python", home / "wheels", home / "content"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pip = [python, "-m", "pip", "--quiet"]
    subprocess.run([*pip, "install", *COLAB], check=True)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "base.pth").write_text(sysconfig.get_path("purelib"))  # after its own
    build = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "-w", wheels]
    subprocess.run([*build, REPOSITORY], check=True)
    (wheel,) = wheels.glob("*.whl")
    content.mkdir()
    tools = content.parent / "tools"
    tools.mkdir()
    (tools / "record.py").write_text((REPOSITORY / "notebooks/record.py").read_text())
    environment = os.environ | {"COLAB_RELEASE_TAG": "release", "PYTHONPATH": ""}
    driver = environment | {"PYTHONPATH": str(tools)}
    before, faults = installed(python), 0
    for path in paths:
        text = path.read_text()
        url = "https://github.com/OWNER/REPO/archive/refs/heads/main.zip"
        assert text.count(url) == 1, f"{path.name}: another set-up cell"
        (content / path.name).write_text(text.replace(url, str(wheel)))
        start, target = time.perf_counter(), home / path.name
        command = [python, "-c", RUN, content / path.name, target]
        done = subprocess.run(
            command, cwd=content, env=driver, capture_output=True, text=True
        )
        took = f"{time.perf_counter() - start:.0f} s"
        widgets = target.read_text().count(WIDGET) if target.exists() else 0
        print(f"{path.name}: {took}, {widgets} widgets, exit {done.returncode}")
        if done.returncode:
            print(done.stderr[-3000:], flush=True)
        faults += done.returncode != 0
    changed = installed(python) ^ before
    print("changed by the set-up cell:", *sorted(f"{n} {v}" for n, v in changed))
    return faults + ({name for name, _ in changed} != {"fast-pytorch-inference"})


def installed(python):
    """Return the names and versions of what an environment sees."""
    command = [python, "-m", "pip", "list", "--format=json"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    return {(each["name"], each["version"]) for each in json.loads(listed.stdout)}


if __name__ == "__main__":
    sys.exit(main())
