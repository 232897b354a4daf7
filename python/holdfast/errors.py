"""What can go wrong: a class for each kind of error, each also one of Python's own where there is one."""

import errno


class HoldfastError(Exception):
    """Whatever a node or the client refused; the text says what was being done, what was wrong, and what
    to do."""


class RetryError(HoldfastError):
    """Nothing was decided, or nothing is known: the same request may be made again."""


class InvalidError(HoldfastError, ValueError):
    """The request can never succeed as it is."""


class NotFoundError(HoldfastError, FileNotFoundError):
    """What is named does not exist."""

    errno = errno.ENOENT


class ExistsError(HoldfastError, FileExistsError):
    """The name is taken."""

    errno = errno.EEXIST


class FencedError(HoldfastError):
    """Somebody with a newer claim took over: look, then decide."""


class CorruptError(HoldfastError, OSError):
    """Bytes fail their checksum, and were not given out."""

    errno = errno.EIO


class FullError(HoldfastError, OSError):
    """There is no room."""

    errno = errno.ENOSPC


class ReadOnlyError(HoldfastError, OSError):
    """What is asked takes reads only."""

    errno = errno.EROFS


class UnsupportedError(HoldfastError):
    """The node speaks another version, or lacks the operation."""


class BugError(HoldfastError):
    """Holdfast broke a promise to itself. Please report it."""


class DeniedError(HoldfastError, PermissionError):
    """Whoever asks has not proved that they may."""

    errno = errno.EACCES


class VersionError(HoldfastError):
    """A record is not as a write expects it, and nothing was written: read it, and decide anew."""

    def __init__(self, text, version=None):
        super().__init__(text)
        #: The version that the record has; None if there is no such record.
        self.version = version


_BY_KIND = {
    "retry": RetryError,
    "invalid": InvalidError,
    "not-found": NotFoundError,
    "exists": ExistsError,
    "fenced": FencedError,
    "corrupt": CorruptError,
    "full": FullError,
    "read-only": ReadOnlyError,
    "unsupported": UnsupportedError,
    "bug": BugError,
    "denied": DeniedError,
}


def class_of(kind: str) -> type:
    """The class of errors of a kind, by the kind's name on the wire."""
    return _BY_KIND.get(kind, HoldfastError)
