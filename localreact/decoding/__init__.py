"""Decoding in process: the model, its vocabulary, its memory, the sampler, the loop."""
