"""SparkNet: train deep networks inside Spark, around its data.

The package is used by module; `docs/loaders.md` and `docs/training.md` begin with the three lines to copy.
"""

__version__ = "0.1.0"
