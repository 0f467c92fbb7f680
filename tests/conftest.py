"""A clean state for every test, and slow tests only on request."""

from __future__ import annotations

import numpy as np
import pyro
import pytest
import torch

CORE = {"selection", "diagnostics", "weights", "test_masks.py", "test_storage.py"}
"""Tests of the mathematics run in float64; the rest runs in PyTorch's own default, as a user's training does."""


def pytest_collection_modifyitems(config, items):
    if "slow" in (config.getoption("markexpr") or ""):
        return
    skip = pytest.mark.skip(reason="slow: run with -m slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _clean_state(request):
    """Empty parameter store, Pyro's checks on, float64 for the core, fixed seeds; the default dtype is put back."""
    before = torch.get_default_dtype()
    if CORE & set(request.path.parts):
        torch.set_default_dtype(torch.float64)
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    np.random.seed(0)  # noqa: NPY002 - libraries under test may read the legacy state
    with pyro.validation_enabled(True):
        yield
    pyro.clear_param_store()
    torch.set_default_dtype(before)
