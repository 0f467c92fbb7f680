"""The page: whole, self-contained, escaped, and never half-written."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from causal_attn import report
from causal_attn.errors import InputError, OutputError
from causal_attn.storage import save_json
from tests.report.made import edit, write_results

VOID = {"meta", "img", "br", "col", "link", "hr", "input"}


class Tree(HTMLParser):
    """Checks that tags nest, and collects ids, links and images."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [str(found["id"])] if "id" in found else []
        self.links += [str(found[key]) for key in ("href", "src") if key in found]
        self.images += [found] if tag == "img" else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def written(out: Path) -> str:
    return report.write(out).read_text(encoding="utf-8")


def page(out: Path) -> str:
    """The page without its figures, which take most of the time."""
    return report.render(report.read_results(out), {})


@pytest.mark.parametrize(("classes", "seeds"), [(3, 1), (20, 3)])
def test_page_is_whole_self_contained_and_escaped(tmp_path: Path, classes: int, seeds: int) -> None:
    names = ["<script>alert(1)</script>", '"><img src=http://x>', *[f"class <{i}>" for i in range(2, classes)]]
    text = written(write_results(tmp_path / "out", class_names=names, seeds=seeds, n=200))
    tree = Tree(text)
    assert tree.open == []
    assert len(set(tree.ids)) == len(tree.ids)
    assert "<script" not in text
    assert not [link for link in tree.links if re.match(r"(?i)\s*(https?:|//|javascript:)", link)]
    assert not re.search(r"@import|url\(", text)
    assert "&lt;script&gt;alert(" in text


def test_links_lead_somewhere(out: Path) -> None:
    tree = Tree(written(out))
    for link in tree.links:
        if link.startswith("#"):
            assert link[1:] in tree.ids
        elif not link.startswith("data:"):
            assert (out / link).exists()


def test_every_figure_has_words_and_is_inside_the_page(out: Path) -> None:
    images = Tree(written(out)).images
    assert len(images) == 7
    assert all(str(i["src"]).startswith("data:image/svg+xml;base64,") and i["alt"] for i in images)
    assert len(list((out / "figures").glob("*.svg"))) == len(list((out / "figures").glob("*.png"))) == 7


def test_every_reason_is_on_the_page(out: Path) -> None:
    text = page(out)
    for why in ("no weights in this scheme", "EVAL-X did not converge &lt;b&gt;here&lt;/b&gt;", "no importance ratios"):
        assert why in text


def test_verdict_deficit_and_assumptions_are_on_the_page(out: Path) -> None:
    text = page(out)
    assert '<p class="head">shortcut</p>' in text
    assert "the model uses it (excess reliance 0.45)" in text
    assert "95% interval [0.20, 0.26]" in text
    assert "Weighting alone cannot repair this model" in text
    assert all(f"<dt>A{i}</dt>" in text for i in (1, 2, 3, 4))


def test_long_texts_are_cut_and_say_what_is_left(out: Path) -> None:
    assert re.search(r"… \(25 more words, mass 0\.\d\d\)", page(out))


def test_default_tokens_are_marked_only_where_there_are_any(tmp_path: Path) -> None:
    assert ", default token" in page(write_results(tmp_path / "with", n=60))
    assert ", default token" not in page(write_results(tmp_path / "without", n=60, defaults=0))


@pytest.mark.parametrize("key", ["config", "data", "verdict", "summary", "selection", "files", "versions"])
def test_a_section_can_be_missing(out: Path, key: str) -> None:
    edit(out, lambda raw: raw.pop(key))
    text = page(out)
    assert Tree(text).open == []
    assert ("Not in this report" in text) == (key not in ("files", "versions"))


def test_the_least_there_can_be(tmp_path: Path) -> None:
    save_json(tmp_path / "results.json", {"version": 1, "schemes": {"erm": {"runs": [{}]}}})
    text = written(tmp_path)
    assert Tree(text).open == []
    assert "there is no examples.json" in text
    assert "No selection model was fitted" in text


def test_schemes_that_disagree_between_seeds_show_each_verdict(tmp_path: Path) -> None:
    out = write_results(tmp_path / "out", schemes=["warm"], seeds=2, n=60)

    def disagree(raw: dict) -> None:
        raw["verdict"] = {}
        raw["schemes"]["warm"]["runs"][1]["verdict"] = "not estimable"

    edit(out, disagree)
    assert "and the mask does not tell the class / not estimable" in page(out)


def test_unusable_results_write_nothing(out: Path) -> None:
    (out / "results.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError):
        report.write(out)
    assert not (out / "report.html").exists()
    assert not (out / "figures").exists()


def test_a_rendering_that_fails_leaves_the_earlier_page(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report.write(out)
    before = {path: path.read_bytes() for path in [out / "report.html", *(out / "figures").iterdir()]}
    edit(out, lambda raw: raw.update(summary="changed"))

    def fail(*_: object) -> str:
        raise RuntimeError("template")

    monkeypatch.setattr(report, "render", fail)
    with pytest.raises(RuntimeError):
        report.write(out)
    assert {path: path.read_bytes() for path in before} == before
    assert not [path.name for path in out.rglob(".*")]


def test_a_place_that_cannot_be_written_is_an_output_error(out: Path) -> None:
    (out / "figures").write_text("a file where the folder should be")
    with pytest.raises(OutputError, match="figures"):
        report.write(out)
    assert not (out / "report.html").exists()


def test_models_are_not_loaded() -> None:
    code = (
        "import sys, causal_attn.report; "
        "print([m for m in ('torch', 'pyro', 'arviz', 'matplotlib.pyplot') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
