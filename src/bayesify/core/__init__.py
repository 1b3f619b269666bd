"""Conversion of networks, random layers and their posteriors, and the passes through a converted network."""
