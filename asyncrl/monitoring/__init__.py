"""Reports of the roles, published metrics, TensorBoard, `metrics.jsonl`, progress."""
