import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy

from causal_attn.errors import InputError
from causal_attn.masks import (
    CLR_FLOOR,
    N_FROM_END,
    FeatureMap,
    MaskSample,
    centred_log_ratio,
    concentration,
    from_the_end,
    moved,
    top_k,
)

GOOD = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.9, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
Y = [0, 1, 1]
VALID = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]], dtype=torch.bool)
quick = settings(deadline=None, max_examples=40)


def with_row(row, values):
    masks = GOOD.clone()
    masks[row] = torch.tensor(values, dtype=torch.float64)
    return masks


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"masks": with_row(1, [float("nan"), 0.5, 0.5])}, "masks: .*finite.*row 1 position 0 is nan"),
        ({"masks": with_row(2, [0.0, float("inf"), 0.0])}, "masks: .*finite.*row 2 position 1 is inf"),
        ({"masks": with_row(1, [0.6, 0.6, -0.2])}, "masks: .*non-negative.*row 1 position 2 is -0.2"),
        ({"masks": with_row(1, [0.1, 0.5, 0.3])}, "masks: .*sum to 1.*row 1 sums to 0.9"),
        ({"masks": with_row(2, [0.0, 0.0, 0.0])}, "masks: .*sum to 1.*row 2 sums to 0"),
        ({"masks": with_row(1, [0.5, 0.3, 0.2]), "valid": VALID}, "masks: .*padding, row 1 has it at position 2"),
        ({"valid": [[1, 1, 1], [0, 0, 0], [1, 0, 0]]}, "valid: .*row 1 is all padding"),
        ({"valid": [[1, 1, 1], [1, 1, 2], [1, 0, 0]]}, "valid: .*row 1 has another value"),
        ({"valid": [[1, 1], [1, 1], [1, 0]]}, r"valid: expected the shape of masks, \(3, 3\), got \(3, 2\)"),
        ({"y": [0, 3, 1], "n_classes": 2}, r"y: expected labels in 0\.\.1, row 1 is 3"),
        ({"y": [0, -1, 1]}, r"y: expected labels in 0\.\.K-1, row 1 is -1"),
        ({"y": [0.0, 1.0, 0.5]}, "y: expected integers.*row 2 is 0.5"),
        ({"y": [0.0, float("nan"), 1.0]}, "y: expected integers.*row 1 is nan"),
        ({"y": [True, False, True]}, "y: expected integers.*bool"),
        ({"y": ["a", "b", "b"]}, "y: expected integers 0..K-1, row 0 is 'a'; number the classes first"),
        ({"y": [0, 1]}, r"y: expected shape \(3,\), got \(2,\)"),
        ({"y": [[0], [1], [1]]}, r"y: expected shape \(3,\), got \(3, 1\)"),
        ({"masks": torch.ones(3)}, r"masks: expected shape \(n, T\).*got \(3,\)"),
        ({"masks": torch.ones(0, 3), "y": []}, r"masks: expected shape \(n, T\).*got \(0, 3\)"),
        ({"masks": torch.ones(3, 0)}, r"masks: expected shape \(n, T\).*got \(3, 0\)"),
        ({"masks": [[1.0], [0.5, 0.5]]}, "masks: expected an array of numbers"),
        ({"masks": GOOD + 0j}, "masks: expected real numbers"),
        ({"kind": "subset"}, "masks: expected only 0 and 1 for kind='subset', row 0"),
        ({"kind": "hard"}, "kind: expected 'simplex', 'subset' or None, got 'hard'"),
        ({"masks": torch.tensor([[1, 1], [0, 1], [0, 0]])}, "masks: .*at least one chosen position, row 2"),
        ({"masks": torch.tensor([[1, 0], [1, 1], [0, 1]]), "kind": "simplex"}, "masks: .*row 1 sums to 2"),
        ({"n_classes": 0}, "n_classes: .*got 0"),
        ({"n_classes": 2.0}, "n_classes: .*got 2.0"),
        ({"n_classes": True}, "n_classes: .*got True"),
        ({"x_features": [[1.0], [float("nan")], [2.0]]}, "x_features: .*row 1"),
        ({"x_features": [1.0, 2.0, 3.0]}, r"x_features: expected shape \(3, p\)"),
        ({"groups": [1, 2]}, r"groups: expected shape \(3,\)"),
    ],
)
def test_bad_input_is_refused_by_name_and_first_row(arguments, message):
    with pytest.raises(InputError, match=message):
        MaskSample(**{"masks": GOOD, "y": Y, **arguments})


