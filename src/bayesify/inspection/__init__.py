"""Why a model predicts what it predicts: importance of columns, partial dependence, effects on single rows, similar training rows.

All of it needs `predictive` alone, so that it takes tables as they are: a column of categories is one column, not one per category.
For other explanations, such as SHAP values, pass `estimator.predict` to the library that computes them.
"""

from bayesify.inspection.dependence import Dependence, partial_dependence
from bayesify.inspection.explanation import Explanation, explain
from bayesify.inspection.importance import permutation_importance
from bayesify.inspection.rows import row_effects, similar_rows

__all__ = ["Dependence", "Explanation", "explain", "partial_dependence", "permutation_importance", "row_effects", "similar_rows"]
