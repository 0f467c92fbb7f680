"""Simulated masks whose P(y | m), and so whose right weight w = P(y) / P(y | m), is known exactly.

All of them draw from P, the law of observed rows (S = 1), in float64. What each is for:

* `Tabular`: finitely many masks, everything by enumeration, and selection run forwards from Q.
* `Gaussian`, `Logistic`: smooth dependence that a linear model of P(y | m) can learn.
* `DirichletByClass`: heavy weights.  `Concentration`: classes differ only in how peaked their masks are.
* `DeterministicLeak`: positivity fails, wholly or in part.  `Null`: nothing to find.
* `PlantedText`, `PlantedPixels`: not masks but whole data sets, with the evidence at known places, for models.
* `Ends`: varying lengths; the class shows in the last against the second-to-last position.
"""

from causal_attn.data.worlds.base import World
from causal_attn.data.worlds.dirichlet import Concentration, DirichletByClass
from causal_attn.data.worlds.ends import Ends
from causal_attn.data.worlds.leaks import DeterministicLeak, Null
from causal_attn.data.worlds.logistic import Logistic
from causal_attn.data.worlds.normal import Gaussian
from causal_attn.data.worlds.planted import PlantedPixels, PlantedText
from causal_attn.data.worlds.tabular import Selected, Tabular

__all__ = [
    "Concentration", "DeterministicLeak", "DirichletByClass", "Ends", "Gaussian", "Logistic", "Null", "PlantedPixels",
    "PlantedText", "Selected", "Tabular", "World",
]  # fmt: skip
