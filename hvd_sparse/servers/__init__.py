"""Sharded parameter servers: every rank is also the server of a part of the parameters (Aji and Heafield 2017).

A rank pushes its gradient to all servers and pulls parameters from them, both as sparse messages. It waits for no
other rank: a server applies pushes in the order in which they arrive.

- `messages`: the contents of a push and a pull.
- `shard`: a server's state and rules, without a network; `rules` decides which pushes are applied when, `copies` keeps
  what each client was last sent, `gathering` the sum of gradients for the next update.
- `pushing`: what a client sends, and its copy of the parameters; `local` is what runs on its gradients before the
  selection, and `model` copies the parameters into the model's variables.
- `optimizer`: `ShardedServers`, around a Keras optimizer; `applying` runs that optimizer on a shard.
- `batches`: `SharedBatches`, an epoch that all ranks take together.
- `presence`, `joining`, `service`, `connections`, `wire`: how ranks find each other and communicate, over `link`;
  `returning`: how a rank comes back.
"""

from hvd_sparse.servers.batches import SharedBatches
from hvd_sparse.servers.connections import ServerLostError
from hvd_sparse.servers.optimizer import ShardedServers, finish, return_with, ticket

__all__ = ["ServerLostError", "ShardedServers", "SharedBatches", "finish", "return_with", "ticket"]
