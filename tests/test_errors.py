import pytest

from causal_attn import errors


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.InputError, ValueError),
        (errors.DataError, ValueError),
        (errors.PositivityError, ValueError),
        (errors.NotEstimableError, RuntimeError),
        (errors.MissingExtraError, ImportError),
        (errors.OutputError, OSError),
    ],
)
def test_errors_are_both_ours_and_the_builtin_that_fits(error, builtin):
    assert issubclass(error, errors.CausalAttnError)
    assert issubclass(error, builtin)
