"""Masks of other programs: every format gives the same sample, and what cannot be read is named."""

import numpy as np
import pandas as pd
import pytest
import torch

from causal_attn.data.mask_files import read_masks
from causal_attn.data.worlds import Ends, Gaussian
from causal_attn.errors import DataError, InputError


def table_of(sample, names=("no", "yes"), digits=None):
    masks = sample.masks.numpy().copy()
    masks = masks if digits is None else masks.round(digits)
    masks[~sample.valid.numpy()] = np.nan
    table = pd.DataFrame(masks, columns=[f"m{t}" for t in range(sample.T)])
    table.insert(0, "label", [names[k] for k in sample.y.tolist()])
    return table


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_a_table_gives_the_sample_back_varying_lengths_included(tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    sample = Ends().sample(40, 0)
    table, path = table_of(sample), tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, sep="," if suffix == ".csv" else "\t", index=False, float_format="%.17g")
    read, names = read_masks(path)
    assert names == ("no", "yes")
    assert torch.equal(read.y, sample.y)
    assert torch.equal(read.valid, sample.valid)
    torch.testing.assert_close(read.masks, sample.masks.double(), atol=1e-15, rtol=0)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_arrays_give_the_sample_back(tmp_path, suffix):
    sample = Gaussian(n_classes=3).sample(20, 0)
    sample.save(tmp_path / f"a{suffix}")
    read, names = read_masks(tmp_path / f"a{suffix}")
    assert torch.equal(read.masks, sample.masks)
    assert names == ("0", "1", "2")
    np.savez(tmp_path / "plain.npz", masks=sample.masks.numpy(), y=sample.y.numpy())
    assert torch.equal(read_masks(tmp_path / "plain.npz")[0].masks, sample.masks)


def test_numbers_as_labels_are_ordered_by_size_and_groups_are_kept(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("mask_1,label,mask_0,group\n0.5,10,0.5,a\n0.2,2,0.8,a\n1.0,2,0.0,b\n")
    sample, names = read_masks(path)
    assert names == ("2", "10")
    assert sample.y.tolist() == [1, 0, 0]
    assert sample.masks[1].tolist() == [0.8, 0.2]
    assert sample.groups.tolist() == [0, 0, 1]


def test_rounded_rows_are_refused_unless_normalising_is_asked_for(tmp_path):
    sample, path = Gaussian(n_positions=6).sample(30, 0), tmp_path / "a.csv"
    table_of(sample, digits=2).to_csv(path, index=False)
    with pytest.raises(InputError, match=r"masks: expected rows that sum to 1 .* use --normalise"):
        read_masks(path)
    read, _ = read_masks(path, normalise=True)
    torch.testing.assert_close(read.masks.sum(-1), torch.ones(30, dtype=torch.float64))
    path.write_text("label,m0,m1\n0,0.5,0.5\n1,0.5,0.4\n")
    with pytest.raises(InputError, match=r"normalise: .* row 1 sums to 0.9"):
        read_masks(path, normalise=True)


CASES = {
    "unknown": ("label,m0,m1,length\n0,0.5,0.5,2\n", "unknown: length"),
    "no label": ("y,m0,m1\n0,0.5,0.5\n", "unknown: y"),
    "no masks": ("label,group\n0,a\n", "found label, group"),
    "gap": ("label,m0,m2\n0,0.5,0.5\n", "one column for each of m0 to m2; missing: m1"),
    "text": ("label,m0,m1\n0,0.5,0.5\n1,half,0.5\n", "row 2, column m0: expected a number, got 'half'"),
    "infinite": ("label,m0,m1\n0,inf,0.5\n", "row 1, column m0: expected a number"),
    "empty label": ("label,m0,m1\n0,0.5,0.5\n,0.5,0.5\n", "row 2: the label is empty"),
    "no rows": ("label,m0,m1\n", "there are no rows"),
    "empty": ("", "cannot be read as a table"),
    "ragged": ("label,m0,m1\n0,0.5,0.5\n1,0.5,0.5,3,4\n", "row 2: expected 3 fields as in the header, got 5"),
}


@pytest.mark.parametrize("case", CASES)
def test_tables_that_cannot_be_read_are_named(tmp_path, case):
    path = tmp_path / "a.csv"
    path.write_text(CASES[case][0])
    with pytest.raises((DataError, InputError), match=CASES[case][1]):
        read_masks(path)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_masks(tmp_path / "none.npz")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match="expected a name ending in"):
        read_masks(tmp_path / "a.txt")
    np.savez(tmp_path / "a.npz", masks=np.eye(2), y=[0, 1], logits=[1, 2])
    with pytest.raises(DataError, match="unknown: logits"):
        read_masks(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", masks=np.eye(2))
    with pytest.raises(DataError, match=r"expected arrays masks, y .* found masks"):
        read_masks(tmp_path / "b.npz")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label,m0,m1\nneg,1,0,\npos,0,1,\n", "row 1: expected 3 fields as in the header, got 4"),
        ("label,m0,m1\n0,neg,.5,.5\n1,pos,.5,.5\n", "row 1: expected 3 fields as in the header, got 4"),
        ("label,m0,m1\nneg,.5,.5\npos,1\n", "row 2: expected 3 fields as in the header, got 2"),
        ("label,group,m0,m1\na,g,.5,.5\nb,,.5,.5\n", "row 2: the group is empty"),
    ],
)
def test_rows_of_another_width_are_refused_not_shifted(tmp_path, text, message):
    path = tmp_path / "masks.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_masks(path)


def test_a_type_that_numpy_lacks_is_named(tmp_path):
    from safetensors.torch import save_file

    save_file(
        {"masks": torch.full((4, 2), 0.5, dtype=torch.bfloat16), "y": torch.arange(4) % 2}, tmp_path / "a.safetensors"
    )
    with pytest.raises(InputError, match=r"array 'masks' .* is BF16; expected a type that NumPy has"):
        read_masks(tmp_path / "a.safetensors")