# ------------------------------------------------------------------------------------------------ what is read


@pytest.mark.parametrize(
    ("convert", "dtype"),
    [
        (lambda m: m, torch.float64),
        (lambda m: m.float(), torch.float32),
        (lambda m: m.half(), torch.float32),
        (lambda m: m.bfloat16(), torch.float32),
        (lambda m: m.numpy(), torch.float64),
        (lambda m: m.numpy().astype(np.float16), torch.float32),
        (lambda m: m.tolist(), torch.float64),
        (lambda m: m.T.contiguous().T, torch.float64),
        (lambda m: m.clone().requires_grad_(), torch.float64),
        (lambda m: torch.stack([m, m], 1)[:, 0], torch.float64),
    ],
)
def test_every_usual_array_is_read(convert, dtype):
    given_masks = convert(GOOD)
    sample = MaskSample(given_masks, Y, VALID)
    assert (sample.n, sample.T, sample.n_classes, sample.kind) == (3, 3, 2, "simplex")
    assert sample.masks.dtype == dtype
    expected = torch.as_tensor(given_masks).detach().to(dtype)
    torch.testing.assert_close(sample.masks, expected, rtol=0, atol=0)
    torch.testing.assert_close(sample.prior, torch.tensor([1 / 3, 2 / 3]).double())


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float16, torch.float64])
def test_zero_one_masks_are_subsets_in_any_type(dtype):
    sample = MaskSample(torch.tensor([[1, 1, 0], [0, 0, 1]]).to(dtype), [0, 1])
    assert sample.kind == "subset"
    assert sample.masks.tolist() == [[1, 1, 0], [0, 0, 1]]
    assert MaskSample(torch.eye(2).to(dtype), [0, 1]).kind == "simplex"
    assert MaskSample(torch.eye(2).to(dtype), [0, 1], kind="subset").kind == "subset"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_masses_survive(dtype):
    masks = torch.tensor([[1.0, 1e-30], [1e-30, 1.0]], dtype=dtype)
    sample = MaskSample(masks, [0, 1])
    assert torch.equal(sample.masks, masks)
    assert torch.isfinite(FeatureMap.fit(sample)(sample.masks, sample.valid)).all()


def test_inputs_are_neither_shared_nor_changed():
    masks, y, valid = GOOD.numpy().copy(), np.array(Y), VALID.numpy().copy()
    sample = MaskSample(masks, y, valid)
    masks[:], y[:], valid[:] = 0, 0, False
    assert torch.equal(sample.masks, GOOD)
    assert sample.y.tolist() == Y
    assert torch.equal(sample.valid, VALID)
    tensor = GOOD.clone()
    MaskSample(tensor, Y).masks.zero_()
    assert torch.equal(tensor, GOOD)
    with pytest.raises(AttributeError):
        sample.y = torch.zeros(3)


def half_precision_sample(shift=1.003):
    soft = torch.randn(20, 40, generator=torch.Generator().manual_seed(0)).softmax(-1)
    return (soft * shift).half(), torch.arange(20) % 2


def test_half_precision_sums_stay_readable_downstream(tmp_path):
    masks, y = half_precision_sample()  # rows sum to 1.003: within half precision's tolerance, not within float32's
    sample = MaskSample(masks, y)
    assert sample.rows([1, 3]).n == 2
    assert MaskSample(sample.masks, y).n == 20
    sample.save(tmp_path / "a.npz")
    assert torch.equal(MaskSample.load(tmp_path / "a.npz").masks, sample.masks)
    with pytest.raises(InputError, match="sum to 1"):
        MaskSample(half_precision_sample(1.02)[0], y)
    with pytest.raises(InputError, match="sum to 1"):
        MaskSample(GOOD.float() * 1.003, Y)


def test_rows_keep_the_number_of_classes_and_every_field():
    sample = MaskSample(GOOD, Y, VALID, n_classes=4, x_features=[[1.0], [2.0], [3.0]], groups=["b", "a", "b"])
    part = sample.rows([2, 0])
    assert (part.n_classes, part.y.tolist()) == (4, [1, 0])
    assert part.groups[0] == part.groups[1]  # ids are numbered anew; who shares one stays
    assert torch.equal(part.masks, GOOD[[2, 0]])
    assert torch.equal(part.valid, VALID[[2, 0]])
    assert part.x_features.tolist() == [[3.0], [1.0]]
    assert sample.rows(torch.tensor([True, False, True])).n == 2


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("extras", [{}, {"x_features": [[1.0], [2.0], [3.0]], "groups": [5, 5, 9]}])
def test_saved_samples_come_back(tmp_path, suffix, extras):
    sample = MaskSample(GOOD, Y, VALID, n_classes=5, **extras)
    sample.save(tmp_path / f"s{suffix}")
    back = MaskSample.load(tmp_path / f"s{suffix}")
    assert (back.kind, back.n_classes) == (sample.kind, 5)
    for name in ("masks", "y", "valid", "x_features", "groups"):
        mine, theirs = getattr(sample, name), getattr(back, name)
        assert (mine is None and theirs is None) or torch.equal(mine, theirs)


