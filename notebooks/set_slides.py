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
"""

import argparse
import re
import sys

from record import REPOSITORY

SKIPPED_SECTIONS = ("## Sizes", "## The guides' claims")
WHAT = "**What you'll do"
BELOW = (WHAT, "###", "<details>")


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
        if text.startswith(BELOW) or ("**Predict" in text and not text.startswith("#")):
            kind = "subslide"
        else:
            kind = "slide" if text.startswith(("# ", "## ")) else "-"
        hidden = before and skipping and not text.startswith(("# ", WHAT))
        types.append("skip" if hidden or text.startswith("**Fine print") else kind)
    return types


if __name__ == "__main__":
    sys.exit(main())
