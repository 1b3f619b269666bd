"""Training of many models at once.

- `dispatch`: `fit_many`, groups models that can be stacked
- `loop`: trains a stack of models together, or one model alone
- `stack`: the stacked parameters, and training steps of all models at once
- `vectorization`: one function of all models from the function of each, on the graphs of `graph`
- `random_streams`: the random numbers of each model
- `optimizers`: optimizers of stacked parameters
- `stack_checkpoint`: files from which an interrupted training continues
- `on_cluster`: models as jobs of a Ray cluster
- `ensemble`: one training per member of an ensemble
"""

from bayesify.train.many.dispatch import fit_many

__all__ = ["fit_many"]
