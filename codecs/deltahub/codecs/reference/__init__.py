"""The codecs in readable Python, written from codecs/spec alone; only tests import them."""
