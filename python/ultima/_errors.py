"""Exceptions of this package."""


class Error(RuntimeError):
    """The base of all exceptions of this package: its message says what failed and what to do."""


class SettingError(Error, ValueError):
    """A setting, an argument or an environment variable is missing or invalid."""


class DtypeError(Error, TypeError):
    """An array or a tensor has a type that cannot be averaged."""


class RendezvousError(Error):
    """Ranks are missing, or do not reach each other."""


class MismatchError(RendezvousError):
    """Two ranks have different settings or make different calls; the message names the difference."""


class ControllerError(Error):
    """The controller does not answer, or gives this process no rank."""


class IncompleteError(Error):
    """An exact operation lacks the values of a rank; the message names it."""


class GoneError(Error):
    """A rank, or every other rank, is silent for longer than `gone_after`; the message names it."""


class ClosedError(Error):
    """The job has ended."""


class ForkError(Error):
    """The process is a fork of the one that started the job."""


# Tracebacks then name them as programs do, such as ultima.SettingError.
for _class in (Error, *Error.__subclasses__(), *RendezvousError.__subclasses__()):
    _class.__module__ = "ultima"
