"""Analysis: head patterns, rollout, ablation, distances between heads."""
