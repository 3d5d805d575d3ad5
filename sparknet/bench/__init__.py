"""Benchmarks, one a file; each is a command, `sparknet bench NAME`."""
