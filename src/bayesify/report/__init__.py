"""The report: one self-contained HTML page with a model's metrics, calibration and uncertainty."""

from bayesify.report.assessment import Assessment, assess
from bayesify.report.page import render, write_report

__all__ = ["Assessment", "assess", "render", "write_report"]
