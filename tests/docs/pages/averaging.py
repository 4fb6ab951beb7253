"""A model, data, and how the optimizer is made in a rank that may be killed."""

import keras

import hvd_sparse as hvd
from tests.docs import pages

LONG = 300.0  # seconds: time limits that even a busy machine does not reach

model = pages.model()
x, y = pages.data()
x_test, y_test = pages.data(16)


def make_optimizer() -> hvd.averaging.ModelAveraging:
    transport = hvd.averaging.Datagrams("127.0.0.1", rate=1e9, slack=LONG, least=LONG, patience=1.0)
    return hvd.averaging.ModelAveraging(keras.optimizers.SGD(0.01), transport)


end = hvd.averaging.close
