"""Conversations: templates in Jinja, the small form the runtime applies, and chat sessions."""
