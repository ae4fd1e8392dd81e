"""Network configuration of Linux: namespaces, rtnetlink, caps, queues, marks."""