def test_a_file_without_masks_is_told(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    with pytest.raises(InputError, match=r"expected arrays 'masks' and 'y', found \['x'\]"):
        MaskSample.load(tmp_path / "a.npz")


# ------------------------------------------------------------------------------------------------ transformers


@pytest.fixture
def attentions():
    logits = torch.randn(2, 3, 4, 5, 5, generator=torch.Generator().manual_seed(1))
    return tuple(logits.softmax(-1))


def test_attentions_are_read_at_layer_head_and_query(attentions):
    y = [0, 1, 1]
    assert torch.equal(MaskSample.from_attentions(attentions, y).masks, attentions[1][:, :, 0].mean(1))
    one = MaskSample.from_attentions(attentions, y, layer=0, heads=2, query=3)
    assert torch.equal(one.masks, attentions[0][:, 2, 3])
    assert MaskSample.from_attentions([a.numpy() for a in attentions], y).n == 3


def test_half_precision_attentions_are_averaged(attentions):
    for heads in ("mean", 1):
        half = MaskSample.from_attentions(tuple((a * 1.003).half() for a in attentions), Y, heads=heads)
        full = MaskSample.from_attentions(attentions, Y, heads=heads)
        torch.testing.assert_close(half.masks.double(), full.masks.double() * 1.003, atol=1e-3, rtol=2e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer": 2}, "layer: expected one of 2 layers"),
        ({"heads": 4}, "heads: expected 'mean' or one of 4"),
        ({"heads": "max"}, "heads: expected 'mean'"),
        ({"query": 5}, "query: expected one of 5 positions"),
        ({"attentions": torch.ones(3, 4, 5, 5)}, "attentions: expected a tuple"),
        ({"attentions": ()}, "attentions: expected a tuple"),
        ({"attentions": (torch.ones(3, 4, 5, 6),)}, r"attentions: expected \(n, H, L, L\)"),
    ],
)
def test_bad_attentions_are_refused(attentions, change, message):
    with pytest.raises(InputError, match=message):
        MaskSample.from_attentions(**{"attentions": attentions, "y": Y, **change})


# ------------------------------------------------------------------------------------------------ features


def test_centred_log_ratio_by_hand():
    got = centred_log_ratio(GOOD, VALID)
    logs = np.log(GOOD.numpy() + CLR_FLOOR)
    by_hand = [logs[0] - logs[0].mean(), [*(logs[1, :2] - logs[1, :2].mean()), 0], [0, 0, 0]]
    np.testing.assert_allclose(got.numpy(), np.array(by_hand), atol=1e-12)


def test_concentration_agrees_with_scipy():
    mean_log, nats, log_square = concentration(GOOD, VALID).T.numpy()
    np.testing.assert_allclose(nats, entropy(GOOD.numpy(), axis=1), atol=1e-12)
    np.testing.assert_allclose(log_square, np.log((GOOD.numpy() ** 2).sum(1)), atol=1e-12)
    by_hand = [np.log(row[: int(v)] + CLR_FLOOR).mean() for row, v in zip(GOOD.numpy(), VALID.sum(1))]
    np.testing.assert_allclose(mean_log, by_hand, atol=1e-12)


@st.composite
def masks_and_validity(draw):
    """Rows on the simplex over any non-empty set of valid positions, holes included."""
    n, width = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    valid = rng.random((n, width)) < draw(st.sampled_from([0.3, 0.7, 1.0]))
    valid[np.arange(n), rng.integers(0, width, n)] = True
    masks = np.where(valid, rng.exponential(size=(n, width)), 0.0)
    return torch.from_numpy(masks / masks.sum(1, keepdims=True)), torch.from_numpy(valid)


