"""Model averaging over a network that may lose messages (RPS; Yu et al. 2019).

- `blocks`: how a vector is cut into a block for each rank, and who owns which.
- `transports`: the role: vectors of all ranks go in, and their mean comes out, as far as messages arrive.
"""
