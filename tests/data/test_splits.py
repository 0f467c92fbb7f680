"""Every row once, duplicates on one side, classes in their shares, batches as wide as their longest row."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from causal_attn.data import from_datasets
from causal_attn.data.splits import Split, least_per_class, pad_collate, stratified_split, subsample
from causal_attn.errors import DataError, InputError


def labels(*counts: int) -> np.ndarray:
    return np.repeat(np.arange(len(counts)), counts)


@pytest.mark.parametrize("counts", [(50, 50), (90, 30), (200, 20, 40), (101, 57), (10, 10), (11, 13, 17)])
def test_every_row_once_and_stratified_within_one_row(counts: tuple[int, ...]) -> None:
    y = labels(*counts)
    sides = stratified_split(y, range(len(y)), seed=3)
    assert sorted(np.concatenate(sides)) == list(range(len(y)))
    for side, share in zip(sides, (0.8, 0.1, 0.1)):
        held = np.bincount(y[side], minlength=len(counts))
        assert (np.abs(held - share * np.array(counts)) <= 1 + 1e-9).all()


def test_the_seed_decides_the_split_and_its_order() -> None:
    y = labels(40, 40)
    first, again, other = (stratified_split(y, range(80), seed=seed) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again))
    assert set(first[2]) != set(other[2])
    assert not (np.diff(y[first[0]]) >= 0).all()  # sorted by label in the source, mixed here


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40)), min_size=1, max_size=200), st.integers(0, 99))
def test_rows_with_one_key_are_never_on_two_sides(extra: list[tuple[int, int]], seed: int) -> None:
    y = np.concatenate([labels(20, 21), [k for k, _ in extra]])
    keys = [*range(41), *(key for _, key in extra)]  # extra rows repeat keys, some with the other class
    sides = stratified_split(y, keys, seed=seed)
    held = [{keys[i] for i in side} for side in sides]
    assert not held[0] & held[1]
    assert not held[0] & held[2]
    assert not held[1] & held[2]
    assert sum(len(side) for side in sides) == len(y)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(10, 40), min_size=2, max_size=6), st.integers(0, 99))
def test_ten_different_texts_of_each_class_always_suffice(counts: list[int], seed: int) -> None:
    y = labels(*counts)
    for side in stratified_split(y, range(len(y)), seed=seed):
        assert set(y[side]) == set(range(len(counts)))
    assert least_per_class() == 10


@pytest.mark.parametrize("counts", [(50, 3), (2, 2), (4, 1), (30, 2, 2)])
def test_too_few_rows_name_the_class_and_the_least_number(counts: tuple[int, ...]) -> None:
    y = labels(*counts)
    rarest = "abc"[int(np.argmin(counts))]
    with pytest.raises(DataError, match=rf"label '{rarest}'.*at least 10 different texts.*got {min(counts)}$"):
        stratified_split(y, range(len(y)), class_names="abc"[: len(counts)])


def test_repeated_texts_do_not_count_as_different() -> None:
    with pytest.raises(DataError, match=r"label '0': .* got 2$"):
        stratified_split(labels(50, 50), [0, 1] * 25 + list(range(2, 52)))


def test_a_subsample_keeps_the_classes_shares() -> None:
    y = labels(300, 100)
    chosen = subsample(y, 40, seed=0)
    assert np.bincount(y[chosen]).tolist() == [30, 10]
    assert (subsample(y, 40, seed=0) == chosen).all()
    assert (subsample(y, 40, seed=1) != chosen).any()
    assert len(subsample(y, 400, seed=0)) == len(subsample(y, 10**6, seed=0)) == 400
    assert len(subsample(y, 399, seed=0)) == 399
    with pytest.raises(InputError, match=r"limit: expected at least 20 rows .* got 19"):
        subsample(y, 19, seed=0)


# ---------------------------------------------------------------------------------------------- Split


def sequences(*lengths: int) -> list[tuple[torch.Tensor, int]]:
    return [(torch.arange(1, n + 1), i % 2) for i, n in enumerate(lengths)]


def test_a_batch_is_padded_with_zero_to_its_longest_row() -> None:
    rows = sequences(3, 1, 2)
    split = Split(rows, torch.tensor([0, 1, 0]), pad_collate)
    x, y = split.batch([1, 2])
    assert x.tolist() == [[1, 0], [1, 2]]
    assert (x.dtype, y.dtype, y.tolist()) == (torch.int64, torch.int64, [1, 0])
    assert split.batch(torch.tensor([True, False, False]))[0].tolist() == [[1, 2, 3]]
    assert split.batch(torch.tensor([-1]))[0].tolist() == [[1, 2]]
    assert [len(x) for x, _ in split] == [3, 1, 2]


@pytest.mark.parametrize("index", [[], [3], [-4], [0.5], torch.zeros(2, 2, dtype=torch.int64), [True, False]])
def test_a_batch_refuses_rows_that_are_not_there(index: object) -> None:
    split = Split(sequences(3, 1, 2), torch.tensor([0, 1, 0]), pad_collate)
    with pytest.raises(InputError, match="index: expected"):
        split.batch(index)
    with pytest.raises(IndexError):
        split[3]


def test_a_split_without_text_has_no_tokens() -> None:
    with pytest.raises(InputError, match="tokens: expected a split made from text"):
        Split(sequences(3), torch.tensor([0]), pad_collate).tokens(0)


# ---------------------------------------------------------------------------------------------- from_datasets


def images(n: int, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.rand(n, 2, 3, generator=generator), torch.arange(n) % 3)


def test_images_are_stacked() -> None:
    data = from_datasets(images(9), images(6), images(3), name="images")
    assert (data.n_classes, data.name, data.vocabulary, data.class_names) == (3, "images", None, ("0", "1", "2"))
    assert data.train.lengths is None
    x, y = data.test.batch([2, 0])
    assert torch.equal(x, images(3).tensors[0][[2, 0]])
    assert y.tolist() == [2, 0]
    batches = list(DataLoader(data.train, batch_size=4, collate_fn=data.collate))
    assert [len(y) for _, y in batches] == [4, 4, 1]
    assert data.split("valid") is data.valid
    with pytest.raises(InputError, match="split: expected 'train', 'valid' or 'test', got 'dev'"):
        data.split("dev")


def test_token_sequences_are_padded_and_have_lengths() -> None:
    data = from_datasets(sequences(3, 1, 2, 5), sequences(2, 2), sequences(1, 4))
    assert data.train.lengths is not None
    assert data.train.lengths.tolist() == [3, 1, 2, 5]
    assert data.test.batch([0, 1])[0].shape == (2, 4)


def test_mappings_and_a_collate_of_the_users_own() -> None:
    rows = [({"ids": torch.tensor([i, i]), "w": torch.tensor(0.5)}, float(i % 2)) for i in range(4)]
    x, y = from_datasets(rows, rows, rows).train.batch([1, 3])
    assert x["ids"].tolist() == [[1, 1], [3, 3]]
    assert y.tolist() == [1, 1]

    def own(batch: list) -> tuple[list, torch.Tensor]:
        return [x for x, _ in batch], torch.tensor([y for _, y in batch])

    data = from_datasets(rows, rows, rows, collate=own)
    x, y = data.valid.batch([2, 1])
    assert [len(item) for item in x] == [2, 2]
    assert (y.tolist(), y.dtype) == ([0, 1], torch.int64)


class Stream:
    def __iter__(self) -> None: ...


good = sequences(2, 2)


@pytest.mark.parametrize(
    ("train", "valid", "options", "message"),
    [
        ([], good, {}, "train: expected at least one row, got none"),
        (Stream(), good, {}, "train: expected a Dataset with __len__ and __getitem__, got Stream"),
        ([*good, torch.ones(2)], good, {}, r"train: row 3: expected a pair \(x, y\), got Tensor"),
        ([*good, (torch.ones(2), 0.5)], good, {}, "train: row 3: expected an integer label, got 0.5"),
        ([*good, (torch.ones(2), "pos")], good, {}, "train: row 3: expected an integer label, got 'pos'"),
        ([*good, (torch.ones(2), float("nan"))], good, {}, "train: row 3: expected an integer label, got nan"),
        (
            [*good, (torch.ones(2), torch.tensor([0, 1]))],
            good,
            {},
            "train: row 3: expected an integer label, got tensor",
        ),
        ([*good, (torch.ones(2), -1)], good, {}, "train: row 3: expected a label in 0..K-1, got -1"),
        (good, [*good, (torch.ones(2), 2)], {}, r"valid: row 3: expected a label in 0\.\.1, got 2"),
        ([*good, (torch.ones(2), 3)], good, {}, r"train: expected every class of 0\.\.3, class 2 has no row"),
        (good, good, {"n_classes": 3}, r"train: expected every class of 0\.\.2, class 2 has no row"),
        (good[:1], good[:1], {}, "train: expected at least two classes"),
        ([*good, (torch.tensor([], dtype=torch.int64), 0)], good, {}, "train: row 3: .* got an empty one"),
    ],
)
def test_bad_datasets_are_refused_by_name_and_row(train: object, valid: object, options: dict, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        from_datasets(train, valid, good, **options)
    assert "\n" not in str(caught.value)
