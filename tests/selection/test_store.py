"""Saved fits predict what they did."""

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from causal_attn.data.worlds import Gaussian
from causal_attn.errors import InputError
from causal_attn.masks import MaskSample
from causal_attn.selection import SelectionFit, SelectionModel, fits, network, sampling
from causal_attn.storage import load_arrays, save_arrays

KINDS = {
    "linear": {"tau": 5.0, "prior_scale": 0.5},
    "mlp": {"response": "mlp"},
    "permutation": {"estimator": "permutation", "copies": np.int64(2)},
    "svi": {"inference": "svi", "guide": "AutoNormal"},
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(network, "STEPS", 20)
    monkeypatch.setattr(fits, "N_MEMBERS", 2)
    monkeypatch.setattr(sampling, "SVI_STEPS", 10)


def fitted(**options):
    sample = Gaussian(n_classes=3, n_positions=3, seed=2).sample(80, 0)
    return SelectionModel(**options).fit(sample, folds=2, progress=False, n_draws=6)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_fit_predicts_the_same(kind, suffix, tmp_path):
    fit = fitted(**KINDS[kind])
    fit.save(tmp_path / f"fit{suffix}")
    back = SelectionFit.load(tmp_path / f"fit{suffix}")
    new = torch.tensor([[0.2, 0.3, 0.5], [0.9, 0.05, 0.05]])
    assert torch.equal(back.log_prob(new), fit.log_prob(new))
    mine, theirs = fit.weights(), back.weights()
    assert torch.equal(mine.log_w, theirs.log_w)
    assert torch.equal(mine.draws, theirs.draws)
    assert mine.support_deficit_interval == theirs.support_deficit_interval
    assert back.config == fit.config
    assert torch.equal(back.elbo, fit.elbo)
    assert back.held_out_log_loss == fit.held_out_log_loss
    np.testing.assert_equal(back.final.n_draws, 6)


def test_x_features_and_groups_are_kept(tmp_path):
    sample = Gaussian(n_positions=3).sample(80, 0)
    sample = MaskSample(sample.masks, sample.y, x_features=torch.randn(80, 1), groups=np.arange(80) // 2)
    fit = SelectionModel(estimator="permutation").fit(sample, folds=2, progress=False, n_draws=4)
    fit.save(tmp_path / "fit.npz")
    back = SelectionFit.load(tmp_path / "fit.npz")
    assert torch.equal(back.weights().draws, fit.weights().draws)
    assert torch.equal(back.sample.groups, sample.groups)


def test_own_features_are_needed_again(tmp_path):
    own = lambda m, v: m[:, :2]  # noqa: E731
    fit = fitted(features=own)
    fit.save(tmp_path / "own.npz")
    with pytest.raises(InputError, match="features: expected the callable"):
        SelectionFit.load(tmp_path / "own.npz")
    back = SelectionFit.load(tmp_path / "own.npz", features=own)
    assert torch.equal(back.log_prob(fit.sample.masks), fit.log_prob(fit.sample.masks))
    fitted().save(tmp_path / "auto.npz")
    with pytest.raises(InputError, match="features: expected none"):
        SelectionFit.load(tmp_path / "auto.npz", features=own)


def test_a_plug_in_is_refused(tmp_path):
    with pytest.raises(InputError, match="estimator: a plug-in classifier"):
        fitted(estimator=LogisticRegression()).save(tmp_path / "fit.npz")


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "fit.npz"
    fitted().save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cannot be read"):
        SelectionFit.load(path)
    path.write_bytes(whole)
    arrays, meta = load_arrays(path)
    for changed, text in (
        ({k: v for k, v in arrays.items() if k != "fit1/theta"}, meta),
        ({k: v for k, v in arrays.items() if k != "centre"}, meta),
        (arrays, {"causal_attn": "{"}),
        (arrays, {"causal_attn": "{}"}),
        (arrays, {"causal_attn": json.dumps(json.loads(meta["causal_attn"]) | {"format": 99})}),
        (arrays, {}),
    ):
        save_arrays(path, changed, text)
        with pytest.raises(InputError, match="path: "):
            SelectionFit.load(path)
