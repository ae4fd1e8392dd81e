"""Several controllers: etcd, ownership by lease, and a log that all of them follow."""
