"""The evaluation lab: the same tasks, tools and model, one thing changed; every failure in its ledger."""
