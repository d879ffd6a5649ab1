"""Models as a store of objects has them: a namespace is a bucket, a file an object with a key."""
