"""Peers: nodes serve each other the samples of their memory level, over ZeroMQ.

Each node serves what it owns (`server`), and each process asks the owners of what its node does not hold (`client`,
`link`), one request for each batch and owner, several at a time. An owner that does not have a sample yet fetches it
first, so that all nodes together read each sample from the source once. Both sides prove that they know the job's
secret, and each message is authenticated (`session`); headers are msgpack with a strict schema, pixels raw bytes
(`wire`). Whatever goes wrong means that the sample comes from the asking node's own lower levels.
"""
