"""A rank's shards of a model: the engine in C++, states, and how each is reached by name."""
