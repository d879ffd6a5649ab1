"""Native kernels of deltahub.codecs."""
