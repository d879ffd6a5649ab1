"""Uploads, files, tensors, packs and recipes."""

from typing import Annotated, Literal

from pydantic import Field

from deltahub.server.schemas.base import In, Out, Sha256, TensorId

StrictSize = Annotated[int, Field(ge=1, strict=True)]


class UploadOut(Out):
    sha256: str
    size: int
    received: int
    complete: bool


class SmallUploadsOut(Out):
    sha256: list[str] = Field(description="of each file, in their order")


class KnownFileIn(In):
    sha256: Sha256
    size: Annotated[int, Field(ge=0)]


class FileQueryIn(In):
    files: list[KnownFileIn]


class FileQueryOut(Out):
    have: list[str] = Field(
        description="files that the hub has, kept for a day for this repository. A file whose "
        "ingest is not over is not kept: keep your copy until the commit. Upload all others"
    )


class TensorQueryIn(In):
    # Not strict: JSON has no tuples, so a strict model would refuse every pair.
    tensors: list[Annotated[tuple[TensorId, StrictSize], Field(strict=False)]] = Field(
        description="[BLAKE3-256 in hex, size in bytes] each"
    )


class TensorQueryOut(Out):
    have: list[str] = Field(description="kept for a day for this repository, even without a commit")


class FramesIn(In):
    tensors: list[TensorId]


class DifferencesIn(In):
    base: str | None = Field(
        default=None, description="the revision whose tensors the reader has; null for none"
    )
    # Not strict, as above.
    tensors: list[Annotated[tuple[TensorId, TensorId | None], Field(strict=False)]] = Field(
        description="[tensor of the revision, tensor of `base` that the reader has or null] each"
    )
    first_byte: Annotated[int, Field(ge=0)] = Field(
        default=0, description="of the first tensor: the reader has the frames before it"
    )


class LinkedFrameOut(Out):
    tensor: int = Field(description="its place in the list that was asked, from 0")
    length: int = Field(description="bytes of the frame; the next frame follows at once")


class FrameLinkOut(Out):
    url: str = Field(
        description="to be read by GET with the header `Range: bytes=START-(END-1)` and no other "
        "range, until DELTAHUB_S3_LINK_LIFETIME_S is over"
    )
    start: int
    end: int
    frames: list[LinkedFrameOut]


class FrameLinksOut(Out):
    n_tensors: int = Field(
        description="the answer is about so many of the tensors, the first ones: ask again for "
        "the others. Frames without a link come from /frames, or as bytes of the file"
    )
    links: list[FrameLinkOut]


class PackIn(In):
    sha256: Sha256 = Field(description="a completed upload that is a pack of frames")


class PackOut(Out):
    tensors: int
    waiting: int = Field(
        description="tensors that still lack frames, to be uploaded in another pack"
    )


class RecipeAcceptedOut(Out):
    state: Literal["ready", "proving"]
    job_id: str | None = None


class PlannedTensorOut(Out):
    id: str
    size: int
    encoded_size: int
    codec: str
    bases: list[str]
    depth: int


class RecipePlanOut(Out):
    recipe: str
    size: int
    sha256: str
    tensors: list[PlannedTensorOut]
    link_origin: str | None = Field(
        default=None,
        description="where the links of /frames/links lead, as https://s3.example.com; null if "
        "this hub gives no links",
    )
