"""What a user calls: the estimator, evaluation, ranks, generated data and metrics."""
