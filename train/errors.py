"""The exceptions for mistakes that the person who started the run can mend."""


class UserError(Exception):
    """A mistake in flags, environment or files: shown as one paragraph without a traceback, exit code 1.

    The message says where, what is wrong, what is allowed and what to do.
    """


class SharedError(UserError):
    """A UserError that every rank has raised with the same message, so that telling it once a node is enough."""
