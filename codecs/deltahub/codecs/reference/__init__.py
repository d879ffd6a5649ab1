"""The codecs in readable Python, written only from codecs/spec. Only tests import them."""
