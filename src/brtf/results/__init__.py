"""What a fit has found: answers with their uncertainty, and doubts about them."""
