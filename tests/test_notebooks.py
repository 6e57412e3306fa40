"""The stored notebooks: what a reader meets before running anything."""

import collections
import datetime
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
import record
import set_repository

from helpers import claims, records

REPOSITORY = Path(__file__).resolve().parents[1]
PATHS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
# nbval ignores a tag that it does not know, so a misspelled one would test nothing.
TAGS = {"nbval-ignore-output", "nbval-skip", "nbval-check-output", "raises-exception"}
UNCOMPARED = {"nbval-ignore-output", "nbval-skip"}
UNIT = r"×(?!\s?\d)|[nµm]?s\b|[KMGT]iB|times (?:as|faster)|% (?:faster|slower)"
MEASURED = rf"\d[\d.,]*\s?(?:{UNIT})"
GIVEN = {
    "2 MiB",
    "100 MiB",
    "1 KiB",
    "1 GiB",
}  # sizes asked for, no results
JUDGED = r"^(G[12]-\d+) (?:holds|does not hold|cannot be tested) here: "
MACHINE_PATH = re.compile(r"(?<![\w.])(/(home|root|Users|tmp|work|opt)/|[A-Z]:\\)")


@pytest.fixture(params=PATHS, ids=lambda path: path.name)
def path(request):
    return request.param


@pytest.fixture
def notebook(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    """Return the (index, cell) pairs of the code cells."""
    pairs = enumerate(notebook.cells)
    return [(index, cell) for index, cell in pairs if cell.cell_type == "code"]


def prose(notebook):
    """Return the text of all Markdown cells."""
    return "\n\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")


def shown_text(cell):
    """Return all text that a code cell's outputs show, without embedded pictures."""
    texts = []
    for output in cell.outputs:
        texts += [output.get("text", ""), *output.get("traceback", [])]
        data = output.get("data", {})
        texts += [str(data[mime]) for mime in data if not mime.startswith("image/png")]
    return re.sub(r"base64,[\w+/=\s]+", "", "\n".join(texts))


def test_there_are_notebooks():
    assert PATHS
    assert [
        path.name for path in PATHS if not re.match(r"\d\d_\w+\.ipynb", path.name)
    ] == []


def test_outputs_belong_to_the_sources(notebook):
    assert record.stale_cells(notebook) == [], "edited since: run notebooks/record.py"
    counts = [cell.execution_count for _, cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1)), "not one clean run"


def test_recording_is_named(notebook):
    assert "recorded" in notebook.metadata, "never recorded: run notebooks/record.py"
    recorded = notebook.metadata.recorded
    assert recorded.device.strip() and re.match(r"\d+\.\d+", recorded.torch)
    assert datetime.date.fromisoformat(recorded.date)
    assert recorded.minutes >= 0


def test_one_machine_recorded_the_whole_set():
    stamps = {path.name: nbformat.read(path, 4).metadata.recorded for path in PATHS}
    machines = {name: (s.device, s.torch) for name, s in stamps.items()}
    assert len(set(machines.values())) == 1, machines


def test_tags_are_known(notebook):
    for index, cell in code_cells(notebook):
        assert set(cell.metadata.get("tags", [])) <= TAGS, f"cell {index}"
        # One way to say it: a comment would stand in the reader's way.
        assert "NBVAL_" not in cell.source, f"cell {index}"


def test_file_is_fit_for_github(path, notebook):
    assert path.stat().st_size < 1_000_000
    assert "widgets" not in notebook.metadata
    for index, cell in code_cells(notebook):
        types = {mime for output in cell.outputs for mime in output.get("data", {})}
        assert not {t for t in types if "widget" in t or "svg" in t}, f"cell {index}"
        assert "<svg" not in shown_text(cell), f"cell {index}"


def test_outputs_are_clean(notebook):
    for index, cell in code_cells(notebook):
        kinds = {(output.output_type, output.get("name")) for output in cell.outputs}
        assert ("stream", "stderr") not in kinds, f"cell {index}"
        expects_error = "raises-exception" in cell.metadata.get("tags", [])
        assert expects_error or ("error", None) not in kinds, f"cell {index}"
        assert not MACHINE_PATH.search(shown_text(cell)), f"cell {index}"


def test_compared_outputs_name_no_machine(notebook):
    recorded = notebook.metadata.recorded
    for index, cell in code_cells(notebook):
        if not UNCOMPARED & set(cell.metadata.get("tags", [])):
            text = shown_text(cell)
            assert recorded.device not in text, f"cell {index}"
            assert recorded.torch.split("+")[0] not in text, f"cell {index}"


def test_code_is_short(notebook):
    for index, cell in code_cells(notebook):
        lines = [line for line in cell.source.splitlines() if line.strip()]
        # The formatter puts each import on a line of its own.
        lines = [line for line in lines if not line.startswith("import ")]
        most = 40 if any(line.startswith("class ") for line in lines) else 25
        assert 0 < len(lines) <= most, f"cell {index}"
        # The link of a fork may be longer than ours.
        wide = [line for line in lines if len(line) > 88 and "https://" not in line]
        assert not wide, f"cell {index}"


