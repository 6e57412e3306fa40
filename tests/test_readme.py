"""The README says what is so: commands, table, reference machine, chart."""

import base64
import re
from pathlib import Path

import nbformat
import pytest
import record

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


def commands(language):
    return re.findall(rf"```{language}\n(.+?)\n```", README, re.S)


def test_two_commands_each_make_their_own_environment():
    for language, python in (("sh", "python3"), ("powershell", "py")):
        lab, test = commands(language)[:2]
        for command in (lab, test):
            assert command.startswith(f"{python} -m venv .venv")
            assert 'install -e ".[lab,test]"' in command
        assert lab.endswith("jupyter lab notebooks")
        assert test.endswith("pytest --nbval notebooks tests")


def test_ci_runs_the_readmes_test_command():
    script = (REPOSITORY / ".ci" / "run").read_text()
    ending = commands("sh")[1].split("/")[-1]
    assert ending.startswith("python -m pytest --nbval") and ending in script


def test_every_notebook_has_its_row_with_minutes_that_are_enough():
    for path in NOTEBOOKS:
        row = re.search(rf"^\|.*\(notebooks/{path.name}\).*$", README, re.M)
        assert row, path.name
        minutes = float(row[0].split("|")[3].split(",")[0])
        assert nbformat.read(path, 4).metadata.recorded.minutes <= minutes


def test_the_reference_machine_is_the_one_that_recorded():
    said = re.search(r"one (.+?), torch (\S+), recorded on (\S+)\.", README)
    for path in NOTEBOOKS:
        recorded = nbformat.read(path, 4).metadata.recorded
        assert said.groups() == (recorded.device, recorded.torch, recorded.date)


def test_each_notebook_has_a_chart_in_the_readme():
    assert [path.name for path in NOTEBOOKS] == [
        name for name, _ in record.README_CHARTS
    ]
    shown = re.findall(r"!\[(.+?)\]\(\.github/(.+?)\)", README)
    assert [file for _, file in shown] == list(record.README_CHARTS.values())
    assert all(len(words.split()) > 8 for words, _ in shown), "say what is to be seen"


@pytest.mark.parametrize("chart", record.README_CHARTS, ids=lambda chart: chart[0])
def test_charts_are_the_recorded_notebooks_own(chart):
    name, words = chart
    notebook = nbformat.read(REPOSITORY / "notebooks" / name, 4)
    picture = base64.b64decode(record.chart_of(notebook, words))
    file = REPOSITORY / ".github" / record.README_CHARTS[chart]
    assert file.read_bytes() == picture
    assert len(picture) < 100_000
