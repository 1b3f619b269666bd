"""Diagnostics of a converted network: a summary of its layers, spectra of its weights."""

from bayesify.diagnostics.spectra import spectrum
from bayesify.diagnostics.summaries import Summary, summary

__all__ = ["Summary", "spectrum", "summary"]
