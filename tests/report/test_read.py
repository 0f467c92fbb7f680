"""A results directory is checked once, and what cannot be used ends in one line that names the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from causal_attn.errors import InputError
from causal_attn.report import read_results
from causal_attn.storage import load_arrays, save_arrays
from tests.report.made import edit, write_results


def test_everything_written_is_read(out: Path) -> None:
    results = read_results(out)
    assert [s.name for s in results.schemes] == ["erm", "weighted", "random", "warm"]
    assert results.class_names == ("negative", "positive")
    assert results.default_tokens == 5
    assert results.evalx_k == 5
    assert results.selection is not None
    assert results.selection.intervals["support_deficit"] == (0.204, 0.262)
    assert len(results.examples) == 12
    assert results.missing == ()


def test_nulls_keep_their_reasons(out: Path) -> None:
    by_name = {s.name: s for s in read_results(out).schemes}
    run = by_name["random"].runs[0]
    assert "gap" not in run.figures
    assert run.nulls["gap"] == "EVAL-X did not converge <b>here</b>"


def test_a_null_without_a_note_says_so(out: Path) -> None:
    edit(out, lambda raw: raw["schemes"]["erm"]["runs"][0].update(p_value=None))
    assert read_results(out).schemes[0].runs[0].nulls["p_value"] == "no reason given"


def test_a_null_within_a_list_has_its_reason(out: Path) -> None:
    change = {"default_token_mass": [0.1, None], "notes": {"default_token_mass": "no text of class 1"}}
    edit(out, lambda raw: raw["schemes"]["erm"]["runs"][0].update(change))
    assert read_results(out).schemes[0].runs[0].nulls["default_token_mass"] == "no text of class 1"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 2, "schemes": {}}', '{"version": 1, "schemes": NaN}'])
def test_an_unusable_results_json_is_one_line_with_its_path(out: Path, content: str) -> None:
    (out / "results.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_results(out)
    assert str(out / "results.json") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("schemes", [None, [], {}, {"erm": 3}, {"erm": {}}, {"erm": {"runs": [1]}}])
def test_schemes_of_another_form_are_refused(out: Path, schemes: object) -> None:
    edit(out, lambda raw: raw.update(schemes=schemes))
    with pytest.raises(InputError, match=r"results\.json"):
        read_results(out)


def test_bytes_that_are_no_text_are_refused(out: Path) -> None:
    (out / "results.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not valid JSON"):
        read_results(out)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_results(tmp_path / "nowhere")


def test_what_is_absent_is_named(out: Path) -> None:
    (out / "details.npz").unlink()
    (out / "examples.json").unlink()
    edit(out, lambda raw: [raw.pop(key) for key in ("config", "data", "verdict", "summary", "selection", "files")])
    results = read_results(out)
    assert len(results.missing) == 7
    assert results.selection is None
    assert results.arrays == {}


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("log_w", np.zeros((300, 2))),
        ("log_w", np.zeros(299)),
        ("log_prob", np.zeros((299, 2))),
        ("profile_erm", np.zeros(40)),
        ("history_erm", np.zeros((10, 2))),
        ("elbo", np.array(["a", "b"])),
    ],
)
def test_an_array_of_the_wrong_shape_is_named(out: Path, name: str, array: np.ndarray) -> None:
    arrays, meta = load_arrays(out / "details.npz")
    save_arrays(out / "details.npz", arrays | {name: array}, meta)
    with pytest.raises(InputError, match=name):
        read_results(out)


def test_a_damaged_details_file_is_named(out: Path) -> None:
    (out / "details.npz").write_bytes(b"not a zip")
    with pytest.raises(InputError, match=r"details\.npz"):
        read_results(out)


def test_a_mask_must_have_a_number_per_token(out: Path) -> None:
    text = '[{"tokens": ["a", "b"], "label": 0, "schemes": {"erm": {"mask": [0.5, null]}}}]'
    (out / "examples.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="text 0, scheme 'erm': expected a mask of 2 numbers, got 1"):
        read_results(out)


def test_files_outside_the_directory_are_ignored(out: Path) -> None:
    edit(out, lambda raw: raw["files"].update(details="../elsewhere.npz", weights="/etc/passwd"))
    results = read_results(out)
    assert results.files["details"] == "details.npz"
    assert "weights" not in results.files


def test_numbered_classes_get_a_word(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path / "out", class_names=("0", "1", "sport"), n=60))
    assert [results.class_name(k) for k in (0, 2, 7, None)] == ["class 0", "sport", "class 7", "unknown"]
