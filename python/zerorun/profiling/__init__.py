"""FLOPs of a model, and the timeline of its steps."""
