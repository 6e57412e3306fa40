"""notebooks/set_slides.py: every cell has its place on slides."""

import nbformat
import set_slides
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output


def test_the_notebooks_slides_are_as_the_rules_say(capsys):
    assert set_slides.main(["--check"]) == 0, capsys.readouterr().out


def test_a_change_is_noticed_and_set_right(tmp_path, capsys):
    path = tmp_path / "00_one.ipynb"
    cell = new_markdown_cell("# Title", metadata={"slideshow": {"slide_type": "-"}})
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    assert set_slides.main(["--check"], tmp_path) == 1
    assert "00_one.ipynb" in capsys.readouterr().out
    assert nbformat.read(path, 4).cells[0].metadata.slideshow.slide_type == "-"
    assert set_slides.main([], tmp_path) == 0
    assert nbformat.read(path, 4).cells[0].metadata.slideshow.slide_type == "slide"
    assert set_slides.main(["--check"], tmp_path) == 0


def test_answers_stand_below_their_questions():
    shows = [new_output("stream", text="3")]
    cells = {
        "# Title": "slide",
        "**What you'll do.** Much.": "subslide",
        "import torch": "skip",
        "## Sizes": "skip",
        "It fits.": "skip",
        "## A question": "slide",
        "1 + 2": "subslide",
        "The chart says 3.": "-",
        "**Predict** the next.": "subslide",
        "a = 4": "skip",
        "## The guides' claims": "skip",
        "print(5)": "skip",
        "## Your turn": "slide",
        "check(\n    None)": "skip",
        "<details>6</details>\n\n### 2. Next": "subslide",
        "<details>7</details>": "-",
        "**Fine print.** None.": "skip",
    }
    printing = ("1 + 2", "print(5)", "check(\n    None)")
    code = dict.fromkeys(("import torch", "a = 4"), []) | dict.fromkeys(printing, shows)
    made = [
        new_code_cell(text, outputs=code[text])
        if text in code
        else new_markdown_cell(text)
        for text in cells
    ]
    assert set_slides.slide_types(made) == list(cells.values())


def test_a_deck_keeps_charts_with_their_words_and_starts_sections_anew():
    code = {"print(5)": [], "print(6)": ["nbval-ignore-output"]}
    prose = "It is 5.\n\n## Next\n\nAn idea.\n\n**Predict** it.\n\n(A hint.)"
    ending = "It is 6.\n\n## Your turn\n\n### 1. First\n\nHow?"
    sources = ["# Title", "## Five", "print(5)", prose, "print(6)", ending]
    shows = [new_output("stream", text="5")]
    cells = [
        new_code_cell(text, outputs=shows, metadata={"tags": code[text]})
        if text in code
        else new_markdown_cell(text)
        for text in sources
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    deck, _ = set_slides.split(notebook, {})
    nbformat.validate(deck)
    places = [(cell.source, cell.metadata.slideshow.slide_type) for cell in deck.cells]
    assert places[2:] == [
        ("print(5)", "subslide"),
        ("It is 5.", "-"),
        ("## Next\n\nAn idea.", "slide"),
        ("**Predict** it.\n\n(A hint.)", "subslide"),
        ("print(6)", "subslide"),
        ("It is 6.", "-"),
        ("## Your turn\n\n### 1. First\n\nHow?", "slide"),
    ]
    lesson, measurement = (cell for cell in deck.cells if cell.cell_type == "code")
    assert not lesson.metadata.transient.remove_source
    assert measurement.metadata.transient.remove_source
    assert cells[3].source == prose  # a notebook's own cells stay as they were
