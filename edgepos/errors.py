"""The errors EdgePos raises for anything a user can cause.

Every message is one line and names the thing (tensor, config key, file, byte
offset), what was found, what is allowed and what to do.
"""


class EdgePosError(Exception):
    """Base of every error EdgePos raises on purpose."""


class UnsupportedError(EdgePosError):
    """The input is valid, but asks for something EdgePos does not do."""


class FormatError(EdgePosError):
    """A file is malformed, truncated or contradicts itself."""


class ContextError(EdgePosError):
    """A call does not fit the state: too many tokens, a bad position, a bad rewind."""


class GateError(EdgePosError):
    """A measured figure is worse than the limit it was given."""


def temporary_files_error(what, error: OSError) -> EdgePosError:
    """The error of `what`, which needed a temporary file and got `error` for it."""
    reason = (error.strerror or str(error)).splitlines()[0]
    return EdgePosError(f"{what}: a temporary file cannot be written ({reason}); make room in the folder of temporary files, or name another in TMPDIR")
