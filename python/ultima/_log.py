"""The log: the logger `ultima`, on standard error unless the program configures logging."""

import logging

logger = logging.getLogger("ultima")


def use_default_handler() -> None:
    """Write notes of this package to the program's log, or to standard error if no handler exists."""
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("ultima: %(message)s"))
        logger.addHandler(handler)
