"""The report: one self-contained page that says how good a model is, how honest, and where it is unsure."""

from bayesify.report.environment import environment
from bayesify.report.page import write_report

__all__ = ["environment", "write_report"]
