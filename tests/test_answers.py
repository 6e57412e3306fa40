"""The exercises' answers: each is folded below its cell, and it is right."""

import builtins
import dis
import re
import types
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
FOLDED = r"<details><summary>Answer</summary>\n\n```python\n(.+?)\n```"
UNANSWERED = re.compile(r"^(my_\w+(?:, my_\w+)*) = None\b.*$", re.M)


def exercises(path):
    """Return, for each exercise of a notebook, its cell's index and its answer."""
    cells = nbformat.read(path, as_version=4).cells
    found = []
    for index, cell in enumerate(cells):
        if cell.cell_type == "code" and re.search(r"^check\(", cell.source, re.M):
            below = cells[index + 1]
            answers = re.findall(FOLDED, below.source, re.S)
            assert below.cell_type == "markdown" and len(answers) == 1, (path, index)
            found.append((index, answers[0]))
    return found


CASES = [(path, *exercise) for path in NOTEBOOKS for exercise in exercises(path)]


def names(source):
    """Return the global names that a cell defines, and those that it uses."""
    made, used, codes = set(), set(), [compile(source, "cell", "exec")]
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        for step in dis.get_instructions(code):
            if step.opname in ("STORE_NAME", "STORE_GLOBAL"):
                made.add(step.argval)
            elif step.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
                used.add(step.argval)
    return made, used


def needed(cells, source):
    """Return the sources of the earlier cells that a cell builds on, in order."""
    _, missing = names(source)
    kept = []
    for cell in reversed(cells):
        made, used = names(cell)
        if made & missing:
            kept.insert(0, cell)
            missing = (missing - made) | used
    return kept


def run(path, index, answer, capsys):
    """Run an exercise's cell with an answer in it; return what it prints."""
    cells = nbformat.read(path, as_version=4).cells
    source, count = UNANSWERED.subn(
        lambda found: answer or found[0], cells[index].source
    )
    assert count == 1
    earlier = [cell.source for cell in cells[:index] if cell.cell_type == "code"]
    space = {"__name__": "__main__", "__builtins__": builtins}
    for code in needed(earlier[1:], source):  # the first cell finds `helpers`
        exec(compile(code, path.name, "exec"), space)
    capsys.readouterr()
    exec(compile(source, path.name, "exec"), space)
    return capsys.readouterr().out


def case_id(case):
    path, index, _ = case
    return f"{path.stem}-{index}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_notebook_has_two_or_three_exercises(path):
    assert len(exercises(path)) in (2, 3)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_folded_answer_is_right(case, capsys):
    path, index, answer = case
    assert run(path, index, answer, capsys).startswith("Right.")


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_no_answer_and_a_wrong_one_are_no_errors(case, capsys):
    path, index, _ = case
    assert run(path, index, "", capsys).startswith("Not attempted yet")
    source = nbformat.read(path, as_version=4).cells[index].source
    mine = re.findall(r"my_\w+", UNANSWERED.search(source)[1])
    wrong = "; ".join(f"{name} = object()" for name in mine)
    assert run(path, index, wrong, capsys).startswith("Not yet")
