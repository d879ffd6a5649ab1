"""Every contender, in the order of the table."""

from benchmarks.codec_sizes.contenders.contender import Contender
from benchmarks.codec_sizes.contenders.ours import Ours
from benchmarks.codec_sizes.contenders.xor_planes import XorPlanes
from benchmarks.codec_sizes.contenders.zipnn_codec import ZipNNAlone, ZipNNDelta
from benchmarks.codec_sizes.contenders.zstd_alone import ZstdAlone

ALL: tuple[Contender, ...] = (Ours(), XorPlanes(), ZipNNDelta(), ZipNNAlone(), ZstdAlone())
BY_NAME = {contender.name: contender for contender in ALL}
