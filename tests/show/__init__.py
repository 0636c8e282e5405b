"""What results show of themselves: text and HTML."""
