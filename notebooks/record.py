"""Run notebooks on this machine and store what they show.

python notebooks/record.py [--reference] [NOTEBOOK ...]: all notebooks where none is
named. A notebook that fails stays as it was. Needs the `test` extra.
"""

import argparse
import base64
import datetime
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
CELL_TIMEOUT_S = 600
PUBLIC_CELL_METADATA = ("tags", "slideshow")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
KERNEL = dict(display_name="Python 3 (ipykernel)", language="python", name="python3")
LANGUAGE = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
# The README's charts: (notebook, words of the cell that draws it) → file in .github.
README_CHARTS = {
    ("00_measure_first.ipynb", "plots.speed_and_error("): "00-speed-and-error.png",
    ("01_float_formats.ipynb", "plots.bit_layout("): "01-bits.png",
    ("02_inference_mode.ipynb", "plots.speed_and_error("): "02-grad-modes.png",
    ("03_mixed_precision.ipynb", "on real digits"): "03-decisions.png",
    ("04_torch_compile.ipynb", "plots.lines("): "04-total-time.png",
    ("05_tf32_tensor_cores.ipynb", "plots.plane("): "05-formats.png",
    ("06_cudnn.ipynb", "plots.lines("): "06-shapes.png",
    ("07_flash_attention.ipynb", "speed_and_error(exactness"): "07-backends.png",
    ("08_cuda_graphs.ipynb", "plots.timeline("): "08-timeline.png",
    ("09_memory_and_profiling.ipynb", "plots.ladder("): "09-ladder.png",
    ("10_putting_it_together.ipynb", "plots.search(found"): "10-search.png",
    ("11_troubleshooting.ipynb", "plots.stacked("): "11-ledger.png",
}
# Asked in a process of its own: a CUDA context here would take memory away from
# the notebooks and show in what they measure.
ASK_MACHINE = """
import os, torch
device = f"CPU ({os.cpu_count()} cores)"
if torch.backends.mps.is_available():
    device = "Apple GPU (MPS)"
if torch.cuda.is_available():
    device = torch.cuda.get_device_name()
print(device, torch.__version__, sep="\\n")
"""


class NotebookFailed(Exception):
    """Says which cell failed, and how."""


def source_hash(cell):
    """Return 16 hex digits that change when the cell's source does."""
    source = "".join(cell["source"])  # a string, or in raw JSON a list of lines
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def stale_cells(notebook):
    """List the indices of code cells edited since they were recorded, or never were."""
    return [
        index
        for index, cell in enumerate(notebook["cells"])
        if cell["cell_type"] == "code"
        and cell["metadata"].get("source_sha256") != source_hash(cell)
    ]


def main(argv=None):
    """Record the notebooks named on the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK")
    about = "store this machine's runs as the reference, in helpers/reference"
    parser.add_argument("--reference", action="store_true", help=about)
    options = parser.parse_args(argv)
    for path in options.notebooks:
        if path.suffix != ".ipynb" or not path.is_file():
            parser.error(f"{str(path)!r} is no existing .ipynb file")
    machine, environment = ask_machine(), kernel_environment(options.reference)
    status = 0
    for path in options.notebooks or sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
        try:
            minutes, slowest = record(path, machine, environment)
            print(
                f"{path}: {minutes} minutes on {machine['device']}{slowest}", flush=True
            )
        except NotebookFailed as failure:
            print(f"{path}: {failure}", file=sys.stderr, flush=True)
            status = 1
    return status


def ask_machine():
    """Return what a reader must know of this machine: device and torch version."""
    command = [sys.executable, "-c", ASK_MACHINE]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(zip(("device", "torch"), answer.stdout.splitlines(), strict=True))


def kernel_environment(reference):
    """Return the kernels' environment variables: `helpers` found, records directed."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if reference:
        environment["HELPERS_RECORD_TO"] = str(REPOSITORY / "helpers" / "reference")
    return environment


def record(path, machine, environment):
    """Run one notebook and write it back with its outputs.

    Returns:
        Its minutes, and words that name its slowest cells.
    """
    import nbformat  # not at the top: set_repository.py needs the hashes alone

    before = path.read_bytes()
    notebook = nbformat.reads(before.decode(), as_version=4)
    start = time.perf_counter()
    took = execute(notebook, path.resolve().parent, environment)
    minutes = round((time.perf_counter() - start) / 60, 1)
    clean(notebook, machine | {"date": str(datetime.date.today()), "minutes": minutes})
    nbformat.validate(notebook)
    if path.read_bytes() != before:
        raise NotebookFailed("edited while it ran, so not overwritten; record it again")
    unfinished = path.with_suffix(".ipynb.tmp")
    unfinished.write_bytes(nbformat.writes(notebook).rstrip("\n").encode() + b"\n")
    os.replace(unfinished, path)
    if path.resolve().parent == REPOSITORY / "notebooks":
        save_charts(path.name, notebook)
    slowest = sorted(took, key=took.get, reverse=True)[:5]
    return minutes, "".join(f"; cell {index}: {took[index]:.0f} s" for index in slowest)


def save_charts(name, notebook):
    """Write the README's charts of one of our notebooks to .github."""
    for (source, words), file in README_CHARTS.items():
        if source == name:
            picture = base64.b64decode(chart_of(notebook, words))
            (REPOSITORY / ".github" / file).write_bytes(picture)


def chart_of(notebook, words):
    """Return the picture, as Base64, of the code cell whose source has these words."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and words in cell["source"]:
            for output in cell["outputs"]:
                if picture := output.get("data", {}).get("image/png"):
                    return picture
    raise NotebookFailed(f"no picture in a cell with {words!r}")


def execute(notebook, folder, environment):
    """Run all cells in a fresh kernel of this Python; return each one's seconds."""
    from jupyter_client.kernelspec import KernelSpecManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellControlSignal, DeadKernelError

    started, took = [], {}
    client = NotebookClient(notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3")
    client.resources = {"metadata": {"path": str(folder)}}
    client.record_timing = client.store_widget_state = False
    client.coalesce_streams = True
    client.extra_arguments = ["--log-level=ERROR"]
    client.on_cell_execute = lambda cell, cell_index: started.append(
        (cell_index, cell, time.perf_counter())
    )
    client.on_cell_executed = lambda cell_index, **_: took.update(
        {cell_index: time.perf_counter() - started[-1][2]}
    )
    client.create_kernel_manager()
    # No folders to look in: a user's own `python3` kernel may be another Python.
    client.km.kernel_spec_manager = KernelSpecManager(kernel_dirs=[])
    try:
        client.execute(env=environment)
    except (CellControlSignal, DeadKernelError) as error:
        index, cell, _ = started[-1]
        reason = getattr(error, "traceback", None) or f"{type(error).__name__}: {error}"
        raise NotebookFailed(f"cell {index}\n\n{cell.source}\n\n{reason}") from error
    return took


def clean(notebook, recorded):
    """Keep what a reader sees, drop the rest, and stamp the notebook and its cells."""
    notebook["metadata"] = LANGUAGE | {"recorded": recorded}
    for cell in notebook.cells:
        kept = {k: v for k, v in cell.metadata.items() if k in PUBLIC_CELL_METADATA}
        cell["metadata"] = kept
        if cell.cell_type == "code":
            cell.metadata["source_sha256"] = source_hash(cell)
            for output in cell.outputs:
                # It names a widget of a kernel that is gone; the text beside it stays.
                output.get("data", {}).pop(WIDGET_VIEW, None)


if __name__ == "__main__":
    sys.exit(main())
