#include <nanobind/nanobind.h>
NB_MODULE(_native, m) { m.doc() = "Native kernels of deltahub.codecs."; }
