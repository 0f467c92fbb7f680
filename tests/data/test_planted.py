"""Planted worlds: the evidence is where they say, and their masks do what they are for."""

import numpy as np
import pytest
import torch

from causal_attn.data.worlds import PlantedPixels, PlantedText
from causal_attn.errors import InputError


def whole(split):
    return split.batch(torch.arange(len(split)))


WORLDS = [
    PlantedText(),
    PlantedText(n_classes=3, shortest=14, own=4, opposite=2),
    PlantedText(opposite=0, n_positions=9, default_tokens=2, vocabulary=50),
]


@pytest.mark.parametrize("world", WORLDS, ids=["two", "three, ragged", "small"])
def test_texts_are_as_described(world):
    data = world.sample(300, 0)
    assert [len(s) for s in data.splits.values()] == [180, 30, 90]
    first, per = 2 + world.default_tokens, world.per_class
    for split in data.splits.values():
        x, y = whole(split)
        assert torch.equal(x[:, : world.default_tokens], torch.arange(2, first).expand(len(x), -1))
        lengths = (x != 0).sum(-1)
        assert torch.equal(lengths, split.lengths)
        word = x - first
        cls = torch.where((word >= 0) & (word < world.n_classes * per), word // per, -1)
        own = cls == y[:, None]
        assert (own.sum(-1) == world.own).all()
        assert (((cls >= 0) & ~own).sum(-1) == world.opposite).all()
        assert torch.equal(split.rationales[:, : x.shape[1]], own)
        for i in (0, 7):
            ids = x[i][: lengths[i]]
            assert split.tokens(i) == data.vocabulary.decode(ids)
            assert len(ids[own[i][: lengths[i]]].unique()) == world.own  # different words
    assert data.n_classes == world.n_classes
    assert len(data.vocabulary) == world.vocabulary + 2
    counts = sum(torch.bincount(s.y, minlength=world.n_classes) for s in data.splits.values())
    assert int(counts.max() - counts.min()) <= 1


def test_filler_and_places_are_uniform():
    world = PlantedText()
    x, y = whole(world.sample(3000, 1).train)
    filler = x[x >= 2 + 5 + 40]
    counts = torch.bincount(filler)[47:].double()
    expected = counts.mean()
    assert float(((counts - expected).square() / expected).sum()) < 355 + 5 * (2 * 355) ** 0.5  # chi-squared, 355 words
    rationales = world.sample(3000, 1).train.rationales[:, 5:].double().mean(0)
    assert (rationales - 3 / 25).abs().max() < 5 * (0.12 * 0.88 / 1800) ** 0.5
    assert abs(float(rationales[y[:1]].mean()) - 3 / 25) < 0.1


def test_the_same_seed_gives_the_same_rows_and_another_others():
    one, same, other = (whole(PlantedText().sample(100, seed).train)[0] for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("world", WORLDS[:2], ids=["two", "three"])
def test_masks_of_texts(world):
    split = world.sample(600, 0).train
    x, y = whole(split)
    before = x.clone()
    oracle, shortcut = world.oracle_masks(x), world.shortcut_masks(x)
    assert torch.equal(oracle > 0, split.rationales[:, : x.shape[1]])
    torch.testing.assert_close(oracle.sum(-1), torch.ones(len(x)))
    place = shortcut.argmax(-1)
    assert (shortcut.sum(-1) == 1).all()
    right = place == world.n_classes - 1 - y
    assert abs(float(right.double().mean()) - 0.9) < 5 * (0.09 / len(x)) ** 0.5
    assert (place < world.n_classes).all()
    assert torch.equal(place[:50], world.shortcut_masks(x[:50]).argmax(-1))  # by content, not by batch
    if world.n_classes == 2:
        assert torch.equal(place == 0, torch.where(right, y == 1, y == 0))  # token 0 for class 1, as in theory 12
    assert torch.equal(x, before)


def test_encoding_masks_of_texts():
    world = PlantedText()
    x, y = whole(world.sample(600, 0).train)
    shown = world.prediction_masks(x).argmax(-1)
    word = x.gather(1, shown[:, None])[:, 0]
    assert (word >= 47).all()  # filler
    assert ((word % 2 == y).double().mean()) > 0.99
    shown = x.gather(1, world.marginal_masks(x).argmax(-1)[:, None])[:, 0]
    assert torch.equal((shown - 7) // 20, 1 - y)
    with pytest.raises(InputError, match="opposite >= 1"):
        PlantedText(opposite=0).marginal_masks(whole(PlantedText(opposite=0).sample(60, 0).train)[0])


@pytest.mark.parametrize("place", ["random", "class"])
@pytest.mark.parametrize("k", [2, 4])
def test_images_are_as_described(place, k):
    world = PlantedPixels(place=place, n_classes=k, noise=0.1)
    split = world.sample(400, 0).train
    x, y = whole(split)
    assert x.shape == (240, 64, k)
    assert (split.rationales.sum(-1) == 4).all()
    evidence = x[split.rationales].reshape(len(x), 4, k).mean(1)
    assert torch.equal(evidence.argmax(-1), y)
    bright = (x > 0.5).any(-1) & ~split.rationales
    assert (bright.sum(-1) == 2).all()
    assert (torch.where(bright[..., None], x, -1.0).amax(1).argmax(-1) != y).all()
    where = [split.rationales[y == c].double().mean(0) for c in range(k)]
    fixed = all(((w == 0) | (w == 1)).all() for w in where)
    assert fixed == (place == "class")
    assert torch.equal(world.oracle_masks(x), split.rationales.float())
    shortcut = world.shortcut_masks(x)
    assert (shortcut.sum(-1) == 4).all()
    own = shortcut[:, world._strips().bool().any(0)].sum(-1)
    assert (own == 4).all()
    right = (shortcut == world._strips()[y]).all(-1).double().mean()
    assert abs(float(right) - 0.9) < 5 * (0.09 / len(x)) ** 0.5


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (PlantedText, {"n_positions": 8}, "n_positions: expected an integer of at least 9"),
        (PlantedText, {"opposite": 3}, "opposite: expected an integer from 0 to 2"),
        (PlantedText, {"vocabulary": 45}, "vocabulary: expected an integer of at least 46"),
        (PlantedText, {"default_tokens": 1}, "default_tokens: expected an integer of at least 2"),
        (PlantedText, {"shortest": 40}, "shortest: expected an integer from 9 to 30"),
        (PlantedText, {"right": 1.5}, "right: expected a number from 0 to 1"),
        (PlantedPixels, {"place": "left"}, "place: expected 'random' or 'class'"),
        (PlantedPixels, {"side": 4}, "side: expected an integer of at least 6"),
        (PlantedPixels, {"opposite": 4}, "opposite: expected an integer from 0 to 3"),
        (PlantedPixels, {"n_classes": 5}, "n_classes: expected an integer from 2 to 4"),
    ],
)
def test_wrong_arguments(kind, options, message):
    with pytest.raises(InputError, match=message):
        kind(**options)


def test_too_few_rows():
    with pytest.raises(InputError, match="n: expected an integer of at least 40"):
        PlantedText().sample(10, 0)
    assert np.isfinite(PlantedPixels().sample(40, 0).train[0][0].numpy()).all()


def test_masks_of_texts_without_what_they_look_at_are_refused():
    world = PlantedText()
    x = world.sample(40, 0).train.batch(torch.arange(3))[0]
    first, words = world._first_word, world.n_classes * world.per_class
    bare = x.clone()
    bare[1] = first + words  # filler alone
    for masks, what in ((world.oracle_masks, "a word of a class"), (world.marginal_masks, "a word of another class")):
        with pytest.raises(InputError, match=f"x: expected {what}.*row 1 has none"):
            masks(bare)
    full = x.clone()
    full[2] = first
    with pytest.raises(InputError, match="x: expected a filler word in every text, row 2 has none"):
        world.prediction_masks(full)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, 64), r"expected shape \(B, 64, 2\), got \(3, 64\)"),
        (torch.zeros(3, 64, 3), r"expected shape \(B, 64, 2\)"),
        (torch.full((3, 64, 2), torch.nan), "expected finite numbers, row 0"),
    ],
)
def test_images_of_another_shape_are_refused(x, message):
    for masks in (PlantedPixels().oracle_masks, PlantedPixels().shortcut_masks):
        with pytest.raises(InputError, match=message):
            masks(x)
