"""How long an exchange takes, beside rivals and the floor; and on CommLib's cluster, on paper."""