@quick
@given(masks_and_validity(), st.integers(1, 9))
def test_from_the_end_agrees_with_a_loop(pair, width):
    values, valid = pair
    width = min(width, values.shape[1])
    expected = torch.zeros(len(values), width, dtype=torch.float64)
    for i, (row, here) in enumerate(zip(values, valid)):
        last_first = [v for v, h in zip(row.tolist(), here.tolist()) if h][::-1][:width]
        expected[i, : len(last_first)] = torch.tensor(last_first, dtype=torch.float64)
    assert torch.equal(from_the_end(values, valid, width), expected)


@quick
@given(masks_and_validity(), st.randoms(use_true_random=False))
def test_moved_agrees_with_a_loop(pair, random):
    masks, valid = pair
    there = valid[torch.tensor(random.sample(range(len(valid)), len(valid)))]
    for i, row in enumerate(moved(masks, there).tolist()):
        kept = [v if h else 0.0 for v, h in zip(masks[i].tolist(), there[i].tolist())]
        if sum(kept) == 0:
            kept = [float(h) for h in there[i].tolist()]
        np.testing.assert_allclose(row, np.array(kept) / sum(kept), atol=1e-12)
    chosen = (masks > 0).double()
    as_subset = moved(chosen, there, "subset")
    for i, row in enumerate(as_subset):
        kept = chosen[i] * there[i]
        assert torch.equal(row, kept if kept.any() else there[i].double())


@quick
@given(masks_and_validity(), st.integers(1, 12))
def test_top_k_agrees_with_a_loop(pair, k):
    masks, valid = pair
    for row, here, got in zip(masks.tolist(), valid.tolist(), top_k(masks, valid, k).tolist()):
        best = sorted((t for t, h in enumerate(here) if h and row[t] > 0), key=lambda t: -row[t])[:k]
        assert {t for t, g in enumerate(got) if g} == set(best)


def test_top_k_leaves_out_positions_without_mass():
    masks = torch.zeros(2, 13)
    masks[:, 4] = 1
    masks[1, [2, 9]] = 0.5
    valid = torch.ones(2, 13, dtype=torch.bool)
    assert top_k(masks, valid, 5).nonzero().tolist() == [[0, 4], [1, 2], [1, 4], [1, 9]]
    assert top_k(masks, valid, 2).nonzero().tolist() == [[0, 4], [1, 2], [1, 4]]  # ties by place


def ragged_sample(n=60, width=10, seed=0):
    rng = np.random.default_rng(seed)
    valid = np.arange(width) < rng.integers(3, width + 1, n)[:, None]
    masks = rng.exponential(size=(n, width)) * valid
    return MaskSample(masks / masks.sum(1, keepdims=True), rng.integers(0, 2, n), valid, n_classes=2)


def subset_sample():
    return MaskSample(torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 1]]), [0, 1, 0, 1])


def flat_sample():
    return MaskSample(GOOD, Y)


@pytest.mark.parametrize(
    ("make", "width"), [(flat_sample, 3 + 3 + 3), (subset_sample, 3), (ragged_sample, 10 + 3 + N_FROM_END + 10 + 10)]
)
def test_features_have_a_name_each_and_are_standardised(make, width):
    sample = make()
    features = FeatureMap.fit(sample)
    phi = features(sample.masks, sample.valid)
    assert phi.shape == (sample.n, width)
    assert len(set(features.names)) == width
    assert phi.dtype == torch.float64
    torch.testing.assert_close(phi.mean(0), torch.zeros(width).double(), atol=1e-9, rtol=0)
    spread = phi.std(0, correction=0)
    assert ((spread - 1).abs().lt(1e-9) | (spread == 0)).all()
    if make is ragged_sample:  # the first three positions are always valid: those indicators say nothing
        constant = [name for name, s in zip(features.names, spread.tolist()) if s == 0]
        assert constant == ["valid[0]", "valid[1]", "valid[2]"]


def test_names_point_at_the_right_columns():
    sample = ragged_sample()
    features = FeatureMap.fit(sample)
    raw = features(sample.masks, sample.valid) * torch.where(features.scale.isinf(), 0.0, features.scale)
    raw = raw + features.centre
    clr = centred_log_ratio(sample.masks, sample.valid)
    column = {name: raw[:, i] for i, name in enumerate(features.names)}
    last = sample.valid.sum(1) - 1
    torch.testing.assert_close(column["clr[2]"], clr[:, 2])
    torch.testing.assert_close(column["clr[-1]"], clr[torch.arange(sample.n), last])
    torch.testing.assert_close(column["clr[-2]"], clr[torch.arange(sample.n), last - 1])
    torch.testing.assert_close(column["valid[9]"], sample.valid[:, 9].double())
    torch.testing.assert_close(column["entropy"], torch.special.entr(sample.masks).sum(-1))


