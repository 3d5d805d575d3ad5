"""From cached partitions to weights: config, solver, net, models, worker, evaluate, exchange, checkpoint, trainer."""
