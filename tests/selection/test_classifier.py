"""The scikit-learn face of the outcome model."""

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from causal_attn.data.worlds import Gaussian
from causal_attn.errors import InputError
from causal_attn.selection import SelectionClassifier, SelectionModel


@parametrize_with_checks([SelectionClassifier(n_draws=30), SelectionClassifier(prior_scale=1.0, n_draws=10)])
def test_it_is_a_scikit_learn_classifier(estimator, check):
    check(estimator)


@pytest.mark.parametrize("prior_scale", ["auto", 0.5])
def test_probabilities_are_those_of_the_final_fit(prior_scale):
    sample = Gaussian(n_classes=3, seed=2).sample(150, 0)
    model = SelectionModel(features=lambda m, v: m, prior_scale=prior_scale)
    fit = model.fit(sample, folds=2, seed=3, n_draws=25, progress=False)
    labels = np.array(["c", "a", "b"])
    mine = SelectionClassifier(prior_scale, 25, 3).fit(sample.masks.numpy(), labels[sample.y])
    assert mine.classes_.tolist() == ["a", "b", "c"]
    theirs = fit.log_prob(sample.masks).exp().mean(0)
    got = torch.from_numpy(mine.predict_proba(sample.masks.numpy()))
    # the classes are numbered otherwise, and so are the draws: the same law, at 25 draws
    torch.testing.assert_close(got, theirs[:, [1, 2, 0]], atol=0.05, rtol=0)
    same = SelectionClassifier(prior_scale, 25, 3).fit(sample.masks.numpy(), sample.y.numpy())
    torch.testing.assert_close(torch.from_numpy(same.predict_proba(sample.masks.numpy())), theirs)
    np.testing.assert_allclose(np.exp(same.predict_log_proba(sample.masks.numpy())), theirs)
    assert (same.predict(sample.masks.numpy()) == theirs.argmax(1).numpy()).all()


def test_the_scale_of_a_feature_does_not_matter_and_a_constant_one_is_left_out():
    sample = Gaussian(seed=1).sample(120, 0)
    X = sample.masks.numpy()
    plain = SelectionClassifier(n_draws=10).fit(X, sample.y).predict_proba(X)
    wide = np.column_stack([1000 * X - 5, np.ones(120)])
    np.testing.assert_allclose(SelectionClassifier(n_draws=10).fit(wide, sample.y).predict_proba(wide)[:3].sum(1), 1)
    np.testing.assert_allclose(
        SelectionClassifier(n_draws=10).fit(1000 * X - 5, sample.y).predict_proba(1000 * X - 5), plain
    )


@pytest.mark.parametrize("given", [None, np.random.RandomState(0)])
def test_random_states_are_taken(given):
    sample = Gaussian(seed=1).sample(60, 0)
    assert (
        SelectionClassifier(n_draws=5, random_state=given).fit(sample.masks, sample.y).score(sample.masks, sample.y)
        > 0.5
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior_scale": 0}, "prior_scale: expected"),
        ({"prior_scale": True}, "prior_scale: expected"),
        ({"prior_scale": "wide"}, "prior_scale: expected"),
        ({"n_draws": 0}, "n_draws: expected"),
    ],
)
def test_bad_parameters_are_refused_at_fit(options, message):
    with pytest.raises(InputError, match=message):
        SelectionClassifier(**options).fit(np.eye(4), [0, 1, 0, 1])


def test_a_single_class_is_refused():
    with pytest.raises(InputError, match="y: expected at least two classes"):
        SelectionClassifier().fit(np.eye(3), ["a", "a", "a"])