def test_narrower_masks_are_padded_and_wider_ones_refused():
    sample = ragged_sample()
    features = FeatureMap.fit(sample)
    short = torch.tensor([[0.2, 0.3, 0.5]]).double()
    here = torch.ones(1, 3, dtype=torch.bool)
    padded = torch.nn.functional.pad(short, (0, 7))
    torch.testing.assert_close(features(short, here), features(padded, padded > 0))
    with pytest.raises(InputError, match="at most the 10 positions"):
        features(torch.ones(1, 11) / 11, torch.ones(1, 11, dtype=torch.bool))


def test_features_of_new_masks_use_the_centre_and_scale_of_the_fit():
    sample = ragged_sample()
    features = FeatureMap.fit(sample)
    whole = features(sample.masks, sample.valid)
    torch.testing.assert_close(features(sample.masks[:1], sample.valid[:1]), whole[:1])


def test_own_features_are_checked():
    sample = flat_sample()
    features = FeatureMap.fit(sample, lambda m, v: m[:, :2])
    assert features.names == ("f0", "f1")
    for bad, message in [
        (lambda m, v: m[:1], r"features: expected the callable to return \(3, d\)"),
        (lambda m, v: m.log(), "features: expected finite numbers, row 1"),
        ("clr", "features: expected 'auto' or a callable"),
    ]:
        with pytest.raises(InputError, match=message):
            FeatureMap.fit(sample, bad)


def test_features_that_a_callable_hands_out_twice_are_not_written_to():
    sample = MaskSample(torch.rand(30, 4, dtype=torch.float64).softmax(-1), torch.arange(30) % 2)
    own = torch.randn(30, 3, dtype=torch.float64)
    before = own.clone()
    features, phi = FeatureMap.fit_transform(sample, lambda m, v: own)
    torch.testing.assert_close(phi, features(sample.masks, sample.valid))
    assert torch.equal(own, before)


def test_rows_are_picked_by_numbers_slices_and_bools():
    sample = MaskSample(GOOD, [0, 1, 0])
    assert sample.rows([2, -3]).y.tolist() == [0, 0]
    assert torch.equal(sample.rows(slice(1, None)).masks, GOOD[1:])
    assert sample.rows(np.array([False, True, False])).y.tolist() == [1]
    for wrong, message in (("a", "index: expected an array"), ([0.5], "index: expected row numbers or 3 bools"),
                           ([3], "index: expected row numbers below 3, entry 0 is 3"),
                           ([True], "index: expected row numbers or 3 bools")):  # fmt: skip
        with pytest.raises(InputError, match=message):
            sample.rows(wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"layer": "a"}, "layer: expected"), ({"query": 1.5}, "query: expected"), ({"heads": True}, "heads: expected"),
     ({"attentions": 5}, "attentions: expected a tuple"), ({"attentions": (None,)}, "attn_implementation='eager'")],
)  # fmt: skip
def test_wrong_types_for_attentions_are_named(change, message):
    attentions = (torch.full((2, 2, 4, 4), 0.25),)
    with pytest.raises(InputError, match=message):
        MaskSample.from_attentions(**{"attentions": attentions, "y": [0, 1], **change})


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([float("nan"), 1, 1, 2], "groups: expected an id for every row, row 0 has none"),
        (["a", None, "b", "b"], "groups: expected"),
        ([1, "1", 2, "2"], "groups: expected ids of one kind"),
    ],
)
def test_groups_that_are_missing_or_mixed_are_refused(groups, message):
    with pytest.raises(InputError, match=message):
        MaskSample(np.full((4, 2), 0.5), [0, 1, 0, 1], groups=groups)


def test_what_is_no_real_dense_number_is_named():
    masks = np.full((4, 2), 0.5)
    with pytest.raises(InputError, match="x_features: expected real numbers"):
        MaskSample(masks, [0, 1, 0, 1], x_features=masks * 1j)
    with pytest.raises(InputError, match="masks: expected a dense tensor"):
        MaskSample(torch.from_numpy(masks).to_sparse(), [0, 1, 0, 1])
    with pytest.raises(InputError, match="masks: expected an array of numbers, entry 1 is None"):
        MaskSample(np.array([[0.5, None]] * 4, dtype=object), [0, 1, 0, 1])
