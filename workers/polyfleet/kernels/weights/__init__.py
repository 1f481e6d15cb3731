"""Weights as files have them: formats, codes and their scales, numbers made of them, what stays quantised."""
