"""Models: what they are (specs), how they are started (launch) and how they are asked (client, store)."""
