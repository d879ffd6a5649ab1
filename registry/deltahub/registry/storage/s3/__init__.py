"""The object store in a bucket of an S3-compatible service, through boto3."""
