"""Every error and warning the package raises on purpose, under one base class.

Each error also inherits from the built-in that fits, so ``except ValueError`` keeps working. Messages name the
argument, the first offending row where there is one, what was expected and what came.
"""


class CausalAttnError(Exception):
    """Base of all errors raised on purpose by causal_attn."""


class InputError(CausalAttnError, ValueError):
    """An argument has the wrong shape, type or values."""


class DataError(InputError):
    """A data set or a file of the user's cannot be used as it is."""


class PositivityError(InputError):
    """P(y | m) is zero, or the support deficit is so large that weights cannot stand for Q."""


class NotEstimableError(CausalAttnError, RuntimeError):
    """The quantity asked for cannot be estimated from this sample."""


class MissingExtraError(CausalAttnError, ImportError):
    """An optional package is needed; the message names the extra that brings it."""


class OutputError(CausalAttnError, OSError):
    """A result cannot be written where it was asked for."""


class SupportWarning(UserWarning):
    """A large part of Q lies where P is never, or hardly ever, seen."""


class FitWarning(UserWarning):
    """A variational fit is a poor stand-in for the posterior."""
