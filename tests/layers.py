"""The place of each module among the others, which tests/test_house_rules.py enforces."""

# Who may know whom: a module imports from its own layer and from those below. A new module must be given a place.
LAYERS = [
    {
        "arguments",
        "bucket_exchange",
        "buckets",
        "callbacks",
        "checkpoint",
        "gradient_exchange",
        "keras_hooks",
        "loss_scale",
        "optimizer",
        "planned_exchange",
        "rows",
        "saving",
        "sync_batch_norm",
        "tape",
        "telemetry",
        "train_step",
    },
    {"recipes"},
    {"aggregators"},
    {"collective_costs", "collectives", "compressors", "error_feedback", "links", "planner", "quantizers"},
    {
        "communicator",
        "compression",
        "horovod_communicator",
        "horovod_names",
        "inputs",
        "joining",
        "notebook",
        "objects",
        "pairing",
        "process_sets",
        "reduce_scatter",
        "shared_memory",
        "spec",
        "streams",
        "topology",
        "values",
        "variables",
    },
    {"costs", "eager", "elastic", "encoding", "host_names", "nodes", "ops", "rendezvous", "stalls"},
]
CACHE_LAYERS = [
    {"__main__"},
    {"cache", "dataset", "training"},
    {"batches", "peers", "store"},
    {"reader"},
    {"disk", "layout", "slab", "tmpfs"},
    {"levels", "memory", "sources"},
    {"buffers", "counters", "fingerprint", "listing", "order", "progress", "tfrecord", "world"},
    {"errors", "files", "mapping", "native", "rendezvous"},
]
LARS_LAYERS = [{"lamb", "lars"}, {"layerwise"}, {"choice", "parallel", "trust_ratio"}, {"ops"}]
LAYERS_OF = {"hvd_sparse": LAYERS, "datacache": CACHE_LAYERS, "lars": LARS_LAYERS}

# Who may know Horovod: all else talks to a `Communicator`, or to what these make of Horovod's names.
WITH_HOROVOD = {
    "compression",
    "elastic",
    "horovod_communicator",
    "horovod_names",
    "joining",
    "objects",
    "process_sets",
    "reduce_scatter",
    "topology",
    "values",
    "variables",
}
