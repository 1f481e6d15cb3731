"""The one error of loading; by itself, so that a quick look at a file needs no torch."""


class ModelFileError(ValueError):
    """A model file can't be used. The message is one sentence that names the file and the reason."""
