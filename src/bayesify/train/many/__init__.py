"""Many models trained at once: `fit_many`.

- `api` sorts models into groups that can be stacked
- `loop` trains a stack of models together, or models one after another
- `stack` holds the stacked tensors
- `trace` makes one function of the functions of all models, `graph` traces and tidies it
- `streams` gives every model its own random numbers
- `optimizers` moves the stacked weights
- `alike` tells which models share a trace
"""

from bayesify.train.many.api import fit_many

__all__ = ["fit_many"]
