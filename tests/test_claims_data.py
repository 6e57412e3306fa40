"""Check the form of helpers/claims.toml: ids, keys, words, totals and lengths."""

import re
import tomllib
from collections import Counter
from pathlib import Path

PATH = Path(__file__).parents[1] / "helpers" / "claims.toml"
TEXT = PATH.read_text(encoding="utf-8")
CLAIMS = tomllib.loads(TEXT)

REQUIRED = {"guide", "section", "says", "checked", "truth"}
EVIDENCE = {"chapter", "citation"}
NOT_RIGHT = {"outdated", "misleading", "wrong"}
WORDS = {"right", "incomplete"} | NOT_RIGHT
LONGEST = {"section": 50, "says": 160, "truth": 300}  # characters
CHAPTERS = {
    "00_measure_first",
    "01_float_formats",
    "02_inference_mode",
    "03_mixed_precision",
    "04_torch_compile",
    "05_tf32_tensor_cores",
    "06_cudnn",
    "07_flash_attention",
    "08_cuda_graphs",
    "09_memory_and_profiling",
    "10_putting_it_together",
}


def failing(holds):
    """Return the ids of the claims for which `holds(claim)` is false."""
    return [claim_id for claim_id, claim in CLAIMS.items() if not holds(claim)]


def test_all_114_ids_in_order():
    first = [f"G1-{n}" for n in range(1, 72)]
    second = [f"G2-{n}" for n in range(1, 44)]
    assert list(CLAIMS) == first + second


def test_required_keys_and_no_others():
    assert failing(lambda claim: set(claim) - EVIDENCE == REQUIRED) == []


def test_exactly_one_of_chapter_and_citation():
    assert failing(lambda claim: len(EVIDENCE & set(claim)) == 1) == []


def test_guide_agrees_with_the_id():
    wrong = [i for i, claim in CLAIMS.items() if claim["guide"] != int(i[1])]
    assert wrong == []


def test_checked_is_one_of_five_words():
    assert failing(lambda claim: claim["checked"] in WORDS) == []


def test_totals():
    """40 hold as written, 26 are incomplete, 48 are outdated, misleading or wrong."""
    count = Counter(claim["checked"] for claim in CLAIMS.values())
    not_right = sum(count[word] for word in NOT_RIGHT)
    assert (count["right"], count["incomplete"], not_right) == (40, 26, 48)


def test_chapters_are_notebooks_and_each_notebook_has_a_claim():
    assert {c["chapter"] for c in CLAIMS.values() if "chapter" in c} == CHAPTERS


def test_citation_is_a_title_and_an_https_address():
    cited = {i: c["citation"] for i, c in CLAIMS.items() if "citation" in c}
    form = re.compile(r"\S.+, https://[\w.-]+/\S*")
    assert cited
    assert [i for i, text in cited.items() if not form.fullmatch(text)] == []


def test_texts_are_short_single_lines():
    for key, limit in LONGEST.items():
        assert failing(lambda claim, k=key, n=limit: 0 < len(claim[k]) <= n) == []
        assert failing(lambda claim, k=key: "\n" not in claim[k]) == []


def test_texts_are_sentences():
    for key in ("says", "truth"):
        assert failing(lambda claim, k=key: claim[k].endswith((".", '."'))) == []


def test_no_two_claims_say_the_same():
    count = Counter(claim["says"] for claim in CLAIMS.values())
    assert failing(lambda claim: count[claim["says"]] == 1) == []


def test_file_has_no_japanese_characters():
    """Hiragana, katakana, kanji, and full-width forms and punctuation."""
    assert re.findall(r"[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]", TEXT) == []
