"""Models: planning and launching servers (plan, launch), checkpoints, and sending requests (client, store)."""