def test_code_does_what_it_does_in_a_test_too(notebook):
    for index, cell in code_cells(notebook):
        # nbval keeps no history, and there `;` silences nothing.
        assert not re.search(r";\s*$|\bOut\[|%timeit", cell.source), f"cell {index}"
        assert not re.search(r"\b(interact|Output)\(", cell.source), f"cell {index}"


def test_badge_opens_this_notebook(path, notebook):
    badge = r"\(https://colab\.research\.google\.com/github/[^)]+/notebooks/([^)/]+)\)"
    assert re.findall(badge, notebook.cells[0].source) == [path.name]


def test_links_name_one_repository(capsys):
    assert set_repository.main(["--check"]) == 0, capsys.readouterr().out


def anchors(path):
    """Return what a link may name after `#`: the headings and ids of a notebook."""
    text = prose(nbformat.read(path, as_version=4))
    headings = re.findall(r"^#+ +(.+?) *$", text, re.M)
    return {anchor(name) for name in headings + re.findall(r'\bid="([^"]+)"', text)}


def anchor(name):
    """Write a heading so that JupyterLab's and GitHub's links to it look the same."""
    return re.sub(r"[^\w-]", "", unquote(name).replace(" ", "-")).lower()


def test_internal_links_lead_somewhere(path, notebook):
    text = prose(notebook)
    links = re.findall(r"\]\(([^)\s]+)[^)]*\)", text)
    links += re.findall(r'\b(?:href|src)="([^"]+)"', text)
    for link in links:
        if re.match(r"[a-z]+:", link):  # https, mailto, data, attachment
            continue
        name, _, fragment = link.partition("#")
        target = path.parent / unquote(name) if name else path
        assert target.exists(), link
        if fragment and target.suffix == ".ipynb":
            assert anchor(fragment) in anchors(target), link


def test_each_claim_is_judged_once_or_settled_by_a_page():
    judged = collections.Counter()
    for path in PATHS:
        for _, cell in code_cells(nbformat.read(path, as_version=4)):
            lines = re.findall(JUDGED, shown_text(cell), re.M)
            judged.update((claim_id, path.stem) for claim_id in lines)
    known = claims.load()
    wanted = {(c.id, c.chapter): 1 for c in known.values() if c.chapter}
    assert judged == wanted
    assert {c.id for c in known.values() if c.citation} == known.keys() - {
        claim_id for claim_id, _ in judged
    }


def test_the_ledger_shows_the_records():
    counts = claims.ledger()
    assert list(counts) == [*sorted(path.stem for path in PATHS[:-1]), claims.CITED]
    assert sum(sum(row.values()) for row in counts.values()) == 114
    for path in PATHS[:-1]:
        there = records.load(f"{path.stem[:2]}/verdicts").data
        mine = {c.id for c in claims.load().values() if c.chapter == path.stem}
        assert there.keys() == mine, path.name
        false = [name for name, said in there.items() if said["holds"] is False]
        assert counts[path.stem]["does not hold"] == len(false), path.name


def test_messages_in_headings_were_really_raised():
    [path] = [path for path in PATHS if path.stem == "11_troubleshooting"]
    book = nbformat.read(path, as_version=4)
    shown = " ".join(shown_text(cell) for _, cell in code_cells(book))
    shown = " ".join(shown.split())
    headings = re.findall(r"^### (`.*)$", prose(book), re.M)
    assert len(headings) >= 18
    for heading in headings:
        for literal in re.findall(r"`(.+?)`", heading):
            assert literal in shown, literal


def set_up_cell(path):
    """Return the source of the first code cell, which finds `helpers`."""
    return code_cells(nbformat.read(path, as_version=4))[0][1].source


def test_prose_leaves_measured_digits_to_the_outputs(notebook):
    text = prose(notebook)
    text = re.sub(r"^## Your turn$.*?^## Recap$", "", text, flags=re.M | re.S)
    assert set(re.findall(MEASURED, text)) <= GIVEN


def test_set_up_cells_are_the_same():
    first = set_up_cell(PATHS[0])
    assert "COLAB_RELEASE_TAG" in first and "helpers" in first
    for path in PATHS:
        assert set_up_cell(path) == first, path.name


@pytest.mark.parametrize("length", [3, 15, 30, 31, 45, 69])
def test_set_up_cell_stays_tidy_in_any_fork(length, tmp_path):
    ruff = shutil.which("ruff", path=Path(sys.executable).parent) or shutil.which(
        "ruff"
    )
    if ruff is None:
        pytest.skip("ruff is not installed")
    fork = "o/" + "r" * (length - 2)
    source = set_repository.replace_links(set_up_cell(PATHS[0]), fork, None)
    assert fork in source
    cell = tmp_path / "cell.py"
    cell.write_text(source + "\n")
    command = [
        ruff,
        "format",
        "--check",
        "--config",
        REPOSITORY / "pyproject.toml",
        cell,
    ]
    assert subprocess.run(command).returncode == 0
