"""Two programs that measure together: protocol, authentication, client, server, sessions."""
