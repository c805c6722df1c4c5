"""Names that scripts import."""

ROUTE_TRAIN = "train"
ROUTE_EVAL = "eval"
ROUTE_PREDICT = "predict"
TORCH_DISTRIBUTED_DEFAULT_PORT = 29500
