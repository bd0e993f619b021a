"""The C runtime from Python: sessions, tokenizer, text generation."""
