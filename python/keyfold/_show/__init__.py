"""How results show themselves to people: as text of 80 columns, and as HTML in notebooks."""
