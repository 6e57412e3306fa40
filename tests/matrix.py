"""Run all tests and notebooks on several releases of PyTorch; print a Markdown table.

python tests/matrix.py 2.6.0 2.9.1 ...: each in a virtual environment of its own, built
and deleted again (several GB each); --keep FOLDER keeps them there, and uses those that
it finds. Without a release: the newest one. Not part of the ordinary tests.
"""

import argparse
import contextlib
import datetime
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
COLUMNS = ("torch", "Python", "passed", "skipped", "failed", "minutes", "date")
ASK = "import platform, torch; print(torch.__version__, platform.python_version())"


def main():
    """Print the table's head, then a row as soon as a release is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="*", default=[""], metavar="RELEASE")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    print("|", " | ".join(COLUMNS), "|\n" + "|---" * len(COLUMNS) + "|", flush=True)
    ends = []
    for release in options.releases:
        temporary = tempfile.TemporaryDirectory(prefix="torch-")
        folder = contextlib.nullcontext(options.keep) if options.keep else temporary
        with folder as home:
            try:
                cells, end = check(release, Path(home) / (release or "newest"))
            except subprocess.CalledProcessError as error:  # the others still run
                print(error, file=sys.stderr, flush=True)
                cells, end = [release or "newest", "not installed"], 1
        print("|", " | ".join(map(str, cells)), "|", flush=True)
        ends.append(end)
    return max(ends)


def check(release, folder):
    """Build an environment, run everything in it; return its row and exit status."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    torch = f"torch=={release}" if release else "torch"
    install = [python, "-m", "pip", "install", "--quiet", torch, "-e", ".[lab,test]"]
    subprocess.run([*install, "hatchling"], cwd=REPOSITORY, check=True)
    asked = subprocess.run([python, "-c", ASK], capture_output=True, text=True)
    start = time.perf_counter()
    # Other environments' folders on the PATH would bring their own jupyter and ruff.
    environment = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.defpath}"}
    command = [python, "-m", "pytest", "-q", "--nbval", "notebooks", "tests", "-rfE"]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True
    )
    minutes = f"{(time.perf_counter() - start) / 60:.0f}"
    if done.returncode:
        print(done.stdout[-20_000:], done.stderr[-2_000:], file=sys.stderr, flush=True)
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    count = {word: number for number, word in re.findall(r"(\d+) (\w+)", last)}
    counts = [count.get(word, "0") for word in ("passed", "skipped", "failed")]
    row = [*asked.stdout.split(), *counts, minutes, datetime.date.today()]
    return row, done.returncode


if __name__ == "__main__":
    sys.exit(main())
