"""The exercises: each has one folded answer, and `check` tells right from wrong."""

import ast
import re
import symtable
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
FOLDED = re.compile(r"<details><summary>Answer</summary>\n\n```python\n(.+?)```", re.S)
UNANSWERED = re.compile(r"^(my_\w+(?:, my_\w+)*) = None\b.*\n", re.M)


def exercises(path):
    """Return of each exercise the code cells before, its own, and the answers below."""
    cells = nbformat.read(path, as_version=4).cells
    found, before = [], []
    for cell, below in zip(cells, [*cells[1:], {}], strict=True):
        if cell.cell_type != "code":
            continue
        if re.search(r"^check\(", cell.source, re.M):
            answers = FOLDED.findall(below.get("source", ""))
            found.append((tuple(before), cell.source, answers))
        before.append(cell.source)
    return found


CASES = [
    pytest.param(*exercise, id=f"{path.stem}-{number}")
    for path in NOTEBOOKS
    for number, exercise in enumerate(exercises(path), 1)
]


def names(source):
    """Return the global names that code sets, and those that it takes from before."""
    made, taken = set(), set()
    for statement in ast.parse(source).body:
        tables = [symtable.symtable(ast.unparse(statement), "cell", "exec")]
        symbols = tables[0].get_symbols()
        for table in tables:  # the cell's, and those of the functions inside
            tables += table.get_children()
            symbols += [s for s in table.get_symbols() if s.is_global()]
        uses = {s.get_name() for s in symbols if s.is_referenced()}
        sets = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
        taken |= uses - made
        made |= sets
    return made, taken


def needed(before, source):
    """Return those of the cells before that code builds on, in their order."""
    _, missing = names(source)
    kept = []
    for cell in reversed(before):
        made, taken = names(cell)
        if made & missing:
            kept.insert(0, cell)
            missing = (missing - made) | taken
    return kept


def run(source, space):
    """Run a cell as a kernel would, apart from magics."""
    exec(compile(source, "cell", "exec"), space)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_two_or_three_exercises_with_one_answer_each(path):
    found = exercises(path)
    assert len(found) in (2, 3)
    assert [len(answers) for _, _, answers in found] == [1] * len(found)
    # None that the rules above overlook: unchecked, or folded somewhere else.
    cells = nbformat.read(path, as_version=4).cells
    prose = "\n\n".join(c.source for c in cells if c.cell_type == "markdown")
    turn = prose.partition("## Your turn\n")[2]
    assert len(re.findall(r"^### \d\. ", turn, re.M)) == len(found)
    assert turn.count("<details") == len(found)


@pytest.mark.parametrize("before, source, answers", CASES)
def test_no_answer_a_wrong_one_and_the_right_one(before, source, answers, capsys):
    (unanswered,) = UNANSWERED.finditer(source)
    wrong = ", ".join("object()" for _ in unanswered[1].split(", "))
    attempts = {
        "Not attempted yet": unanswered[0],
        "Not yet": f"{unanswered[1]} = {wrong}\n",
        "Right.": answers[0],
    }
    # In one kernel after the other attempts, as the reader does it.
    space = {"__name__": "__main__"}
    for cell in needed(before, source.replace(unanswered[0], answers[0])):
        run(cell, space)
    for words, attempt in attempts.items():
        capsys.readouterr()
        run(source.replace(unanswered[0], attempt), space)
        assert capsys.readouterr().out.startswith(words), attempt
