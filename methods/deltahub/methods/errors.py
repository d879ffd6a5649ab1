"""The errors of methods: models or arguments that a method cannot work with."""


class MethodError(Exception):
    """The root of all errors of methods. code: stable, for clients."""

    code = "method_error"

    @property
    def message(self) -> str:
        return str(self)


class CannotMerge(MethodError):
    """These models cannot be merged; the message says why, and what to do."""

    code = "cannot_merge"


class CannotAdapt(MethodError):
    """An adapter cannot be made, converted or used; the message says why, and what to do."""

    code = "cannot_adapt"


class CannotExport(MethodError):
    """A model cannot be exported like this; the message says why, and what to do."""

    code = "cannot_export"


class CannotTransfer(MethodError):
    """An adapter cannot be moved to another base; the message says why, and what to do."""

    code = "cannot_transfer"


class BadAdapter(MethodError):
    """This is no adapter that can be read; the message says what is wrong, and what to do."""

    code = "bad_adapter"
