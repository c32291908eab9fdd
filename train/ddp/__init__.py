"""CustomDDP: gradients in flat buckets that are averaged while backward runs."""
