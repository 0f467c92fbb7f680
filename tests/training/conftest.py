"""Data that several tests of this folder train on."""

from __future__ import annotations

import pytest

from causal_attn.data import Data

from .toys import bag_data, token_data


@pytest.fixture(scope="session")
def tokens() -> Data:
    return token_data()


@pytest.fixture(scope="session")
def bags() -> Data:
    return bag_data()
