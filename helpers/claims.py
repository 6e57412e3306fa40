"""The two guides' claims, and what a run says of them.

``claims.toml`` holds all 114: what a guide says, how it stood when checked, what is
true, and the notebook that tests it or the page that settles it. A notebook's cells
judge with ``verdict``; ``table`` lays this run beside the reference machine's, and
``ledger`` counts the outcomes of the whole course.
"""

import contextlib
import dataclasses
import functools
import pathlib
import tomllib

from helpers import records
from helpers._arguments import checked, quoted

OUTCOMES = ("holds as written", "holds with conditions", "does not hold")
OUTCOMES += ("could not be tested",)
CITED = "settled by a page"
VERDICTS = {
    True: "holds here",
    False: "does not hold here",
    None: "cannot be tested here",
}


@checked
@dataclasses.dataclass(frozen=True)
class Claim:
    """Hold one claim; the fields are described at the top of ``claims.toml``."""

    id: str
    guide: int
    section: str
    says: str
    checked: str
    truth: str
    chapter: str = ""
    citation: str = ""


_judged: dict[str, dict] = {}  # what this process has judged, by claim id


@functools.cache
def load() -> dict[str, Claim]:
    """Read all claims, by id: "G1-1" to "G1-71", "G2-1" to "G2-43"."""
    path = pathlib.Path(__file__).parent / "claims.toml"
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: Claim(name, **fields) for name, fields in content.items()}


@checked
def get(id: str) -> Claim:
    """Return one claim.

    Raises:
        ValueError: there is no such claim; the message says which there are.
    """
    if id not in load():
        raise ValueError(f"unknown claim {id!r}: give G1-1 to G1-71 or G2-1 to G2-43")
    return load()[id]


def verdict(id: str, holds: bool | None, evidence: str) -> None:
    """Judge a claim by this run: print one line, and keep it for ``table``.

    Args:
        id: the claim, such as "G1-48".
        holds: True, False, or None if this machine cannot tell.
        evidence: what was measured, in a few words; with None, what is missing.

    Raises:
        ValueError: unknown claim, or no evidence.
        TypeError: ``holds`` is none of the three.
    """
    get(id)
    if hasattr(holds, "item"):
        with contextlib.suppress(ValueError, RuntimeError):  # of several elements
            holds = holds.item()  # a NumPy or torch truth value
    if not isinstance(holds, bool | None):
        raise TypeError(f"holds={quoted(holds)}: give True, False or None")
    if not isinstance(evidence, str) or not evidence.strip():
        raise ValueError(
            f"evidence={quoted(evidence)}: say in a few words what was measured"
        )
    _judged[id] = {"holds": holds, "evidence": evidence}
    print(f"{id} {VERDICTS[holds]}: {evidence}")


@checked
class Table:
    """Show claims and verdicts; text wraps instead of being cut off.

    With a ``summary``, a notebook shows that line, and the table once it is clicked.
    """

    def __init__(self, frame, summary: str = ""):
        import pandas

        if not isinstance(frame, pandas.DataFrame):
            raise TypeError(f"frame={quoted(frame)}: give a pandas DataFrame")
        self.frame, self.summary = frame, summary

    def __repr__(self) -> str:
        return self.frame.to_string(max_colwidth=60)

    def _repr_html_(self) -> str:
        import pandas

        with pandas.option_context("display.max_colwidth", None):
            html = self.frame.to_html(justify="left", border=0)
        html = html.replace("<td>", '<td style="text-align: left">')
        head, body = html.split("<tbody>")
        head = head.replace("<th>", '<th style="text-align: left">')
        ids = '<th style="text-align: left; white-space: nowrap">'
        html = f"{head}<tbody>{body.replace('<th>', ids)}"
        if self.summary:
            html = f"<details><summary>{self.summary}</summary>{html}</details>"
        return html


@checked
def outcome(claim: Claim) -> str:
    """Return which of ``OUTCOMES`` a claim has come to, on the reference machine.

    The run decides, or, for a claim with a citation, the page. What holds there and was
    not found "right" when it was checked holds with conditions: ``truth`` says which.
    """
    holds = claim.checked in ("right", "incomplete")
    if claim.chapter:
        holds = _reference(claim).get("holds")
    if holds is None:
        return OUTCOMES[3]
    return OUTCOMES[(0 if claim.checked == "right" else 1) if holds else 2]


def ledger() -> dict[str, dict[str, int]]:
    """Count the claims' outcomes: chapter → outcome → how many; ``CITED`` is the last.

    They are those of the reference machine, not of this run.
    """
    counts = {claim.chapter: dict.fromkeys(OUTCOMES, 0) for claim in load().values()}
    for claim in load().values():
        counts[claim.chapter][outcome(claim)] += 1
    return {name or CITED: counts[name] for name in sorted(counts, key=_last_if_empty)}


def _last_if_empty(name: str) -> tuple[bool, str]:
    return (not name, name)


def _reference(claim: Claim) -> dict:
    """Return what the reference machine's run says of a claim; {} if nothing."""
    record = records.load(f"{claim.chapter[:2]}/verdicts") if claim.chapter else None
    return record.data.get(claim.id, {}) if record else {}


def _course() -> Table:
    """Show all claims with their outcomes on the reference machine."""
    import pandas

    rows = {
        name: {
            "the guide says": claim.says,
            "outcome": outcome(claim),
            "by": _reference(claim).get("evidence", claim.citation),
            "where": claim.chapter or "a page",
        }
        for name, claim in load().items()
    }
    frame = pandas.DataFrame.from_dict(rows, orient="index")
    return Table(frame, f"All {len(rows)} claims")


@checked
def table(chapter: str = "") -> Table:
    """Lay a chapter's verdicts from this run beside the reference machine's.

    Args:
        chapter: the notebook's file name without its ending, "01_float_formats"; ""
            for all claims of the course, with their outcomes on the reference machine.

    Raises:
        ValueError: no claim belongs to that chapter.
    """
    import pandas

    if not chapter:
        return _course()
    mine = {name: claim for name, claim in load().items() if claim.chapter == chapter}
    if not mine:
        chapters = sorted({c.chapter for c in load().values() if c.chapter})
        raise ValueError(
            f"no claims for {chapter!r}: give one of {', '.join(chapters)}"
        )
    here = {name: _judged[name] for name in mine if name in _judged}
    there = records.reference(f"{chapter[:2]}/verdicts", here)
    rows = {}
    for name, claim in mine.items():
        row = {"the guide says": claim.says, "here": _words(here.get(name))}
        if there.data:
            row[there.label] = _words(there.data.get(name))
        rows[name] = row | {"what is true": claim.truth}
    return Table(pandas.DataFrame.from_dict(rows, orient="index"))


def _words(judged: dict | None) -> str:
    if judged is None:
        return "not judged"
    words = VERDICTS[judged["holds"]].removesuffix(" here")
    return f"{words}: {judged['evidence']}"
