"""Bases that are not the elements of other tensors in their order."""

from deltahub.codecs.frames.views.scaled import Scaled
from deltahub.codecs.frames.views.transposed import Transposed

View = Transposed | Scaled

__all__ = ["Scaled", "Transposed", "View"]
