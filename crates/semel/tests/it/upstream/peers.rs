//! `@modelcontextprotocol/server-filesystem` behind the gateway: what it does twice by itself, it does once.
