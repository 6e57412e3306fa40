"""The folded answers of every notebook are pasted in, and must be right."""

import ast
import re
from pathlib import Path

import matplotlib
import nbformat
import pytest

matplotlib.use("agg")
PATHS = sorted((Path(__file__).parents[1] / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def parts_of(notebook):
    """Return the code before the first guess, and (exercise, answer) pairs.

    Functions of later cells, where an exercise names one, count as code before.
    """
    cells = notebook.cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    first_guess = next(i for i, source in enumerate(code) if "my_guess" in source)
    pairs = []
    for cell, following in zip(cells, cells[1:], strict=False):
        answer = re.search(r"<details>.*?```python\n(.+?)```", following.source, re.S)
        if cell.cell_type == "code" and "check(" in cell.source and answer:
            pairs.append((cell.source, answer[1]))
    before = code[:first_guess]
    for source in code[first_guess:]:
        for node in ast.parse(source).body:
            named = isinstance(node, ast.FunctionDef) and any(
                re.search(rf"\b{node.name}\b", exercise)
                for exercise, _ in pairs
                if exercise != source
            )
            if named:
                before.append(ast.get_source_segment(source, node))
    return before, pairs


@pytest.fixture(params=PATHS, ids=lambda path: path.name)
def parts(request):
    return parts_of(nbformat.read(request.param, 4))


def run(sources):
    """Run cells one after the other, as a kernel would, apart from magics."""
    names = {"__name__": "__main__"}
    for source in sources:
        exec(compile(source, "cell", "exec"), names)


def test_answers_are_right_and_nothing_else_is(parts, capsys, monkeypatch):
    before, pairs = parts
    monkeypatch.chdir(PATHS[0].parent)
    assert 2 <= len(pairs) <= 3
    for exercise, answer in pairs:
        attempts = {
            "Not attempted yet": exercise,
            "Right.": re.sub(r"(?m)^my_.*= None.*\n", "ANSWER", exercise, count=1),
            "Not yet": re.sub(r"= None(, None)?", "= 12.5, 12.5", exercise, count=1),
        }
        for words, source in attempts.items():
            capsys.readouterr()
            run([*before, source.replace("ANSWER", answer)])
            assert words in capsys.readouterr().out, source
