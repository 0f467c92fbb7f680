"""Figures of masks and weights: arrays or results in, matplotlib Axes in and out."""
