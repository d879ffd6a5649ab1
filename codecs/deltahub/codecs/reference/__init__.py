"""The codec formats in readable Python, slow on purpose: for readers, and to test the kernels by.

Written from codecs/spec/*.md alone. What runs in the hub and its clients never imports this.
"""
