"""Model averaging over a network that may lose messages (RPS; Yu et al. 2019).

- `blocks`: how a vector is cut into one block per rank, and which rank owns which block.
- `transports`: the role: takes the vectors of all ranks and returns their mean, as far as messages arrive.
- `reliable`, `lossy`: transports over Horovod's collectives (`collectives`); the second drops messages at random.
- `datagrams`: a transport over UDP, which loses what the network loses; `endpoints` calls its native side.
- `optimizer`: `ModelAveraging`, around a Keras optimizer. `participant` does the work, `flat` lays variables end to
  end, `means` computes the exact mean of all models, `telemetry` measures losses, and `returning` lets a rank come back
  after its process has ended.
- `gradients`: `GradientAveraging`, which suffers from losses that model averaging tolerates.
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
