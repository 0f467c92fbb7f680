"""Shortcuts made on purpose: each start is what it says, and joint training follows."""

import numpy as np
import pytest
import torch

from causal_attn.attention import TextAttention
from causal_attn.data.worlds import PlantedText
from causal_attn.errors import InputError
from causal_attn.faithfulness import shortcut_test
from causal_attn.training import SkewedGenerator, SkewedPredictor, train
from causal_attn.training.loop import _Run
from tests.training.toys import token_data


def small(data, **options):
    return TextAttention.for_data(data, "pooled", embedding=8, hidden=8, **options)


@pytest.fixture(scope="module")
def planted():
    return PlantedText(n_positions=12, vocabulary=60, default_tokens=2, per_class=6).sample(600, 0)


def test_a_skewed_generator_is_found_by_the_test():
    planted = PlantedText().sample(2000, 0)
    model = TextAttention.for_data(planted, "pooled", embedding=16, hidden=16)
    result = train(model, planted, SkewedGenerator(0.9), epochs=10, progress=False)
    phases = result.history["phase"].tolist()
    assert phases[0] == "skewed masks"
    assert phases[-10:] == ["joint"] * 10
    skewed = result.history[result.history["phase"] == "skewed masks"]
    assert 0.9 <= skewed["valid_accuracy"].iloc[-1] < 0.95
    test = shortcut_test(result, n_permutations=40, progress=False)
    assert test.verdict.startswith("shortcut")
    assert test.excess_reliance > 0.2


def test_the_skewing_phase_trains_masks_alone_and_ends_when_accurate(planted, monkeypatch):
    seen = []
    original = _Run.phase

    def watched(self, *args):
        before = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        original(self, *args)
        seen.append({name for name, p in self.model.named_parameters() if not torch.equal(p, before[name])})

    monkeypatch.setattr(_Run, "phase", watched)
    easy = train(small(planted), planted, SkewedGenerator(0.5), epochs=2, progress=False)
    hard = train(small(planted), planted, SkewedGenerator(0.95), epochs=2, progress=False)
    assert all(name.startswith("attention") for name in seen[0])
    lengths = [int((r.history["phase"] == "skewed masks").sum()) for r in (easy, hard)]
    assert lengths[0] < lengths[1]


def test_a_first_sentence_ends_at_its_mark():
    split = token_data(40).train
    masks = SkewedPredictor(tokens=3).first_sentence(split)
    assert torch.equal((masks > 0).sum(-1), split.lengths.clamp(max=3))
    torch.testing.assert_close(masks.sum(-1), torch.ones(len(split)))


class Told:
    """A split of given texts."""

    def __init__(self, *texts):
        self.words = [text.split() for text in texts]
        self.texts, self.lengths = texts, torch.tensor([len(w) for w in self.words])

    def __len__(self):
        return len(self.words)

    def tokens(self, i):
        return self.words[i]


def test_marks_end_sentences_and_default_tokens_are_not_in_them():
    split = Told("d1 good film . bad end", "d1 no marks at all here", "d1 . what ? yes")
    masks = SkewedPredictor(tokens=2).first_sentence(split, 1)
    shown = [np.flatnonzero(row).tolist() for row in masks.numpy()]
    assert shown == [[1, 2, 3], [1, 2], [1, 2, 3]]


def test_a_skewed_predictor_learns_from_the_first_words(planted):
    scheme = SkewedPredictor(1.0, tokens=4)
    shown = scheme.given(planted, "train")
    assert torch.equal(shown, SkewedPredictor(tokens=4, default_tokens=2).given(planted, "train"))
    assert (shown[:, :2] == 0).all()
    result = train(small(planted), planted, scheme, epochs=3, progress=False)
    assert result.history["phase"].tolist() == ["first sentence"] * 3 + ["joint"] * 3


@pytest.mark.parametrize(
    "make", [lambda: SkewedGenerator(0.3), lambda: SkewedGenerator(2), lambda: SkewedGenerator("a")]
)
def test_wrong_accuracy(make):
    with pytest.raises(InputError, match=r"accuracy: expected a number from 0.5 to 1"):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs: expected a ratio above 0"),
        ({"tokens": 0}, "tokens"),
        ({"default_tokens": -1}, "default"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(InputError, match=message):
        SkewedPredictor(**options)


def test_an_accuracy_that_is_not_reached_is_said(planted):
    with pytest.warns(UserWarning, match="accuracy 1.0 was not reached in 10 epochs"):
        train(small(planted), planted, SkewedGenerator(1.0), epochs=1, learning_rate=1e-5, progress=False)
