"""helpers.records, helpers.claims: what is kept comes back, what is judged is told."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from helpers import claims, compare, records


@pytest.fixture
def comparison():
    def broken():
        raise RuntimeError("no")

    variants = {
        "a": lambda: torch.ones(2),
        "b": lambda: torch.tensor([1.0, math.inf]),
        "c": broken,
    }
    return compare(variants, torch.ones(2), seconds=0.01, rounds=3)


def test_a_comparison_comes_back_whole(comparison, tmp_path):
    path = records.save("00/test", comparison, tmp_path, batch=32)
    json.loads(
        path.read_text(), parse_constant=lambda c: pytest.fail(c)
    )  # no NaN in it
    record = records.load("00/test", tmp_path)
    assert repr(record.comparison) == repr(comparison)
    assert record.comparison["b"].error.infs == 1
    assert record.conditions["sizes"] == {"batch": 32}
    assert record.conditions["torch"] == torch.__version__
    assert str(torch.__version__) in record.label


def test_plain_data_comes_back(tmp_path):
    run = {"x": 1.5, "n": np.int64(3), "y": torch.tensor(0.5), "z": math.inf}
    records.save("01/data", run, tmp_path)
    assert records.load("01/data", tmp_path).data == {
        "x": 1.5,
        "n": 3,
        "y": 0.5,
        "z": math.inf,
    }


def test_reference_stores_only_while_recording(comparison, tmp_path, monkeypatch):
    monkeypatch.delenv("HELPERS_RECORD_TO", raising=False)
    missing = records.reference("99/none", comparison)
    assert missing.comparison is None and missing.label == "no run is stored"
    monkeypatch.setenv("HELPERS_RECORD_TO", str(tmp_path))
    itself = records.reference("99/none", comparison)
    assert itself.comparison is None and itself.label == "this run"
    assert records.load("99/none", tmp_path).comparison["a"].error.exact
    assert (tmp_path / "99" / "none.json").is_file()
    assert not (records.FOLDER / "99").exists()


def test_a_record_prints_its_numbers_behind_its_label(tmp_path):
    records.save("01/data", {"x": 1.5, "ok": True, "deep": {"y": 2}}, tmp_path, n=4)
    record = records.load("01/data", tmp_path)
    assert str(record) == f"Reference: {record.label}\n  x 1.5"
    assert str(records.Record("01/data", {})) == "Reference: no run is stored"


def test_side_by_side_lays_both_out(comparison, tmp_path):
    records.save("00/test", comparison, tmp_path)
    other = records.load("00/test", tmp_path)
    table = records.side_by_side(comparison, other)
    assert list(table.index) == ["a", "b", "c"]
    assert {top for top, _ in table.columns} == {"here", other.label}
    assert records.side_by_side(comparison, None).shape == (3, 3)


@pytest.mark.parametrize("name", ["", "x", "a/b/c", "../x", "00/", "00/a b", None, 7])
def test_a_name_cannot_leave_the_folder(name, tmp_path):
    with pytest.raises(ValueError, match="record name"):
        records.load(name, tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"conditions": {}}', '{"name": "x"}'])
def test_a_broken_file_is_named(text, tmp_path):
    (tmp_path / "00").mkdir()
    (tmp_path / "00" / "bad.json").write_text(text)
    with pytest.raises(ValueError, match="bad.json is not a record"):
        records.load("00/bad", tmp_path)


def test_only_runs_are_kept(tmp_path):
    with pytest.raises(TypeError, match=r"\[1\].*Comparison or a dict"):
        records.save("00/x", [1], tmp_path)


@pytest.mark.parametrize(
    "path",
    sorted(records.FOLDER.glob("*/*.json")),
    ids=lambda p: f"{p.parent.name}/{p.stem}",
)
def test_the_packaged_records_load(path):
    record = records.load(f"{path.parent.name}/{path.stem}")
    assert {"device", "torch", "date"} <= set(record.conditions)
    assert record.comparison is not None or record.data


# ------------------------------------------------------------------------------- claims


@pytest.fixture(autouse=True)
def nothing_judged(monkeypatch):
    monkeypatch.setattr(claims, "_judged", {})
    monkeypatch.delenv("HELPERS_RECORD_TO", raising=False)


@pytest.mark.parametrize(
    "holds, words",
    [
        (True, "holds here"),
        (False, "does not hold here"),
        (None, "cannot be tested here"),
        (np.bool_(True), "holds here"),
        (torch.tensor(False), "does not hold here"),
    ],
)
def test_a_verdict_is_one_line_with_its_evidence(holds, words, capsys):
    claims.verdict("G1-48", holds, "TF32 stores 1.234375")
    told = capsys.readouterr().out
    assert told == f"G1-48 {words}: TF32 stores 1.234375\n"


@pytest.mark.parametrize(
    "id, holds, evidence, error, words",
    [
        ("G3-1", True, "x", ValueError, "'G3-1'.*G1-71"),
        ("G1-72", True, "x", ValueError, "'G1-72'"),
        ("g1-1", True, "x", ValueError, "'g1-1'"),
        ("G1-1", "yes", "x", TypeError, "'yes'.*True, False or None"),
        ("G1-1", 1, "x", TypeError, "1.*True, False or None"),
        ("G1-1", True, " ", ValueError, "evidence"),
    ],
)
def test_a_bad_verdict_is_refused(id, holds, evidence, error, words):
    with pytest.raises(error, match=words):
        claims.verdict(id, holds, evidence)
    assert not claims._judged


def test_the_table_shows_judged_and_unjudged(capsys):
    claims.verdict("G1-48", False, "TF32 stores 1.234375")
    table = claims.table("01_float_formats")
    rows = table.frame["here"]
    assert rows["G1-48"] == "does not hold: TF32 stores 1.234375"
    assert rows["G1-3"] == "not judged"
    assert table.frame["what is true"]["G1-48"] == claims.get("G1-48").truth
    assert "TF32 stores 1.234375" in table._repr_html_()
    with pytest.raises(ValueError, match="'nowhere'.*01_float_formats"):
        claims.table("nowhere")


def test_numbers_that_json_lacks_come_back_as_numbers(tmp_path):
    data = {"x": [1, 2], "lost": [math.nan, math.inf], "words": "nan and inf"}
    records.save("00/numbers", data, tmp_path)
    back = records.load("00/numbers", tmp_path).data
    assert math.isnan(back["lost"][0]) and back["lost"][1] == math.inf
    assert back["words"] == "nan and inf" and back["x"] == [1, 2]


def test_facts_are_told_of_this_machine_or_of_the_reference(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    monkeypatch.setattr(records.load, "__defaults__", (tmp_path,))
    records.save("00/facts", {"peak": "12 MiB", "rate": 3.14159}, tmp_path)
    records.beside("00/facts", {"peak": "1 MiB", "share": 0.5})
    assert capsys.readouterr().out == "peak   1 MiB\nshare  0.5\n"
    records.beside("00/facts", {}, "No GPU here.")
    there = capsys.readouterr().out.splitlines()
    label = records.load("00/facts", tmp_path).label
    assert " ".join(there).startswith(f"No GPU here. On the {label}:")
    assert there[-2:] == ["peak  12 MiB", "rate  3.142"]
    records.beside("00/none", {}, "No GPU here.")
    assert capsys.readouterr().out == "No GPU here. No run is stored.\n"


WORKLOADS = ("SimpleModel-32", "transformer-1", "transformer-32", "ResNet-50-1")
WORKLOADS += ("ResNet-50-64", "ViT-B-16-1", "ViT-B-16-64")


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_recorded_search_is_no_slower_than_what_it_was_raced_with(name):
    data = records.load(f"10/bench-{name}").data
    for other in ("recipe", "torch.compile", "BF16 eager", "eager"):
        # 3 %: what `compare` cannot tell apart.
        assert data[f"over {other}"] > 0.97, other
    assert data["error"] < 2e-2 and data["search_s"] < 90
    assert 0 < data["roof"] < 1


@pytest.mark.parametrize(
    "checked, holds, outcome",
    [
        ("right", True, "holds as written"),
        ("incomplete", True, "holds with conditions"),
        ("wrong", True, "holds with conditions"),
        ("right", False, "does not hold"),
        ("right", None, "could not be tested"),
    ],
)
def test_a_run_decides_what_becomes_of_a_claim(checked, holds, outcome, monkeypatch):
    record = records.Record("00/verdicts", {}, data={"G1-1": {"holds": holds}})
    monkeypatch.setattr(records, "load", lambda name: record)
    claim = dataclasses.replace(claims.get("G1-1"), checked=checked)
    assert claims.outcome(claim) == outcome
    never = dataclasses.replace(claim, id="G1-2")
    assert claims.outcome(never) == "could not be tested"


def test_a_page_decides_where_no_run_can():
    claim = dataclasses.replace(claims.get("G1-1"), chapter="", citation="a page")
    for checked, outcome in {"right": 0, "incomplete": 1, "outdated": 2}.items():
        mine = dataclasses.replace(claim, checked=checked)
        assert claims.outcome(mine) == claims.OUTCOMES[outcome]


def test_the_whole_course_is_a_table_to_unfold():
    table = claims.table()
    assert len(table.frame) == 114
    html = table._repr_html_()
    assert html.startswith("<details><summary>All 114 claims") and "G2-43" in html
