"""Model averaging over a network that may lose messages (RPS; Yu et al. 2019).

- `blocks`: how a vector is cut into a block for each rank, and who owns which.
- `transports`: the role: vectors of all ranks go in, and their mean comes out, as far as messages arrive.
- `reliable`, `lossy`: members over the collectives of Horovod (`collectives`); the second one loses by chance.
- `datagrams`: a member over UDP, which loses what the network loses; `endpoints` calls its native side.
- `optimizer`: `ModelAveraging`, around a Keras optimizer; `participant` does it, `flat` lays variables end to end,
  `means` is the exact mean of all models, `telemetry` what was lost, and `returning` what a rank does that comes back
  after the end of its process.
- `gradients`: `GradientAveraging`, which loses what model averaging does not.
- `theory`: the closed forms.
"""

from hvd_sparse.averaging.datagrams import Datagrams
from hvd_sparse.averaging.gradients import GradientAveraging
from hvd_sparse.averaging.lossy import Lossy
from hvd_sparse.averaging.means import MeanOfModels, mean
from hvd_sparse.averaging.optimizer import ModelAveraging, close, resynchronise, return_with, ticket
from hvd_sparse.averaging.reliable import Reliable
from hvd_sparse.averaging.telemetry import Telemetry

__all__ = [
    "Datagrams",
    "GradientAveraging",
    "Lossy",
    "MeanOfModels",
    "ModelAveraging",
    "Reliable",
    "Telemetry",
    "close",
    "mean",
    "resynchronise",
    "return_with",
    "ticket",
]
