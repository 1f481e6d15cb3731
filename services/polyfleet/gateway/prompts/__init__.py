"""Prompts of texts and chats: asked of a process of their own, so that none can hold up the gateway."""
