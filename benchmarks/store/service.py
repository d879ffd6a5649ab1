"""The S3 service that benchmarks run beside a hub: the one that the tests start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.service.seaweedfs import S3Service, s3_service

__all__ = ["S3Service", "s3_service"]
