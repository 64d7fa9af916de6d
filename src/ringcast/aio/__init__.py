"""asyncio around Node: all sockets and the real clock live here."""
