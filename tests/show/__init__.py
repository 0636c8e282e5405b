"""The forms in which results show themselves: text and HTML."""
