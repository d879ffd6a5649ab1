"""How a job ends without its result."""


class StepFailed(Exception):
    """A step failed, now or before a restart. Has the error's stable code and message.

    is_transient: the error passes by itself, so that the job should be repeated.
    """

    def __init__(self, code: str, message: str, *, is_transient: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.is_transient = is_transient


class JobCancelled(Exception):
    """The job was cancelled. Results that it has published so far stay valid."""

    code = "cancelled"
