"""Peers: nodes serve each other the samples of their memory level, over links between their processes.

Each node serves what it owns (`server`), and each process asks the owners for what its node does not hold (`client`),
with one request for each batch and owner, several at a time. An owner that does not have a sample yet fetches it first,
so that all nodes together read each sample from the source once. The package `link` transports the messages: both sides
prove that they know the job's secret, and each message is authenticated; `protocol` defines the messages. If anything
goes wrong, the sample comes from the asking node's own lower levels.
"""
