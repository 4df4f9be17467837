//! Schema migrations over etcd, Redis and the embedded store: all or nothing.
