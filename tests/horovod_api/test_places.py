"""Collectives that take a device run where their tensors are if none is given; two CPU devices stand for CPU and GPU.

In eager code TensorFlow runs others on a GPU by itself if their tensors are there, but not on a second CPU device.
"""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json
import tensorflow as tf
import hvd_sparse as hvd

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
hvd.init()
with tf.device("CPU:1"):
    own = tf.constant([1.0, 2.0])
    slices = tf.IndexedSlices(own, tf.constant([0, 1]), tf.constant([2]))
results = {
    "allreduce": hvd.allreduce(own),
    "grouped_allreduce": hvd.grouped_allreduce([own, own])[1],
    "slices": hvd.allreduce(slices).values,
    "reducescatter": hvd.reducescatter(own),
    "grouped_reducescatter": hvd.grouped_reducescatter([own])[0],
}
asked = hvd.allreduce(own, device_dense="CPU:0")
print(json.dumps([{name: each.device[-5:] for name, each in results.items()}, asked.device[-5:]]))
"""


def test_a_collective_runs_where_its_tensor_is_unless_a_device_is_given():
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-3000:]
    places, asked = json.loads(told.stdout)
    assert set(places.values()) == {"CPU:1"}, places
    assert asked == "CPU:0"
