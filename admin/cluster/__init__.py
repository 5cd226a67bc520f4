"""The cluster as one: its nodes asked, their answers joined, and what is done to all of them."""
