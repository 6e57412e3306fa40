"""Say for each cell where it stands on slides: nbconvert --to slides shows them.

python notebooks/set_slides.py [--check]: --check changes nothing, and fails where a
cell has another slide type than the rules give it.

The deck leaves out the code (`--no-input`), which a teacher runs live, and shows what
there is to read, to guess and to see:

* "slide": the title and each section;
* "subslide", one below the other: a question ("Predict"), then the answer, which must
  not stand on the question's slide: a cell with an output; entries and exercises;
* "-", on the slide of the cell before: what reads the chart;
* "skip": set-up, sizes, cells that print nothing, verdicts one by one, and fine print.

A cell has one place only, though many read a chart and then open a section or ask the
next question. nbconvert's `--SlidesExporter.preprocessors=set_slides.split` takes these
apart, in the deck alone: each chart keeps its words, each section starts a slide, and
short code whose result is exact is shown. It takes the place of `--no-input`.
"""

import argparse
import copy
import re
import sys

from record import REPOSITORY

SKIPPED_SECTIONS = ("## Sizes", "## The guides' claims")
WHAT = "**What you'll do"
BELOW = (WHAT, "###")
ANSWER = "<details>"
MOST_LINES = 18  # of code, on a slide


def main(argv=None, folder=REPOSITORY / "notebooks"):
    """Set the slide types of all notebooks, or check them; return the exit status."""
    import nbformat

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where they differ")
    options = parser.parse_args(argv)
    status = 0
    for path in sorted(folder.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        types = slide_types(notebook.cells)
        for cell, slide_type in zip(notebook.cells, types, strict=True):
            slideshow = {"slide_type": slide_type}
            if cell.metadata.get("slideshow") == slideshow:
                continue
            cell.metadata.slideshow = slideshow
            if options.check:
                print(f"{path.name}: cell {cell.id} should be {slide_type!r}")
                status = 1
        if not options.check:
            text = nbformat.writes(notebook).rstrip("\n") + "\n"
            path.write_bytes(text.encode())
    return status


def slide_types(cells):
    """Return the slide type of each cell."""
    types, skipping = [], True  # what stands before the first section is set-up
    for cell in cells:
        text = cell.source
        if cell.cell_type == "code":
            exercise = "check(\n" in text or "check(my" in text
            shown = cell.outputs and not skipping and not exercise
            types.append("subslide" if shown else "skip")
            continue
        before = skipping or text.startswith("## ")
        for heading in re.findall("^## .*", text, re.M):
            skipping = heading.startswith(SKIPPED_SECTIONS)
        asks = "**Predict" in text and not text.startswith("#")
        goes_on = text.startswith(ANSWER) and "\n#" in text  # to the next exercise
        if text.startswith(BELOW) or asks or goes_on:
            kind = "subslide"
        else:
            kind = "slide" if text.startswith(("# ", "## ")) else "-"
        hidden = before and skipping and not text.startswith(("# ", WHAT))
        types.append("skip" if hidden or text.startswith("**Fine print") else kind)
    return types


def split(notebook, resources):
    """Give nbconvert a cell for each heading and question, and hide most code."""
    cells = []
    for cell in notebook.cells:
        parts = pieces(cell.source) if cell.cell_type == "markdown" else [cell.source]
        for part in parts:
            cells.append(copy.deepcopy(cell))
            cells[-1].source, cells[-1].id = part, f"part-{len(cells)}"
    for cell, kind in zip(cells, slide_types(cells), strict=True):
        cell.metadata.slideshow = {"slide_type": kind}
        if cell.cell_type == "code":
            cell.metadata.transient = {"remove_source": not is_lesson(cell)}
    notebook.cells = cells
    return notebook, resources


def is_lesson(cell):
    """Tell code worth showing: short, beside no chart, and it does not measure."""
    charts = any("image/png" in output.get("data", {}) for output in cell.outputs)
    measures = "nbval-ignore-output" in cell.metadata.get("tags", [])
    return not (charts or measures) and len(cell.source.splitlines()) <= MOST_LINES


def pieces(text):
    """Cut a text before its headings and before each question that follows others."""
    found = []
    for block in text.strip().split("\n\n"):
        opens = block.startswith("#") or "**Predict" in block
        lines = found[-1].split("\n") if found else []
        titles_only = all(line.startswith("#") for line in lines if line)
        if not found or (opens and not titles_only):
            found.append(block)
        else:
            found[-1] += "\n\n" + block
    return found


if __name__ == "__main__":
    sys.exit(main())
