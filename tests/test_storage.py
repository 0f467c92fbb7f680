import numpy as np
import pytest

from causal_attn.errors import InputError, OutputError
from causal_attn.storage import load_arrays, save_arrays, save_json, whole_file

SUFFIXES = (".npz", ".safetensors")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_and_metadata_come_back_as_they_went(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    arrays = {"x": np.arange(12.0).reshape(3, 4).T, "flag": np.array([True, False]), "n": np.array([2**40])}
    save_arrays(path, arrays, {"kind": "größe"})
    got, meta = load_arrays(path)
    assert meta == {"kind": "größe"}
    assert got.keys() == arrays.keys()
    for name, array in arrays.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing_beside_it(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    save_arrays(path, {"x": np.ones(3)}, {})
    with pytest.raises(Exception, match=r".+"):
        save_arrays(path, {"x": np.array([object()])} if suffix == ".safetensors" else {"x": _Unreadable()}, {})
    np.testing.assert_array_equal(load_arrays(path)[0]["x"], np.ones(3))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


class _Unreadable:
    def __array__(self, *args, **kwargs):
        raise RuntimeError("broken halfway")


def test_an_interrupted_block_never_shows_a_half_written_file(tmp_path):
    def write_half():
        with whole_file(tmp_path / "out.json") as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written_are_told_as_output_errors(tmp_path):
    with pytest.raises(OutputError, match="cannot be written"):
        save_arrays(tmp_path / "missing" / "a.npz", {"x": np.ones(1)}, {})
    (tmp_path / "dir.npz").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        save_arrays(tmp_path / "dir.npz", {"x": np.ones(1)}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["dir.npz"]


def test_other_suffixes_and_missing_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"path: .*\.npz or \.safetensors"):
        save_arrays(tmp_path / "a.pkl", {"x": np.ones(1)}, {})
    with pytest.raises(InputError, match="path: no file at"):
        load_arrays(tmp_path / "a.npz")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("damage", ["garbage", "cut", "flipped", "empty"])
def test_damaged_files_are_input_errors(tmp_path, suffix, damage):
    path = tmp_path / f"a{suffix}"
    save_arrays(path, {"x": np.random.default_rng(0).random((50, 20))}, {})
    raw = bytearray(path.read_bytes())
    if damage == "flipped" and suffix == ".safetensors":
        raw[:8] = b"\xff" * 8  # the header's length; the numbers themselves carry no checksum
    elif damage == "flipped":
        raw[200:260] = bytes(255 - b for b in raw[200:260])
    path.write_bytes({"garbage": b"no arrays here" * 9, "cut": bytes(raw[:300]), "empty": b""}.get(damage, bytes(raw)))
    with pytest.raises(InputError, match="cannot be read as arrays"):
        load_arrays(path)


def test_pickles_and_bare_arrays_are_refused(tmp_path):
    with (tmp_path / "pickled.npz").open("wb") as file:
        np.savez(file, x=np.array([{}], dtype=object))
    with (tmp_path / "bare.npz").open("wb") as file:
        np.save(file, np.ones(3))
    for name in ("pickled.npz", "bare.npz"):
        with pytest.raises(InputError, match="cannot be read as arrays"):
            load_arrays(tmp_path / name)


def test_json_refuses_what_it_has_no_word_for(tmp_path):
    path = tmp_path / "a.json"
    save_json(path, {"ä": [1, None]})
    assert path.read_text(encoding="utf-8") == '{\n  "ä": [\n    1,\n    null\n  ]\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        save_json(path, float("nan"))
    assert "ä" in path.read_text(encoding="utf-8")
