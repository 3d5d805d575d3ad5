"""Tensors that travel: named weights over one flat buffer."""
