"""The one error of every process's configuration: its file, its flags, a user's stored choice."""

CANNOT_START = 2  # exit status of a process whose configuration can't be used


class ConfigError(ValueError):
    """A configuration can't be used. The message is one sentence that names the file, key or flag and the reason."""
