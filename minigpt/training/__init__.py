"""The training loop and what it needs: plan, schedule, optimizer."""
