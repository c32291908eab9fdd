"""The training package that the rendered jobs run: `python -m train`, started by torchrun or by itself.

Importing `train` or `train.config` imports no torch, so that jobspec can check a `train:` section cheaply.
"""

__version__ = "0.1.0"
