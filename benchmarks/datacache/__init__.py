"""The cache of the input beside tf.data: reading, memory, peers, and a slow file server."""
