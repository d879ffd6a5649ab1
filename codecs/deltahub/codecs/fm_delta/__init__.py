"""FM-Delta: a fine-tuned tensor as the difference from its base."""

from deltahub.codecs.fm_delta.codec import FmDelta, may_have_stride

__all__ = ["FmDelta", "may_have_stride"]
